"""`txstream diff`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txstream.cli.code import find_code, is_code_known, noted_components, running
from txstream.cli.context import Cli
from txstream.cli.options import Id, command
from txstream.core.errors import UsageError
from txstream.core.wording import counted

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.plugins.change.diffing import Difference, TableDifference
    from txstream.settings import Settings


def register(app: typer.Typer) -> None:
    command(app, "diff", state_databases=True)(diff)


def diff(
    cli: Cli,
    topology_id: Id,
    other: Annotated[str, typer.Argument(metavar="NEW", help="The topology beside it, as a fork.")],
    now: Annotated[
        bool, typer.Option("--now", help="Do not wait: take out of one what it has read beyond the other.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", help="How long to wait for the same place.", min=0),
    ] = 60.0,
    rows: Annotated[
        int, typer.Option("--rows", "-n", metavar="N", help="At most so many rows of a table.", min=0)
    ] = 20,
) -> int:
    """Compare the rows of a topology with those of its fork. It waits until both have committed the same
    place in their topics. Exit status 1 when rows differ, or when some could not be compared."""
    from txstream.inspect.json_documents import document
    from txstream.plugins.change.diffing import differences

    settings = cli.resolve()
    with contextlib.ExitStack() as stack:

        def code(one: str) -> Topology:
            if not is_code_known(cli.settings, one):
                raise UsageError(
                    f"{one!r} has read beyond the other; its code, which takes that out again, is not known "
                    f"here: type this in the folder from which it was last run, or leave out --now"
                )
            made, module = find_code(Cli(cli.settings, quiet=True), one, None, None)
            stack.enter_context(running(cli, module))
            return made

        found = differences(
            topology_id, other, settings, timeout_seconds=timeout, now=now, rows=rows, code=code
        )
    changed = changed_components(cli.settings, topology_id, other)
    if cli.as_json:
        cli.print_json({**document(found), "same": found.same, "bolts": changed})
    else:
        _print(cli, found, changed)
    return 0 if found.same else 1


def changed_components(settings: Settings, topology_id: str, other: str) -> dict[str, Any] | None:
    """Return which components have changed between what was last run here; None if that is not known."""
    old, new = (noted_components(settings, one) for one in (topology_id, other))
    if old is None or new is None:
        return None
    return {
        "changed": sorted(name for name in old.keys() & new.keys() if old[name] != new[name]),
        "only_old": sorted(old.keys() - new.keys()),
        "only_new": sorted(new.keys() - old.keys()),
        "of": len(old),
    }


def in_words(found: Difference, changed: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return where both are, and what differs."""
    here = f"{found.old} at txid {found.old_txid} and {found.new} at txid {found.new_txid}"
    taken = [f"the last {counted(number, 'record')} of {one}" for one, number in found.taken_out.items()]
    told = f"are compared without {' and '.join(taken)}" if taken else "are at the same place"
    return f"{here} {told}", "; ".join([_bolts(found, changed), *map(_told, found.states)])


def _print(cli: Cli, found: Difference, changed: Mapping[str, Any] | None) -> None:
    for words in in_words(found, changed):
        cli.print(words)
    cli.print_table(
        ["table", ">equal", ">only old", ">only new", ">different"],
        [(one.table, one.equal, one.only_old, one.only_new, one.different) for one in found.states],
    )
    for one in found.states:
        if one.note is not None:
            cli.say(f"{one.table}: {one.note}")
        if one.rows:
            _print_rows(cli, one)


def _bolts(found: Difference, changed: Mapping[str, Any] | None) -> str:
    if changed is None:
        return f"which components changed is known only where {found.old} and {found.new} were run last"
    words = f"{len(changed['changed'])} of {counted(changed['of'], 'component')} changed"
    words += f" ({', '.join(changed['changed'])})" if changed["changed"] else ""
    for which, said in (("only_new", "added"), ("only_old", "removed")):
        words += f", {', '.join(changed[which])} {said}" if changed[which] else ""
    return words


def _told(one: TableDifference) -> str:
    """Return what differs in a state, in words."""
    if one.only_in is not None:
        return f"state {one.table}: only in {one.only_in}"
    columns = [
        f"column{'s' if len(names) > 1 else ''} {', '.join(names)} {said}"
        for names, said in ((one.added, "added"), (one.removed, "removed"))
        if names
    ]
    rows = "rows differ" if one.only_old or one.only_new or one.different else "rows are the same"
    left_out = f", {counted(one.left_out, 'row')} left out" if one.left_out else ""
    return f"state {one.table}: {', '.join([*columns, rows])}{left_out}"


def _print_rows(cli: Cli, one: TableDifference) -> None:
    """Print the largest differences of a table: keys, then each value as it was and as it is."""
    some = one.rows[0]
    values = [*(some.old or some.new or {})]
    rows = [
        (
            *row.key.values(),
            *(None if side is None else side[name] for name in values for side in (row.old, row.new)),
        )
        for row in one.rows
    ]
    names = [f"{name} {which}" for name in values for which in ("old", "new")]
    cli.print_table([*some.key, *(f">{name}" for name in names)], rows)
    more = one.only_old + one.only_new + one.different - len(one.rows)
    if more > 0:
        cli.say(f"{counted(more, 'more row')} of {one.table} differ; --rows shows more")
