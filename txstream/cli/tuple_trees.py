"""What `txstream status ID` shows of a topology of tracked tuples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from txstream.cli.context import Cli
from txstream.wording import counted


def tree_lines(trees: Mapping[str, Any]) -> dict[str, str]:
    """Return lines about pending trees by age, and about a pending window that stays full."""
    lines = {"micro-batches": f"{trees['micro_batches']:,}, {trees['failed_micro_batches']:,} failed"}
    for spout, ages in trees["pending"].items():
        open_trees = sum(ages.values())
        shown = [
            f"{found:,} {'older' if age == 'older' else f'up to {age} s old'}"
            for age, found in ages.items()
            if found
        ]
        lines[f"pending {spout}"] = counted(open_trees, "tree") + (f": {', '.join(shown)}" if shown else "")
    if trees["stuck"]:
        lines["stuck"] = trees["stuck"]
    return lines


def print_tree_counts(cli: Cli, trees: Mapping[str, Any]) -> None:
    """Print what each component did: a spout's trees, a bolt's tuples."""
    columns = ("component", "slots", "messages", "per second", "acked", "failed", "timed out")
    rows = [
        (
            name,
            str(row.get("slots", "")),  # notes of an earlier txstream have none
            f"{row['messages']:,}",
            f"{row['messages_per_second']:,.0f}",
            f"{row['acked']:,}",
            f"{row['failed']:,}",
            f"{row['timed_out']:,}",
        )
        for name, row in trees["components"].items()
    ]
    cli.print_table(columns, rows)
