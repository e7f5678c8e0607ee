"""A replay as JUnit XML, as CI servers show it: one case for each table in each batch."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree as ET

from txstream.core.errors import TxstreamError, UsageError
from txstream.core.wording import counted, printable

if TYPE_CHECKING:
    from txstream.plugins.audit.key_differences import KeyDifference
    from txstream.plugins.audit.replaying import Replay


def write_replay(file: Path, found: Replay) -> None:
    """Write the file. A table that differs is a failure, one that could not be compared is skipped, and so is
    nothing at all a failure. Raises UsageError for a file that cannot be written."""
    suite = _Suite(f"txstream replay {found.topology}")
    for batch in found.batches:
        if batch.differs:
            suite.case(f"txid {batch.txid}", "records").fails("made from something else", batch.differs)
        for table in batch.tables:
            case = suite.case(f"txid {batch.txid}", table.table)
            if table.same is None:
                case.skipped(table.note or "not compared")
            elif not table.same:
                what = f"{', '.join(table.differs)}: {table.rows_written} rows written, {table.rows} replayed"
                mine = [one for one in found.differences if one.table == table.table]
                case.fails(what, [shown(one) for one in mine if batch.txid in one.txids])
    if not found.shown:
        suite.case("all batches", "something is compared").fails("nothing was shown", ())
    suite.write(file)


def write_error(file: Path, topology_id: str, error: TxstreamError) -> None:
    """Write the file for a replay that could not be made."""
    suite = _Suite(f"txstream replay {topology_id}")
    suite.case("all batches", "replay").raises(error)
    suite.write(file)


def shown(one: KeyDifference) -> str:
    """Return a difference in a line."""
    key = ", ".join(f"{name} {value}" for name, value in one.key.items())
    only = "" if one.only is None else f", only {one.only}"
    return f"{one.table}, {key}: {by_words(one)}{only}, in {counted(len(one.txids), 'batch', 'batches')}"


def by_words(one: KeyDifference) -> str:
    """Return by how much the values of a key differ."""
    found = (f"{name} differs" if by is None else f"{name} {by:+,}" for name, by in one.by.items())
    return ", ".join(found) or "removed by one of the two"


class _Suite:
    def __init__(self, name: str) -> None:
        self._root = ET.Element("testsuite", name=name)
        self._counts = dict.fromkeys(("tests", "failures", "errors", "skipped"), 0)
        self._case = self._root

    def case(self, classname: str, name: str) -> _Suite:
        self._counts["tests"] += 1
        self._case = ET.SubElement(self._root, "testcase", classname=classname, name=printable(name))
        return self

    def fails(self, message: str, lines: Iterable[object]) -> None:
        self._counts["failures"] += 1
        found = ET.SubElement(self._case, "failure", message=printable(message))
        found.text = "\n".join(printable(str(line)) for line in lines)

    def skipped(self, message: str) -> None:
        self._counts["skipped"] += 1
        ET.SubElement(self._case, "skipped", message=printable(message))

    def raises(self, error: TxstreamError) -> None:
        self._counts["errors"] += 1
        ET.SubElement(self._case, "error", type=type(error).__name__, message=printable(str(error)))

    def write(self, file: Path) -> None:
        for name, number in self._counts.items():
            self._root.set(name, str(number))
        try:
            ET.ElementTree(self._root).write(file, encoding="utf-8", xml_declaration=True)
        except OSError as problem:
            raise UsageError(f"--junit {file} cannot be written: {problem.strerror or problem}") from problem
