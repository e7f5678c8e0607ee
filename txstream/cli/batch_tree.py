"""`txstream show ID TXID --tree`: which components and tasks of a batch have finished, which are missing.
`--story`: what its coordinator got and answered. The driver that runs the topology is asked for both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txstream.api.errors import TxstreamError, UsageError
from txstream.cli.context import Cli
from txstream.cli.inspection import shown_attempt
from txstream.cli.operate import NotRunningError, ask, opened
from txstream.inspect.databases import is_tracked, tracks_tuples
from txstream.state.records import COMMITTED
from txstream.wording import counted

_ANSWER_SECONDS = 30.0


def _show_committed(cli: Cli, topology_id: str, txid: int) -> bool:
    from txstream import inspect

    try:
        batch = inspect.batch(topology_id, txid, cli.resolve()).batch
    except TxstreamError:
        return False  # the leader's answer is reported instead
    if batch.status != COMMITTED:
        return False
    entry = batch.first
    if cli.as_json:
        told = {"attempt": entry.attempt, "state": COMMITTED, "components": None}
        counts = {"tuples": entry.tuples, "keys": batch.keys}
        cli.print_json({"topology": topology_id, "txid": txid, **told, **counts})
    else:
        counts_shown = f"{counted(entry.tuples, 'tuple')}, {counted(batch.keys, 'key')} written"
        cli.print(f"{topology_id} txid {txid} attempt {shown_attempt(entry.attempt)}, {COMMITTED}")
        cli.print(f"all of its tasks have finished: {counts_shown}")
    return True


def _ask(cli: Cli, topology_id: str, kind: str, txid: int) -> Mapping[str, Any]:
    with opened(cli, topology_id) as zookeeper:
        if is_tracked(zookeeper, topology_id):
            raise tracks_tuples(topology_id)
        _, told = ask(zookeeper, topology_id, kind, {"txid": txid}, _ANSWER_SECONDS)
    assert told is not None  # None is only for requests with `later`
    return told


def show_tree(cli: Cli, topology_id: str, txid: int) -> None:
    """Ask the leader and print its answer; for a committed txid, print what the ledger has. Raises
    NotRunningError or UsageError for a txid that is neither open nor committed."""
    try:
        told = _ask(cli, topology_id, "tree", txid)
    except (NotRunningError, UsageError):
        if not _show_committed(cli, topology_id, txid):
            raise
        return
    if cli.as_json:
        cli.print_json({"topology": topology_id, "txid": txid, **told})
        return
    cli.print(f"{topology_id} txid {txid} attempt {shown_attempt(told['attempt'])}, {told['state']}")
    components: Mapping[str, Any] = told["components"] or {}
    if not components:
        cli.print("which of its tasks have finished is not known")
        return
    rows = [
        [name, row["phase"], f"{row['finished']} of {row['tasks']}", ", ".join(map(str, row["missing"]))]
        for name, row in components.items()
    ]
    cli.print_table(["component", "phase", "finished", "missing tasks"], rows)


def show_story(cli: Cli, topology_id: str, txid: int) -> None:
    """Ask the leader for the events and commands of a txid, and print them, the oldest first. Raises
    NotRunningError, and UsageError if its story does not reach back so far."""
    told = _ask(cli, topology_id, "story", txid)
    if cli.as_json:
        cli.print_json({"topology": topology_id, "txid": txid, **told})
        return
    for line in told["story"]:
        cli.print(line)
