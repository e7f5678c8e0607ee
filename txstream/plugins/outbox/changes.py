"""What the rows of a table of changes become: records of a topic, keyed as the table is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from txstream.api.spouts import SpoutContext
from txstream.api.state import BATCH, GONE, SqlState
from txstream.core.errors import TopologyError
from txstream.plugins.outbox.sink import encoded
from txstream.spouts.formats.value_encoders import AS_JSON, Encode, Rows, ValueEncoder, encoder_of
from txstream.state.reading import StoredRow

CONTROL_SUFFIX = "-txids"


@dataclass(frozen=True)
class ChangeTopic:
    """The topic that a table's changes go to: `SqlState(..., changes_to=ChangeTopic("per-user"))`, which is
    `changes_to="per-user"`: at least once, in the order of txids. With `exactly_once`, a consumer that reads
    only what is committed gets each txid once: it is one transaction, with a marker in a topic
    `<topic>-txids`, which is made if it is missing. Values are JSON unless `encode` says otherwise, as in
    `encode=Encode("avro")`."""

    topic: str
    exactly_once: bool = False
    encode: Encode = AS_JSON

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


def recorder(
    goal: ChangeTopic, state: SqlState, context: SpoutContext
) -> Callable[[StoredRow], tuple[bytes | None, bytes | None]]:
    """Return what makes records of a state's changes. Raises what `encoder_of` does."""
    keys = [one.with_nullable(False) for one in state.key_schema]
    encoder = encoder_of(goal.encode, pa.schema([*keys, *state.shown_schema]), goal.topic)
    return change_record if encoder is None else _Encoded(encoder, context)


class _Encoded:
    """Makes records by an encoder, which is opened for the first of them: its registry may be away."""

    def __init__(self, encoder: ValueEncoder, context: SpoutContext) -> None:
        self._encoder, self._context = encoder, context
        self._write: Callable[[Rows], list[bytes]] | None = None

    def __call__(self, row: StoredRow) -> tuple[bytes | None, bytes | None]:
        keys, values = _columns(row)
        if row.value[GONE]:
            return _key(keys), None
        if self._write is None:
            self._write = self._encoder.writer(self._context)
        return _key(keys), self._write([{**keys, **values}])[0]


def change_record(row: StoredRow) -> tuple[bytes | None, bytes | None]:
    """Return key and value of a record. The key is the table's; a key of one column of text or bytes is sent
    as it is. The value is the whole row, or null if it was removed. Infinite numbers, which JSON does not
    have, are text."""
    keys, values = _columns(row)
    whole = {name: _finite(value) for name, value in {**keys, **values}.items()}
    return _key(keys), None if row.value[GONE] else encoded(whole)


def _columns(row: StoredRow) -> tuple[dict[str, Any], dict[str, Any]]:
    keys = {name: value for name, value in row.key.items() if name != BATCH}
    return keys, {name: value for name, value in row.value.items() if name != GONE}


def _key(keys: dict[str, Any]) -> bytes | None:
    finite = {name: _finite(value) for name, value in keys.items()}
    (first, *others) = finite.values()
    return encoded(finite if others else first)


def _finite(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
