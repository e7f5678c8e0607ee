"""What Alembic runs before a script: it uses the given connection, inside the transaction open on it."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection

from txstream.state.sql.framework_tables import VERSION_TABLE, metadata

connection = context.config.attributes.get("connection")
if not isinstance(connection, Connection):
    raise TypeError("these scripts run inside txstream: type `txstream db upgrade`, not `alembic upgrade`")

# Printed statements must contain their values: nobody binds them later.
context.configure(
    connection=connection,
    target_metadata=metadata,
    version_table=VERSION_TABLE,
    literal_binds=context.is_offline_mode(),
)
context.run_migrations()
