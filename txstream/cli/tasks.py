"""`txstream status ID --tasks`: where the tasks of a recent batch ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txstream.api.errors import CorruptStateError
from txstream.cli.context import Cli
from txstream.cli.databases import UnknownTopologyError, open_zookeeper
from txstream.cli.inspection import shown_attempt, shown_time
from txstream.inspect.databases import is_tracked, tracks_tuples
from txstream.transaction import epoch_of
from txstream.wording import counted

if TYPE_CHECKING:
    from txstream.placement import Assignment
    from txstream.settings import Settings


def show_tasks(cli: Cli, settings: Settings, topology_id: str) -> int:
    """Print the stored assignment of tasks. Raises UnknownTopologyError, CorruptStateError."""
    with open_zookeeper(settings) as zookeeper:
        from txstream.batch_metas import MetaCodec
        from txstream.zookeeper import ASSIGNMENT, Paths
        from txstream.zookeeper.paths import with_remedy

        if topology_id not in zookeeper.topologies():
            raise UnknownTopologyError(topology_id)
        if is_tracked(zookeeper, topology_id):
            raise tracks_tuples(topology_id)
        try:
            assignment = zookeeper.progress(topology_id, MetaCodec(Paths)).notes.get(ASSIGNMENT)
        except CorruptStateError as error:
            raise with_remedy(error, topology_id) from error
        leader = zookeeper.leader(topology_id)
    if cli.as_json:
        document = None if assignment is None else _document(assignment)
        cli.print_json({"topology": topology_id, "leader": leader, "assignment": document})
    elif assignment is None:
        cli.say(f"{topology_id} has no tasks to show yet; its driver stores them with its first batch")
    else:
        _print(cli, topology_id, leader, assignment)
    return 0


def _document(assignment: Assignment) -> dict[str, Any]:
    return {
        "txid": assignment.txid,
        "attempt": assignment.attempt,
        "epoch": epoch_of(assignment.attempt),
        "at": assignment.at.isoformat(),
        "left_out": assignment.left_out,
        "tasks": [
            {
                "component": place.component,
                "task": place.task,
                "slot": place.slot,
                "worker": place.worker,
                "host": place.host,
                "seconds": place.seconds,
                "tuples": place.tuples,
            }
            for place in assignment.in_order()
        ],
    }


def _print(cli: Cli, topology_id: str, leader: str | None, assignment: Assignment) -> None:
    attempt, time = shown_attempt(assignment.attempt), shown_time(assignment.at)
    cli.print(f"{topology_id}: txid {assignment.txid} attempt {attempt}, {time}")
    cli.print_table(
        ["component", ">task", "?>slot", "?worker", "?host", ">seconds", ">tuples"],
        [
            [
                *(place.component, place.task, place.slot, place.worker, place.host),
                *(f"{place.seconds:.3f}", place.tuples),
            ]
            for place in assignment.in_order()
        ],
    )
    if assignment.left_out:
        cli.say(f"{counted(assignment.left_out, 'more task')} left out; those shown took the longest")
    if leader is None:
        cli.say(f"{topology_id} is not running now")
