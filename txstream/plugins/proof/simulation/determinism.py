"""Runs each bolt again on the same input, in another process, and says which one emits something else.

In the other process hashes have another seed, the clock has moved, and `random` and `uuid` begin anew, as in
every new process. There each bolt sees its input twice, so that what it keeps in a global shows too. Batches
of one row tell which input it was; one batch of all rows shows what depends on several.

Invariant: a bolt is given exactly what it was given before. So it alone is to blame, and not how batches were
cut, nor a bolt above it.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import multiprocessing
import os
import pickle
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

from txstream.api.topology import Topology
from txstream.core.errors import TxstreamError
from txstream.plugins.proof.simulation.plain_fold import (
    Batch,
    Emitted,
    Inboxes,
    PlainFold,
    Runner,
    Spec,
    Tables,
    equal,
)

_MOST_ROWS = 100
"""So many rows come alone, and ten times as many together."""
_MOVED_SECONDS = 400 * 86_400 + 7 * 3_600 + 13 * 60 + 17.3
"""Another year, month, day of the week, hour, minute and second."""
_NOT_LOADED = 3  # the status of a process that cannot import the bolts
_HASH_SEEDS = ("1", "2")
_SHOWN = 60  # characters of a value
_WHY = "it reads a clock, chance, a global or the order of a set"


class NotDeterministicError(TxstreamError):
    """The same input gave other tuples."""


class _Again(NamedTuple):
    """What a bolt made of its inputs in one go: what it emitted, by batch, and what its tables hold."""

    emitted: list[list[Emitted]]
    tables: Tables


_Work = list[tuple[Spec, list[Inboxes]]]


def check_determinism(topology: Topology, rows: Batch, addresses: Mapping[str, str] | None = None) -> None:
    """Raise NotDeterministicError, which names the bolt and the input, if a bolt emits or writes something
    else when it gets the same input again. Raises what the bolts raise."""
    for told in findings(topology, rows, addresses):
        raise NotDeterministicError(told)


def findings(topology: Topology, rows: Batch, addresses: Mapping[str, str] | None = None) -> list[str]:
    """Return a sentence for each bolt that emits or writes something else when it gets the same input again,
    from the spout down. Raises what the bolts raise."""
    fold = _folded(topology, rows, addresses or {})
    work: _Work = [
        (runner.spec, [inboxes for inboxes, _ in fold.calls[component]])
        for component, runner in fold.runners.items()
    ]
    found: list[str] = []
    for (component, runner), answers in zip(fold.runners.items(), _elsewhere(work), strict=True):
        calls = fold.calls[component]
        first = _Again([emitted for _, emitted in calls], runner.tables)
        inputs = [inboxes for inboxes, _ in calls]
        told = [one for again in answers if (one := _compared(component, inputs, first, again))]
        if not told:
            told = [one for again in answers if (one := _reordered(fold, rows, component, first, again))]
        found += told[:1]
    return found


def _reordered(fold: PlainFold, rows: Batch, component: str, first: _Again, again: _Again) -> str | None:
    """Say what comes of the order of a bolt's tuples, if it has changed and a table depends on it."""
    if repr(_tuples(first.emitted)) == repr(_tuples(again.emitted)):
        return None
    told = _folded(fold.topology, rows, fold.addresses, {component: again.emitted}).tables()
    for table, values in fold.tables().items():
        if not equal(told[table], values):
            return (
                f"component {component!r} emitted the same tuples in another order for the same input, and "
                f"table {table!r} depends on that order; {_WHY}"
            )
    return None


def _folded(
    topology: Topology,
    rows: Batch,
    addresses: Mapping[str, str],
    replaced: Mapping[str, Sequence[list[Emitted]]] | None = None,
) -> PlainFold:
    fold = PlainFold(topology, keeps_calls=True, addresses=addresses, replaced=replaced or {})
    try:
        for batch in _batches(rows):
            fold.add(batch)
    finally:
        fold.close()
    return fold


