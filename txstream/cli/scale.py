"""`txstream scale ID COMPONENT=N...`: other slots for a running topology, from one of its next batches on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from txstream.api.errors import ServiceUnavailableError, TxstreamError, UsageError
from txstream.cli.context import Cli
from txstream.cli.databases import UnknownTopologyError, open_zookeeper
from txstream.cli.options import Id, command
from txstream.words import counted

if TYPE_CHECKING:
    from txstream.zookeeper import ScaleAnswer

_MOST_DIGITS = 9


class NotRunningError(TxstreamError):
    """No driver runs the topology, so nobody would answer."""

    exit_status: ClassVar[int] = 1


def register(app: typer.Typer) -> None:
    command(app, "scale")(scale)


def scale(
    cli: Cli,
    topology_id: Id,
    slots: Annotated[
        list[str], typer.Argument(metavar="COMPONENT=N", help="Components, and the slots that each gets.")
    ],
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the driver.", min=0.1),
    ] = 30.0,
    later: Annotated[
        bool,
        typer.Option("--later", help="Do not wait; if nothing runs the topology, its next run begins so."),
    ] = False,
) -> None:
    """Change the slots of a running topology's components. Later runs keep them."""
    asked = parse_slots(slots)
    settings = cli.resolve()
    settings.require_zookeeper()
    with open_zookeeper(settings) as zookeeper:
        from txstream.zookeeper import OperatorRequests, Paths

        if topology_id not in zookeeper.topologies():
            raise UnknownTopologyError(topology_id)
        leader = zookeeper.leader(topology_id)
        if leader is None and not later:
            raise NotRunningError(
                f"nothing runs topology {topology_id!r} now, so nobody could answer; start it first, or add "
                "--later to have its next run begin with these slots"
            )
        operator = OperatorRequests(zookeeper.tree(), Paths(zookeeper.root, topology_id))
        request_id = operator.ask_scale(asked)
        answer = None if later else operator.wait_scale_answer(request_id, timeout)
        if answer is None and not later:
            raise ServiceUnavailableError(
                f"{zookeeper.leader(topology_id) or 'the driver, which is gone,'} has not answered within "
                f"{timeout:g} s; the request is stored, and the driver that runs topology {topology_id!r} "
                "will still carry it out (`txstream status ID --tasks` shows when)"
            )
    if answer is not None and answer.refused is not None:
        raise UsageError(f"{topology_id} stays as it is: {answer.refused}")
    _tell(cli, topology_id, request_id, asked, answer)


def parse_slots(pairs: Sequence[str]) -> dict[str, int]:
    """COMPONENT=N texts as a mapping. Raises UsageError."""
    slots: dict[str, int] = {}
    for pair in pairs:
        component, equals, text = pair.partition("=")
        component = component.strip()
        if not equals or not component:
            raise UsageError(f"{pair!r:.60}: write COMPONENT=N, for example count=3")
        if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS and int(text) >= 1):
            raise UsageError(
                f"{pair!r:.60}: a component has a whole number of slots, 1 or more; write {component}=3"
            )
        if component in slots:
            raise UsageError(
                f"component {component!r} was given twice, {counted(slots[component], 'slot')} and {text}"
            )
        slots[component] = int(text)
    return slots


def _tell(
    cli: Cli, topology_id: str, request_id: str, asked: Mapping[str, int], answer: ScaleAnswer | None
) -> None:
    before: Mapping[str, int] = {} if answer is None else answer.before
    if cli.as_json:
        document: dict[str, Any] = {
            "topology": topology_id,
            "request": request_id,
            "applied": answer is not None,
            "slots": {name: {"before": before.get(name), "asked": asked[name]} for name in sorted(asked)},
        }
        cli.print_json(document)
        return
    for component, count in sorted(asked.items()):
        cli.print(f"{topology_id}: {component} {_change(before.get(component), count, answer is not None)}")
    if answer is None:
        cli.say("the request is stored; the driver that runs the topology, now or next, carries it out")


def _change(before: int | None, count: int, applied: bool) -> str:
    slots = counted(count, "slot")
    if not applied:
        return f"is to have {slots}"
    if before is None:
        return f"has {slots}"
    return f"stays at {slots}" if before == count else f"went from {before:,} to {slots}"
