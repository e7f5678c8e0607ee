"""Groupings: which task of a bolt gets a tuple. Groupings by key hash the values (`stable_hash`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.wording import printable


class GroupingKind(StrEnum):
    SHUFFLE = "shuffle"
    """Evenly: the tasks' shares of what one Spark task emits in a batch differ by at most one tuple."""
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    """Evenly over the tasks in the emitter's own Spark task, without crossing the network."""
    FIELDS = "fields"
    """Tuples with the same values in `fields` go to the same task."""
    PARTIAL_KEY = "partial_key"
    """Tuples with the same values in `fields` go to one of two tasks: the one to which the emitter has sent
    fewer tuples so far in this batch. A key with nearly 2 / tasks of all tuples overloads no task, unless
    another such key has the same two tasks. The bolt's results for a key must be merged further down."""
    ALL = "all"
    """Every task gets every tuple."""
    GLOBAL = "global"
    """Task 0 gets every tuple."""
    DIRECT = "direct"
    """The emitter names the task of each tuple."""
    NONE = "none"
    """Any task will do: at present the same as SHUFFLE, as in Storm."""


@dataclass(frozen=True, slots=True)
class Grouping:
    """One subscription of a bolt: a component's stream, and how its tuples are spread over the bolt's tasks.

    `fields` is the key of FIELDS and PARTIAL_KEY. It is empty for every other kind.
    """

    kind: GroupingKind
    component: str
    stream: str = DEFAULT_STREAM
    fields: tuple[str, ...] = ()

    def __str__(self) -> str:
        source = self.component if self.stream == DEFAULT_STREAM else f"{self.component}.{self.stream}"
        return f"{self.kind}({', '.join((source, *self.fields))})"


def describe_grouping(grouping: Grouping) -> str:
    """Return how the tuples are spread, without their source: `shuffle`, `fields(word)`."""
    fields = printable(", ".join(grouping.fields))
    return f"{grouping.kind}({fields})" if fields else str(grouping.kind)
