"""May a component have so many slots? Asked for each operator's request, and for stored slots at a start."""

from __future__ import annotations

from collections.abc import Mapping

from txstream.api.errors import UsageError


def check_scale(slots: Mapping[str, int], components: Mapping[str, tuple[int, int]]) -> dict[str, int]:
    """The slots asked for, when each of them can be had. `components` maps a component to its slots and
    tasks now. Called on the driver, once per request.

    Raises UsageError, a sentence for each that cannot: an unknown component, fewer slots than one, more slots
    than tasks.
    """
    problems = [_problem(component, count, components) for component, count in sorted(slots.items())]
    found = [problem for problem in problems if problem is not None]
    if found:
        raise UsageError("; ".join(found))
    if not slots:
        raise UsageError("no component was named; say which, for example count=3")
    return dict(slots)


def fitting_scale(
    slots: Mapping[str, int], components: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, int], list[str]]:
    """Of the slots in force those that this code can have, and a sentence for each of the others.

    Called on the driver when a leader starts: the code may have changed since the slots were asked for.
    """
    fitting: dict[str, int] = {}
    sentences: list[str] = []
    for component, count in sorted(slots.items()):
        problem = _problem(component, count, components)
        if problem is None:
            fitting[component] = count
        else:
            sentences.append(f"{component}={count} is ignored: {problem}")
    return fitting, sentences


def _problem(component: str, count: int, components: Mapping[str, tuple[int, int]]) -> str | None:
    if component not in components:
        return f"there is no component {component!r}; there are {', '.join(sorted(components)) or 'none'}"
    tasks = components[component][1]
    if type(count) is not int or count < 1:
        return f"component {component!r} cannot have {count!r} slots; it needs a whole number, 1 or more"
    if count > tasks:
        return (
            f"component {component!r} cannot have {count} slots, because it has {tasks} "
            f"task{'' if tasks == 1 else 's'}; declare it with .set_num_tasks({count}) and start it again"
        )
    return None
