"""Alembic scripts for the framework's own tables. `txstream db upgrade` and `txstream run` execute them; they
need no alembic.ini. A new revision is a file in `versions/` and is named in
`txstream.state.sql.framework_tables`."""
