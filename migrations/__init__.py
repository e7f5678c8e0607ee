"""The framework's own tables, revision by revision. `txstream db upgrade` and `txstream run` read them; they
need no alembic.ini. A new revision is a file in `versions/`, named in
`txstream.state.sql.framework_tables`."""
