"""A tuple that is looked for: the one at which a bolt of the commit phase failed.

Such bolts are not tried with parts of a batch, because what they change outside of the states would remain.
So the records that make the tuple are looked for, by the bolts of the processing phase alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from txstream.core.errors import BoltError

if TYPE_CHECKING:
    import pyarrow as pa

    from txstream.engine.batch.messages import Parcel

_WORDS = "this part of the batch makes the tuple that is looked for"


class Sought(NamedTuple):
    """Values of these fields, as the digest of their text, in a tuple for a bolt of the commit phase: for
    `component`, or for any if it is None."""

    names: Sequence[str]
    digest: str
    component: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any], component: str | None = None) -> Sought:
        return cls.shown(list(values), _text(values.items()), component)

    @classmethod
    def shown(cls, names: Sequence[str], text: str, component: str | None = None) -> Sought:
        """Return what is looked for from a text like `word='a', n=1`."""
        return cls(names, hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest(), component)

    def refuse(self, tables: Mapping[Parcel, pa.Table]) -> None:
        """Raise BoltError if the tuple is among these, which go into the commit phase."""
        for parcel, table in tables.items():
            if self.component not in (None, parcel.component) or not {*self.names} <= {*table.column_names}:
                continue
            for row in table.select(list(self.names)).to_pylist():
                if Sought.of(row).digest == self.digest:
                    raise BoltError(_WORDS)


def is_sought(error: object) -> bool:
    """Whether an error, as a Spark task has reported it, says that the tuple was found."""
    return getattr(error, "words", None) == _WORDS


def _text(values: Iterable[tuple[str, Any]]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values)
