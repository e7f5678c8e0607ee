"""The slots of a topology's components: how many they have, and how many they may have.

Checked for each operator's request, and for the stored slots at a start.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from txstream.api.bolts import Bolt
from txstream.api.topology import Topology
from txstream.core.errors import UsageError
from txstream.core.wording import counted

log = logging.getLogger(__name__)


class Slots:
    """The slots as declared, and as operators have changed them since.

    They change in one step: `changed` is replaced, never modified, and every attempt reads it once, when it
    starts. So an attempt in flight ends with the slots that it began with.
    """

    def __init__(self, topology: Topology) -> None:
        self.changed: Mapping[str, int] = {}
        self._declared = {component.id: component.parallelism for component in topology.components}
        self._tasks = {component.id: component.tasks for component in topology.components}
        spouts = [one.id for one in topology.components if not isinstance(one.instance, Bolt)]
        self._spouts = frozenset(spouts)

    def restore(self, slots: Mapping[str, int]) -> None:
        """Start with those of the stored slots that this code can have."""
        self.changed, ignored = fitting_scale(slots, self._now(), spouts=self._spouts)
        for sentence in ignored:
            log.warning("%s", sentence)

    def change(self, slots: Mapping[str, int]) -> Mapping[str, int]:
        """Put these slots into force. Return what their components had until now. Raises UsageError."""
        now = self._now()
        granted = check_scale(slots, now, spouts=self._spouts)
        self.changed = {**self.changed, **granted}
        before = {component: now[component][0] for component in granted}
        for component, count in sorted(granted.items()):
            log.info("component %r: %d slots, until now %d", component, count, before[component])
        return before

    def tell_changed(self) -> None:
        """Log the components that have other slots than their code declares."""
        for component, count in sorted(self.changed.items()):
            declared = self._declared[component]
            if count != declared:
                log.warning(
                    "component %r has %d slots, as asked by `txstream scale`, not its parallelism of %d",
                    component, count, declared,
                )  # fmt: skip

    def _now(self) -> dict[str, tuple[int, int]]:
        return {
            component: (self.changed.get(component, slots), self._tasks[component])
            for component, slots in self._declared.items()
        }


def check_scale(
    slots: Mapping[str, int], components: Mapping[str, tuple[int, int]], *, spouts: Collection[str] = ()
) -> dict[str, int]:
    """Return the slots asked for if all of them can be had. Called on the driver, once per request.

    `components` maps a component to its present slots and tasks; the tasks of `spouts` are their parallelism.
    Raises UsageError if no component is named, or with a sentence for each that cannot be had: an unknown
    component, fewer slots than one, more slots than tasks.
    """
    problems = [_problem(component, count, components, spouts) for component, count in sorted(slots.items())]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise UsageError("; ".join(found))
    if not slots:
        raise UsageError("no component was named; say which, for example count=3")
    return dict(slots)


def fitting_scale(
    slots: Mapping[str, int], components: Mapping[str, tuple[int, int]], *, spouts: Collection[str] = ()
) -> tuple[dict[str, int], list[str]]:
    """Return those of the slots in force that this code can have, and a sentence for each of the others.

    Called on the driver when a leader starts: the code may have changed since the slots were asked for.
    """
    fitting: dict[str, int] = {}
    sentences: list[str] = []
    for component, count in sorted(slots.items()):
        problem = _problem(component, count, components, spouts)
        if problem is None:
            fitting[component] = count
        else:
            sentences.append(f"{component}={count} is ignored: {problem}")
    return fitting, sentences


def _problem(
    component: str, count: int, components: Mapping[str, tuple[int, int]], spouts: Collection[str]
) -> str | None:
    if component not in components:
        return f"there is no component {component!r}; there are {', '.join(sorted(components)) or 'none'}"
    tasks = components[component][1]
    if type(count) is not int or count < 1:
        return f"component {component!r} cannot have {count!r} slots; it needs a whole number, 1 or more"
    if count > tasks and component in spouts:
        return (
            f"component {component!r} cannot have {count} slots: a spout has no tasks apart from them, so it "
            f"has at most its parallelism of {tasks}; declare it with parallelism={count} and start it again"
        )
    if count > tasks:
        return (
            f"component {component!r} cannot have {count} slots, because it has "
            f"{counted(tasks, 'task')}; declare it with .set_num_tasks({count}) and start it again"
        )
    return None
