"""How far a run is, on standard error: a bar on a terminal, otherwise a line now and then."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from txstream.cli.context import Cli, print_error
from txstream.core.transaction import Txid, about
from txstream.core.wording import counted
from txstream.inspect.health import Word, health

if TYPE_CHECKING:
    from txstream.engine.loop.report import RunProgress

Show = Callable[["RunProgress"], None]

_LINE_SECONDS = 10.0
_FIRST_LINE_SECONDS = 3.0


@contextlib.contextmanager
def shown_progress(cli: Cli, clock: Callable[[], float] = time.monotonic) -> Iterator[Show]:
    """Yield a function that shows a snapshot, for use inside the block. `clock` is in seconds."""
    if cli.quiet:
        yield lambda _: None
    elif sys.stderr.isatty() and cli.as_json_lines is None:
        with _bar(cli) as show:
            yield show
    else:
        yield _Lines(clock)


class _Lines:
    """Prints a line every ten seconds. The first comes sooner, so that a start that hangs says what it waits
    for. A line is not repeated."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next = clock() + _FIRST_LINE_SECONDS
        self._said = ""

    def __call__(self, progress: RunProgress) -> None:
        if self._clock() < self._next:
            return
        self._next = self._clock() + _LINE_SECONDS
        line = f"{progress.topology}: {describe(progress)}"
        if line != self._said:
            self._said = line
            with about(Txid(progress.committed_txid) or None):
                print_error(line)


def describe(progress: RunProgress) -> str:
    """Describe a snapshot in a few words."""
    trees = progress.trees
    if trees is not None:
        words = [counted(progress.records, "tuple"), f"{counted(trees.open, 'tree')} open"]
        words += [f"{trees.acked:,} acked", f"{trees.failed:,} failed or timed out"]
        return ", ".join(words if progress.waiting_for is None else [*words, progress.waiting_for])
    if progress.waiting_for and not progress.active:
        return progress.waiting_for
    words = [f"txid {progress.committed_txid:,} committed"]
    if progress.active:
        words.append(f"{len(progress.active)} open")
    words.append(counted(progress.records, "record"))
    if progress.lag_records is not None:
        words.append(f"{progress.lag_records:,} to go")
    if progress.failed_attempts:
        words.append(counted(progress.failed_attempts, "failed attempt"))
    if progress.dead_letters:
        words.append(counted(progress.dead_letters, "dead letter"))
    state = health(progress.waits, progress.failing, progress.left_out)
    if state.word is not Word.HEALTHY:
        words.append(str(state))
    elif progress.waiting_for:  # of a tier that has no `waits`
        words.append(f"waiting for {progress.waiting_for}")
    return ", ".join(words)


@contextlib.contextmanager
def _bar(cli: Cli) -> Iterator[Show]:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
    )
    # transient: only the report stays on the screen.
    with Progress(*columns, console=cli.error_console(), transient=True, refresh_per_second=5) as bar:
        task = bar.add_task("starting", total=None)

        def show(progress: RunProgress) -> None:
            total = None if progress.lag_records is None else progress.records + progress.lag_records
            bar.update(
                task,
                description=describe(progress),
                completed=progress.records,
                total=total or None,
            )

        yield show
