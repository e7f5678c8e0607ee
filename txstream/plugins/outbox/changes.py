"""What the rows of a table of changes become: records of a topic, keyed as the table is."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from txstream.api.state import BATCH, GONE
from txstream.core.errors import TopologyError
from txstream.plugins.outbox.sink import encoded
from txstream.state.reading import StoredRow

CONTROL_SUFFIX = "-txids"


@dataclass(frozen=True)
class ChangeTopic:
    """The topic that a table's changes go to: `SqlState(..., changes_to=ChangeTopic("per-user"))`, which is
    `changes_to="per-user"`: at least once, in the order of txids. With `exactly_once`, a consumer that reads
    only what is committed gets each txid once: it is one transaction, with a marker in a topic
    `<topic>-txids`, which is made if it is missing."""

    topic: str
    exactly_once: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.topic, str) or not self.topic:
            raise TopologyError(f"ChangeTopic takes the name of a topic, not {self.topic!r}")

    def __str__(self) -> str:
        return self.topic


def topic_of(changes_to: Any) -> ChangeTopic | None:
    """Return where a state's changes go, if that is a topic."""
    if isinstance(changes_to, str):
        return ChangeTopic(changes_to)
    return changes_to if isinstance(changes_to, ChangeTopic) else None


def change_record(row: StoredRow) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a record. The key is the table's; a key of one column of text or bytes is sent
    as it is. The value is the whole row, or null if it was removed. Infinite numbers, which JSON does not
    have, are text."""
    keys = {name: _finite(value) for name, value in row.key.items() if name != BATCH}
    values = {name: _finite(value) for name, value in row.value.items() if name != GONE}
    (first, *others) = keys.values()
    return encoded(keys if others else first), None if row.value[GONE] else encoded({**keys, **values})


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
