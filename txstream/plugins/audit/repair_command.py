"""`txstream fsck` and `txstream recover`: find what does not fit together, and mend it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.code import Parameters
from txstream.cli.context import Cli, ask, print_error
from txstream.cli.options import Id, command
from txstream.cli.tables import escaped
from txstream.core.errors import UsageError

if TYPE_CHECKING:
    from txstream.api.topology import Topology

Target = Annotated[
    str | None,
    typer.Option("--topology", metavar="MODULE:FACTORY", help="The topology's code, where it is needed."),
]


def register(app: typer.Typer) -> None:
    command(app, "fsck", state_databases=True)(fsck)
    command(app, "recover", state_databases=True)(recover)


def fsck(cli: Cli, topology_id: Id, target: Target = None, parameter: Parameters = None) -> int:
    """Check that ZooKeeper, databases and source fit together. Exit status 1 if not."""
    from txstream import inspect

    code = load_code(topology_id, target, parameter)
    report = inspect.fsck(topology_id, cli.resolve(), topology=code)
    if cli.as_json:
        from txstream.inspect.json_documents import document

        cli.print_json({**document(report), "is_clean": report.is_clean})
        return 0 if report.is_clean else 1
    for sentence in report.checked:
        cli.say(f"checked {sentence}")
    for finding in report.findings:
        cli.print(f"{finding.severity.upper():<8} {finding.code}, {finding.where}")
        cli.print(f"         {escaped(finding.what)}")
        cli.print(f"         to mend it: {finding.remedy}")
    if report.is_clean:
        cli.print(f"{topology_id}: all is well")
        return 0
    wrong = sum(finding.severity is not inspect.Severity.NOTE for finding in report.findings)
    cli.print(f"{topology_id}: {wrong} finding{'s' if wrong > 1 else ''} to look at")
    return 1


def recover(
    cli: Cli,
    topology_id: Id,
    from_ledger: Annotated[
        bool, typer.Option("--from-ledger", help="From the ledgers of its databases: the only way.")
    ] = False,
    target: Target = None,
    parameter: Parameters = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Rebuild a topology in ZooKeeper from its databases. For when it was lost there, or is an old copy."""
    from txstream import inspect

    if not from_ledger:
        raise UsageError(
            f"say from what: txstream recover {topology_id} --from-ledger rebuilds ZooKeeper from the "
            "ledgers in the topology's databases"
        )
    code = load_code(topology_id, target, parameter)

    def confirm(problem: str) -> bool:
        if not yes:
            print_error(problem)
        ask(f"Rebuild {topology_id} in ZooKeeper from its ledgers?", yes=yes)
        return True

    found = inspect.recover(
        topology_id,
        cli.resolve(),
        topology=code,
        confirm=confirm,
    )
    if cli.as_json:
        from txstream.inspect.json_documents import document

        cli.print_json(document(found))
        return
    if found.problem is None:
        nothing = "nothing is wrong that a rebuild would mend"
        cli.print(f"{topology_id}: {nothing}; txid {found.current_txid} commits next")
        return
    cli.say(f"{topology_id}: {found.problem}")
    for change in found.changes:
        cli.say(f"{topology_id}: {change}")
    again = " again, in every database, since it was committed in part" if found.again else ""
    cli.print(
        f"{topology_id}: rebuilt from {len(found.fences)} ledger{'s' if len(found.fences) > 1 else ''} under "
        f"epoch {found.epoch}; `txstream run` goes on with txid {found.current_txid}{again}"
    )


def load_code(topology_id: str, target: str | None, parameter: list[str] | None) -> Topology | None:
    """Return the topology that --topology names, under this id. Raises UsageError, FactoryError."""
    if target is None:
        if parameter:
            raise UsageError("-p is for the factory of --topology MODULE:FACTORY; give that, too")
        return None
    from txstream.cli.factory import load_topology

    return load_topology(target, parameter or []).with_id(topology_id)
