"""Triggers and rules on tables that may take or change a row which a commit writes, without an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, text

_ASKED = {
    # Before a row: a trigger's function may return NULL. What is off (D) is not called.
    "postgresql": """
        SELECT 'trigger', t.tgname, '' FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE c.relname = :name AND pg_table_is_visible(c.oid) AND t.tgtype & 3 = 3 AND t.tgenabled <> 'D'
        AND NOT t.tgisinternal
        UNION ALL SELECT 'rule', r.rulename, '' FROM pg_rewrite r JOIN pg_class c ON c.oid = r.ev_class
        WHERE c.relname = :name AND pg_table_is_visible(c.oid) AND r.rulename <> '_RETURN'
        AND r.ev_enabled <> 'D' ORDER BY 1, 2""",
    # Before a row: they take none here, but may set other values, which no count of rows finds.
    "mysql": """
        SELECT 'trigger', trigger_name, '' FROM information_schema.triggers
        WHERE event_object_schema = DATABASE() AND event_object_table = :name AND action_timing = 'BEFORE'
        ORDER BY 2""",
    "sqlite": """
        SELECT 'trigger', name, sql FROM sqlite_master
        WHERE type = 'trigger' AND lower(tbl_name) = lower(:name) ORDER BY 2""",
}
_WRITES = r"raise\s*\(\s*ignore|\b(update|into|from)\s+(or\s+\w+\s+)?[\"`\[]?{name}\b"


def triggers_found(connection: Connection, tables: Sequence[str]) -> Iterator[str]:
    """Yield a sentence for each, as far as the account may see them: what it may do, and what to do."""
    asked = _ASKED.get(connection.dialect.name.replace("mariadb", "mysql"))
    for table in tables if asked else ():
        for kind, name, body in connection.execute(text(asked or ""), {"name": table}):
            if body and not re.search(_WRITES.format(name=re.escape(table)), body, re.IGNORECASE):
                continue  # it writes an audit, for example
            yield (
                f"note: table {table} has the {kind} {name}, which may take or change rows without an error; "
                f"a commit that misses a row ends the run, but nothing finds a changed value: unless it "
                f"leaves each row as it is, drop it"
            )
