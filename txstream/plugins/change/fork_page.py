"""What the page has of a fork, beside it and beside the original: what differs, and a button to swap."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from txstream.inspect.json_documents import document
from txstream.inspect.overview import look
from txstream.inspect.pages import Button, Page, Told
from txstream.plugins.change import forks
from txstream.plugins.change.forks import Fork

if TYPE_CHECKING:
    from txstream.plugins.change.diffing import TableDifference
    from txstream.settings import Settings
    from txstream.zookeeper import ZooKeeper


def pages(settings: Settings, zookeeper: ZooKeeper, topology_id: str) -> list[Page]:
    """Return a page for each fork of a topology, and if it is one, the same page of it."""
    return [_page(settings, zookeeper, fork) for fork in forks.forks_about(zookeeper, topology_id)]


def _page(settings: Settings, zookeeper: ZooKeeper, fork: Fork) -> Page:
    remarks = forks.remark(zookeeper, look(zookeeper, fork.name))
    told = [f"{fork.name} is a fork {one.told}." for one in remarks]
    buttons = {
        "diff": Button("Compare all rows now", partial(_differences, settings, fork)),
        "swap": Button("Swap", partial(_swap, settings, fork), partial(_would_swap, settings, fork)),
    }
    return Page(f"fork-{fork.name}", f"{fork.of} and its fork {fork.name}", Told(told), buttons)


def _differences(settings: Settings, fork: Fork, _by: str) -> Told:
    from txstream.plugins.change.diff_command import changed_components, in_words
    from txstream.plugins.change.diffing import differences

    found = differences(fork.of, fork.name, settings, now=True)
    words = [f"{one}." for one in in_words(found, changed_components(settings, fork.of, fork.name))]
    words += [f"{one.table}: {one.note}." for one in found.states if one.note is not None]
    counts = [
        {
            "table": one.table,
            "equal": one.equal,
            f"only in {fork.of}": one.only_old,
            f"only in {fork.name}": one.only_new,
            "different": one.different,
        }
        for one in found.states
    ]
    rows = {f"{one.table}, the largest first": _rows(fork, one) for one in found.states if one.rows}
    return Told(words, {"Rows": counts, **rows})


def _rows(fork: Fork, one: TableDifference) -> list[Mapping[str, Any]]:
    names = [*(one.rows[0].old or one.rows[0].new or {})]
    sides = ((fork.of, "old"), (fork.name, "new"))
    return [
        document(row.key)
        | {
            f"{name} in {topology}": None if (side := getattr(row, which)) is None else document(side[name])
            for name in names
            for topology, which in sides
        }
        for row in one.rows
    ]


def _would_swap(settings: Settings, fork: Fork) -> str:
    from txstream.plugins.change import swap_command, swapping

    would = swapping.swap(fork.of, fork.name, settings, dry_run=True)
    told = swap_command.in_words(would).removeprefix("would be: ")
    return f"Swap {fork.of} with its fork {fork.name}? Then {told}. The fork is gone afterwards."


def _swap(settings: Settings, fork: Fork, by: str) -> Told:
    from txstream.plugins.change import swap_command, swapping

    done = swapping.swap(fork.of, fork.name, settings, by=by)
    return Told([f"{swap_command.in_words(done)}.", f"Now start the code of {fork.name} as {fork.of}."])
