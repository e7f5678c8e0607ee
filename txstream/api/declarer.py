"""`BoltDeclarer`: chooses the inputs of a bolt while a topology is built."""

from __future__ import annotations

from txstream.api.groupings import Grouping, GroupingKind
from txstream.api.tuples import DEFAULT_STREAM
from txstream.core.errors import TopologyError


class BoltDeclarer:
    """Chooses the inputs of a bolt: call a grouping for each stream that it subscribes to."""

    def __init__(self, component: str) -> None:
        self._component = component
        self.inputs: list[Grouping] = []
        self.tasks: int | None = None

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples are spread evenly over the bolt's tasks."""
        return self._add(Grouping(GroupingKind.SHUFFLE, component, stream))

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples go to a task in the same worker, without crossing the network."""
        return self._add(Grouping(GroupingKind.LOCAL_OR_SHUFFLE, component, stream))

    def fields_grouping(self, component: str, *fields: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Tuples with the same values in these fields go to the same task."""
        return self._add(Grouping(GroupingKind.FIELDS, component, stream, self._fields("fields", fields)))

    def partial_key_grouping(
        self, component: str, *fields: str, stream: str = DEFAULT_STREAM
    ) -> BoltDeclarer:
        """Tuples with the same values in these fields go to one of two tasks, whichever has had fewer. This
        balances skewed keys better than `fields_grouping`, for bolts whose results are merged below."""
        chosen = self._fields("partial key", fields)
        return self._add(Grouping(GroupingKind.PARTIAL_KEY, component, stream, chosen))

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Every task gets every tuple."""
        return self._add(Grouping(GroupingKind.ALL, component, stream))

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """All tuples go to task 0."""
        return self._add(Grouping(GroupingKind.GLOBAL, component, stream))

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """The emitter chooses the task, with `collector.emit_direct`; the stream must be declared direct."""
        return self._add(Grouping(GroupingKind.DIRECT, component, stream))

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> BoltDeclarer:
        """Any task will do; at present the same as `shuffle_grouping`."""
        return self._add(Grouping(GroupingKind.NONE, component, stream))

    def set_num_tasks(self, tasks: int) -> BoltDeclarer:
        """Set the number of instances of the bolt, at least its parallelism. Raises TopologyError."""
        self.tasks = check_number(f"the number of tasks of {self._component!r}", tasks)
        return self

    def _fields(self, kind: str, fields: tuple[str, ...]) -> tuple[str, ...]:
        if not fields:
            raise TopologyError(f"component {self._component!r}: a {kind} grouping needs at least one field")
        return fields

    def _add(self, grouping: Grouping) -> BoltDeclarer:
        for other in self.inputs:
            if (other.component, other.stream) == (grouping.component, grouping.stream):
                raise TopologyError(
                    f"component {self._component!r} subscribes to the same stream twice, by {other} and by "
                    f"{grouping}; choose one grouping"
                )
        self.inputs.append(grouping)
        return self


def check_number(what: str, value: int, least: int = 1) -> int:
    """Return the number itself. Raises TopologyError if it is not a whole number of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise TopologyError(f"{what} is {value!r}; it must be a whole number of at least {least}")
    return value
