"""`txstream scale`, `pause`, `resume` and `stop`: requests to the driver that runs a topology."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.asking import NotRunningError, ask
from txstream.cli.context import Cli
from txstream.cli.databases import UnknownTopologyError, open_zookeeper
from txstream.cli.inspection import shown_time
from txstream.cli.options import Id, command
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.core.waits import wait_until
from txstream.core.wording import counted

if TYPE_CHECKING:
    from txstream.zookeeper import ZooKeeper

_MOST_DIGITS = 9

Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the driver.", min=0.1)
]
Later = Annotated[
    bool,
    typer.Option("--later", help="Do not wait; if nothing runs the topology, its next run begins so."),
]


__all__ = ["NotRunningError", "ask", "opened", "print_answer"]


def register(app: typer.Typer) -> None:
    for one in (scale, pause, resume, stop):
        command(app, one.__name__)(one)


def scale(
    cli: Cli,
    topology_id: Id,
    slots: Annotated[
        list[str], typer.Argument(metavar="COMPONENT=N", help="Components, and the slots that each gets.")
    ],
    timeout: Timeout = 30.0,
    later: Later = False,
) -> None:
    """Change the slots of a running topology's components. Later runs keep them."""
    asked = parse_slots(slots)
    with opened(cli, topology_id) as zookeeper:
        request_id, answer = ask(zookeeper, topology_id, "scale", asked, timeout, later=later)
    before: Mapping[str, int] = {} if answer is None else answer["before"]
    changes = {name: {"before": before.get(name), "asked": asked[name]} for name in sorted(asked)}
    print_answer(
        cli,
        topology_id,
        request_id,
        answer,
        {"slots": changes},
        *(_change(name, before.get(name), asked[name], answer is not None) for name in sorted(asked)),
    )


def pause(cli: Cli, topology_id: Id, timeout: Timeout = 30.0, later: Later = False) -> None:
    """Open no further batch until `txstream resume`. Open ones finish; later runs begin paused."""
    with opened(cli, topology_id) as zookeeper:
        request_id, answer = ask(zookeeper, topology_id, "pause", {}, timeout, later=later)
    line = "is to be paused"
    if answer is not None:
        already = f" already, {_since(answer)}" if answer["already"] else ""
        after = answer["after"]
        nothing = "its spouts are not asked" if after is None else f"nothing is opened after txid {after}"
        line = f"is paused{already}; {nothing}"
    print_answer(cli, topology_id, request_id, answer, answer or {}, line)


def resume(cli: Cli, topology_id: Id, timeout: Timeout = 30.0, later: Later = False) -> None:
    """Open batches again after `txstream pause`."""
    with opened(cli, topology_id) as zookeeper:
        request_id, answer = ask(zookeeper, topology_id, "resume", {}, timeout, later=later)
    line = "is to go on"
    if answer is not None:
        line = "was not paused" if answer["since"] is None else f"goes on; it was paused {_since(answer)}"
    print_answer(cli, topology_id, request_id, answer, answer or {}, line)


def stop(
    cli: Cli,
    topology_id: Id,
    at: Annotated[
        int | None, typer.Option("--at", metavar="TXID", help="End when this txid is committed.", min=1)
    ] = None,
    timeout: Timeout = 30.0,
) -> None:
    """End the run of a topology between two batches. Its standbys end with it."""
    with opened(cli, topology_id) as zookeeper:
        leader = zookeeper.leader(topology_id)
        body = {} if at is None else {"at": at}
        request_id, answer = ask(zookeeper, topology_id, "stop", body, timeout)
        after = (answer or {})["after"]
        # A new leader means that the old one has ended; it is a standby, which will end soon.
        ended = at is None and wait_until(lambda: zookeeper.leader(topology_id) != leader, timeout)
    if at is None and not ended:
        last = f"txid {after} is committed, which it was"
        if after is None:
            last = "its open trees have ended, which they had"
        raise ServiceUnavailableError(
            f"{leader} ends topology {topology_id!r} when {last} not within {timeout:g} s; "
            f"`txstream status {topology_id}` shows what it waits for"
        )
    line = "ended" if after is None else f"{'ended' if ended else 'ends'} after txid {after}"
    print_answer(cli, topology_id, request_id, answer, {"after": after, "ended": ended}, line)


def _since(answer: Mapping[str, Any]) -> str:
    return f"since {shown_time(datetime.fromisoformat(answer['since']))} by {answer['by']}"


@contextlib.contextmanager
def opened(cli: Cli, topology_id: str) -> Iterator[ZooKeeper]:
    """Open the ZooKeeper that has the topology. Raises UnknownTopologyError if it does not."""
    settings = cli.resolve()
    settings.require_zookeeper()
    with open_zookeeper(settings) as zookeeper:
        if topology_id not in zookeeper.topologies():
            raise UnknownTopologyError(topology_id)
        yield zookeeper


def print_answer(
    cli: Cli,
    topology_id: str,
    request_id: str,
    answer: Mapping[str, Any] | None,
    document: Mapping[str, Any],
    *lines: str,
) -> None:
    if cli.as_json:
        applied = {"topology": topology_id, "request": request_id, "applied": answer is not None}
        cli.print_json({**applied, **document})
        return
    for line in lines:
        cli.print(f"{topology_id}: {line}")
    if answer is None:
        cli.say("the request is stored; the driver that runs the topology, now or next, carries it out")


def parse_slots(pairs: Sequence[str]) -> dict[str, int]:
    """Parse COMPONENT=N texts into a mapping. Raises UsageError."""
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


def _change(component: str, before: int | None, count: int, applied: bool) -> str:
    slots = counted(count, "slot")
    if not applied:
        return f"{component} is to have {slots}"
    if before is None:
        return f"{component} has {slots}"
    return (
        f"{component} stays at {slots}" if before == count else f"{component} went from {before:,} to {slots}"
    )
