"""`txstream show ID TXID --tree`: which component and task of a batch has finished, which is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txstream.cli.context import Cli
from txstream.cli.inspection import shown_attempt
from txstream.cli.operate import ask, opened


def show_tree(cli: Cli, topology_id: str, txid: int, timeout_seconds: float = 30.0) -> None:
    """Ask the leader, and print what it tells. Raises NotRunningError, UsageError for a txid that is not
    open."""
    with opened(cli, topology_id) as zookeeper:
        _, told = ask(zookeeper, topology_id, "tree", {"txid": txid}, timeout_seconds)
    assert told is not None  # it is not asked for later
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
