"""Remove every guard of `guards` that has a test, one at a time, and check that the test fails.

    python tools/check_guards.py                 # all; takes minutes, and real servers
    python tools/check_guards.py --only 5.1      # those whose name, test or promise contains this
    python tools/check_guards.py --markdown FILE
    python tools/check_guards.py --tables        # proves nothing, only updates the tables of the guides

The source is copied and only the copy is changed. The tests must pass before any guard is removed.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guards import GUARDS, Guard

ROOT = Path(__file__).resolve().parents[1]
GUIDES = (ROOT / "docs" / "guarantees.md", ROOT / "docs" / "semantics.md")
BELOW = ("spouts", "bolts", "examples", "migrations")  # the folders that install below `txstream`
SECONDS = 300.0


@dataclass(frozen=True)
class Proof:
    """The outcome of a test without its guard. `line` is what pytest says about the failure."""

    guard: Guard
    failed: bool
    line: str


class Copy:
    """A copy of the source, laid out as it installs, and of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "txstream", folder / "txstream", ignore=ignore)
        for name in BELOW:
            shutil.copytree(ROOT / name, folder / "txstream" / name, ignore=ignore)
        for name in ("tests", "tools", "docs", "benchmarks"):
            shutil.copytree(ROOT / name, folder / name, ignore=ignore)
        shutil.copy(ROOT / "pyproject.toml", folder)

    def path(self, file: str) -> Path:
        first = file.partition("/")[0]
        return self.folder / ("txstream" if first in BELOW else "") / file

    def without(self, guard: Guard) -> Proof:
        """Run the guard's test without the guard."""
        path = self.path(guard.file)
        text = path.read_text(encoding="utf-8")
        path.write_text(guard.patch.applied(text), encoding="utf-8")
        try:
            status, output = self.run(guard.test)
        finally:
            path.write_text(text, encoding="utf-8")
        broken = not guard.promise or f"promise {guard.promise!r} is broken" in output
        return Proof(guard, status == 1 and broken, failing_line(output))

    def run(self, *tests: str) -> tuple[int, str]:
        """Run tests. Returns pytest's exit status and output."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-W",
            "ignore",
            "-p",
            "no:cacheprovider",
            "-m",
            "",  # of both lanes
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            [*command, *tests],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS * len(tests),
        )
        return done.returncode, done.stdout


def failing_line(output: str) -> str:
    """Return where the test failed, and the first thing that pytest says about it."""
    said = [line[2:].strip() for line in output.splitlines() if line.startswith("E ")]
    said = [line for line in said if line != "AssertionError"]
    places = re.findall(r"^(\S+\.py:\d+): \w+", output, re.MULTILINE)
    last = (output.strip().splitlines() or ["no output"])[-1]
    return ": ".join([*places[-1:], *said[:1]]) or last


def markdown(proofs: Sequence[Proof]) -> str:
    """Return the proofs as a Markdown table."""
    rows = ["| clause | guard | test | without it |", "|---|---|---|---|"]
    for proof in proofs:
        guard = proof.guard
        test = re.sub(r"^tests/", "", guard.test)
        line = proof.line.replace("|", "\\|")[:150]
        said = f"fails: `{line}`" if proof.failed else "**does not fail**"
        rows.append(f"| {guard.clause} | {guard.what} (`{guard.file}`) | `{test}` | {said} |")
    return "\n".join(rows) + "\n"


# --- the guides ------------------------------------------------------------------------------------------


def place_of(guard: Guard) -> str:
    """Return the guard's file, and the innermost class and function, or the constant, that contains it."""
    text = (ROOT / guard.file).read_text(encoding="utf-8")
    if not guard.file.endswith(".py"):
        return f"[{guard.file}](../{guard.file})"
    names = []
    for node in guard.patch.around(text):
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and not names and isinstance(node.targets[0], ast.Name):
            names.append(node.targets[0].id)
    return f"[{Path(guard.file).name}](../{guard.file}) `{'.'.join(names)}`"


def table_of(clause: str) -> str:
    """Return the guards of a clause and of the clauses below it, as a guide shows them."""
    rows = ["| guard | where | fails without it |", "|---|---|---|"]
    for guard in GUARDS:
        if guard.test and (guard.clause == clause or guard.clause.startswith(f"{clause}.")):
            file, *names = guard.test.split("::")
            test = "::".join([Path(file).name, *names])
            promise = f": `{guard.promise}`" if guard.promise else ""
            rows.append(f"| {guard.what} | {place_of(guard)} | [`{test}`](../{file}){promise} |")
    return "\n".join(rows)


def table_of_mutants() -> str:
    """Return the table of mistakes that the simulation finds, with the stores' promises that they break."""
    rows = ["| mutant | what it does | what is found | broken promises |", "|---|---|---|---|"]
    for guard in GUARDS:
        if guard.mutant:
            shown = dict.fromkeys(f"`{hunt.shows.__name__}`" for hunt in guard.hunts)
            broken = ", ".join(f"`{promise}`" for promise in guard.broken)
            rows.append(f"| `{guard.mutant}` | {guard.does} | {', '.join(shown)} | {broken} |")
    return "\n".join(rows)


def with_tables(text: str) -> str:
    """Return the text of a guide with its tables brought up to date."""
    mutants = re.compile(r"(<!-- mutants -->\n).*?(<!-- end -->)", re.DOTALL)
    text = mutants.sub(lambda found: f"{found[1]}{table_of_mutants()}\n{found[2]}", text)
    pattern = re.compile(r"(<!-- guards of (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{table_of(found[2])}\n{found[3]}", text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args(arguments)
    if options.tables:
        for guide in GUIDES:
            guide.write_text(with_tables(guide.read_text(encoding="utf-8")), encoding="utf-8")
        return 0
    chosen = [
        guard
        for guard in GUARDS
        if guard.test and options.only in f"{guard.name} {guard.test} {guard.promise}"
    ]
    if not chosen:
        parser.error(f"no guard's name, test or promise has {options.only!r} in it")
    proofs: list[Proof] = []
    with tempfile.TemporaryDirectory(prefix="txstream-guards-") as folder:
        copy = Copy(Path(folder))
        status, output = copy.run(*sorted({guard.test for guard in chosen}))
        if status:
            print(output[-3000:])
            print("the tests must pass with every guard in place")
            return 1
        for guard in chosen:
            proof = copy.without(guard)
            proofs.append(proof)
            print(f"{'fails' if proof.failed else 'PASSES':<8}{guard.name}: {proof.line[:100]}", flush=True)
    if options.markdown is not None:
        options.markdown.write_text(markdown(proofs), encoding="utf-8")
    return 0 if all(proof.failed for proof in proofs) else 1


if __name__ == "__main__":
    sys.exit(main())