def _batches(rows: Batch) -> Iterator[Batch]:
    most = max((some.num_rows for some in rows.values()), default=0)
    alone = ({name: some.slice(at, 1)} for at in range(most) for name, some in rows.items())
    yield from islice((one for one in alone if any(some.num_rows for some in one.values())), _MOST_ROWS)
    each = -(-10 * _MOST_ROWS // max(1, len(rows)))
    yield {name: some.slice(0, each) for name, some in rows.items()}


def _compared(component: str, inputs: Sequence[Inboxes], first: _Again, again: _Again) -> str | None:
    """Say what a bolt emitted or wrote differently, if it did."""
    for inboxes, then, now in zip(inputs, first.emitted, again.emitted, strict=True):
        one, other = _tuples([then]), _tuples([now])
        if Counter(map(repr, one)) != Counter(map(repr, other)):
            return (
                f"component {component!r} emitted other tuples for the same input: {_first_of(one, other)} "
                f"then {_first_of(other, one)}; {_WHY}. The input was {_given(inboxes)}"
            )
    for name, values in first.tables.items():
        for key in {**values, **again.tables[name]}:
            before, after = values.get(key), again.tables[name].get(key)
            if repr(before) != repr(after):
                return (
                    f"component {component!r} wrote other values for the same input: {_shown(before)} then "
                    f"{_shown(after)}; {_WHY}. The key was {_shown(key)}"
                )
    return None


_Placed = tuple[str, int, int | None, tuple[Any, ...]]
"""A tuple with where it goes: its stream, the task that emitted it, the task that was chosen."""


def _tuples(batches: Iterable[Iterable[Emitted]]) -> list[_Placed]:
    return [
        (one.stream, one.task, one.direct, values)
        for emitted in batches
        for one in emitted
        for values in zip(*(column.to_pylist() for column in one.rows.columns), strict=True)
    ]


def _first_of(some: Sequence[_Placed], others: Sequence[_Placed]) -> str:
    """Show the first tuple of `some` that is not among the others."""
    left = Counter(map(repr, others))
    for one in some:
        left[repr(one)] -= 1
        if left[repr(one)] < 0:
            return _shown(one[-1])
    return "nothing"


def _given(inboxes: Inboxes) -> str:
    deliveries = [delivery for inbox in inboxes for delivery in inbox]
    rows = sum(delivery.rows.num_rows for delivery in deliveries)
    if not rows:
        return "an empty batch"
    first = deliveries[0]
    values = _shown(tuple(column[0].as_py() for column in first.rows.columns))
    more = f" and {rows - 1:,} more" if rows > 1 else ""
    return f"{values} of {first.source!r}{more}"


def _shown(values: tuple[Any, ...] | None) -> str:
    return "nothing" if values is None else f"({', '.join(str(value)[:_SHOWN] for value in values)})"


# --- the other process -------------------------------------------------------------------------------------


def _elsewhere(work: _Work) -> list[list[_Again]]:
    """Return what another process makes of the inputs, twice for each bolt."""
    seed = next(one for one in _HASH_SEEDS if one != os.environ.get("PYTHONHASHSEED"))
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import _main; _main()"],
        input=pickle.dumps((sys.path, pickle.dumps(work))),
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        check=False,
    )
    if done.returncode != _NOT_LOADED:
        if done.returncode:
            raise TxstreamError(f"a process that ran bolts again ended with status {done.returncode}")
        found, error = pickle.loads(done.stdout)  # noqa: S301 - made by `_main`
        if error is not None:
            raise error
        answers: list[list[_Again]] = found
        return answers
    # A new process cannot import the code, as when a test has made its module. A copy of this one can, but
    # its hashes are the same.
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        return pool.submit(_moved, work).result()


def _main() -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # what bolts print must not be in the answer
    paths, work = pickle.load(sys.stdin.buffer)  # noqa: S301 - made by `_elsewhere`
    sys.path[:] = paths
    _move_clock(_MOVED_SECONDS)  # before the user's modules take functions from `time`
    try:
        loaded = pickle.loads(work)  # noqa: S301
        for spec, _ in loaded:
            pickle.loads(spec.pickled)  # noqa: S301
    except Exception:  # noqa: BLE001 - importing the user's modules may raise anything
        sys.exit(_NOT_LOADED)
    found: list[list[_Again]] | None = None
    wrong: Exception | None = None
    try:
        found = _run(loaded)
    except TxstreamError as error:
        wrong = error
    with os.fdopen(answer, "wb") as file:
        file.write(pickle.dumps((found, wrong)))


def _moved(work: _Work) -> list[list[_Again]]:
    _move_clock(_MOVED_SECONDS)
    random.seed()
    return _run(work)


def _run(work: _Work) -> list[list[_Again]]:
    return [[_once(spec, inputs) for _ in range(2)] for spec, inputs in work]


def _once(spec: Spec, inputs: Sequence[Inboxes]) -> _Again:
    runner = Runner(spec)
    try:
        return _Again([runner.run(txid, inboxes) for txid, inboxes in enumerate(inputs, 1)], runner.tables)
    finally:
        runner.close()


def _move_clock(seconds: float) -> None:
    """Move every clock of this process by so many seconds, for ever."""
    nanoseconds = int(seconds * 1e9)
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, _plus(getattr(time, name), seconds))
        setattr(time, f"{name}_ns", _plus(getattr(time, f"{name}_ns"), nanoseconds))
    localtime, gmtime, strftime = time.localtime, time.gmtime, time.strftime
    time.localtime = lambda at=None: localtime(time.time() if at is None else at)
    time.gmtime = lambda at=None: gmtime(time.time() if at is None else at)
    time.strftime = lambda form, at=None: strftime(form, time.localtime() if at is None else at)
    moment, step = datetime.datetime, datetime.timedelta(seconds=seconds)
    now, utcnow = moment.now, moment.utcnow
    # A class in C takes no attributes, but its dictionary does. A subclass in its place would not do: values
    # would be of another type than those that are made elsewhere.
    (methods,) = gc.get_referents(vars(moment))
    methods["now"] = classmethod(lambda _, tz=None: now(tz) + step)
    methods["utcnow"] = classmethod(lambda _: utcnow() + step)
    methods["today"] = classmethod(lambda _: now() + step)
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(moment))


def _plus(clock: Callable[[], Any], more: float) -> Callable[[], Any]:
    return lambda: clock() + more
