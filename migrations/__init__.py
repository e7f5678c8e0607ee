"""The framework's own tables, revision by revision. `txstream db upgrade` and `txstream run` read them; they
need no alembic.ini. A new revision is a file in `versions/` and an entry in `txstream.state.framework`."""
