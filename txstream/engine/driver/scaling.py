"""May a component have so many slots? Asked for each operator's request, and for stored slots at a start."""

from __future__ import annotations

from collections.abc import Mapping

from txstream.api.errors import UsageError
from txstream.words import counted


def check_scale(
    slots: Mapping[str, int], components: Mapping[str, tuple[int, int]], *, spout: str | None = None
) -> dict[str, int]:
    """The slots asked for, when each of them can be had. `components` maps a component to its slots and
    tasks now; `spout` is the one among them whose tasks are its parallelism. Called on the driver, once per
    request.

    Raises UsageError, a sentence for each that cannot: an unknown component, fewer slots than one, more slots
    than tasks.
    """
    problems = [_problem(component, count, components, spout) for component, count in sorted(slots.items())]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise UsageError("; ".join(found))
    if not slots:
        raise UsageError("no component was named; say which, for example count=3")
    return dict(slots)


def fitting_scale(
    slots: Mapping[str, int], components: Mapping[str, tuple[int, int]], *, spout: str | None = None
) -> tuple[dict[str, int], list[str]]:
    """Of the slots in force those that this code can have, and a sentence for each of the others.

    Called on the driver when a leader starts: the code may have changed since the slots were asked for.
    """
    fitting: dict[str, int] = {}
    sentences: list[str] = []
    for component, count in sorted(slots.items()):
        problem = _problem(component, count, components, spout)
        if problem is None:
            fitting[component] = count
        else:
            sentences.append(f"{component}={count} is ignored: {problem}")
    return fitting, sentences


def _problem(
    component: str, count: int, components: Mapping[str, tuple[int, int]], spout: str | None
) -> str | None:
    if component not in components:
        return f"there is no component {component!r}; there are {', '.join(sorted(components)) or 'none'}"
    tasks = components[component][1]
    if type(count) is not int or count < 1:
        return f"component {component!r} cannot have {count!r} slots; it needs a whole number, 1 or more"
    if count > tasks and component == spout:
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
