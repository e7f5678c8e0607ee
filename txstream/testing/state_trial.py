"""One check over one store of states: topologies of its own in it, what is asked of them, and what broke.

Invariants:

- What the store raises, and a call that does not come back, breaks the promise that is being checked.
- Every topology and every table of a check has a name that no other check has, so all may share one store.
  What a check has made is deleted at its end.
- Every method of the store is called on a thread of the suite's own, never on the caller's.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, NoReturn, TypeVar

import pyarrow as pa

from txstream.api.errors import TxstreamError
from txstream.api.reducers import Reducer, Sum
from txstream.api.state import SqlState
from txstream.semantics import Semantics
from txstream.state import BatchRecord, Commit, FenceRow, StateBackend, TableSpec, open_database
from txstream.testing.spout_harness import NotApplicableError
from txstream.testing.spout_promises import BrokenPromise
from txstream.testing.spout_thread import NoAnswerError, SourceThread
from txstream.transaction import AttemptId, TransactionAttempt, Txid, attempt_id

PLANNED = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
PROCESSED = datetime(2026, 1, 2, 3, 4, 6, tzinfo=UTC)
LATER = Txid(2**62)
"""Later than every batch of a check: `read` before it gives what is stored now."""

FENCED = (Semantics.OPAQUE, Semantics.TRANSACTIONAL)

Answer = TypeVar("Answer")
Deltas = Mapping[Any, Any]
OpenStore = Callable[[], StateBackend]


class StateConformanceError(TxstreamError):
    """A store does not do what a topology relies on; `broken` has one entry for each broken promise."""

    def __init__(self, *broken: BrokenPromise) -> None:
        super().__init__("\n".join(str(promise) for promise in broken))
        self.broken = broken


@dataclass(frozen=True, slots=True)
class Terms:
    """How a store is tried.

    open: opens the store, each time the same one, as a driver and its executors do; several may be open.
    url: what other processes open it by, where they can.
    lock_seconds: how long a raise of the fence waits for a transaction that is held open.
    deadline_seconds: how long any call may take. Much more than it needs, for a busy machine.
    """

    open: OpenStore
    url: str | None = None
    lock_seconds: float = 0.2
    deadline_seconds: float = 30.0


Store = str | OpenStore
"""A URL, or a function that opens the store: at every call the same one."""


def terms_of(store: Store, **options: float) -> Terms:
    """The terms of a store that is given by its URL or by how it is opened."""
    if isinstance(store, str):
        url = store
        return Terms(lambda: open_database(url), url, **options)
    return Terms(store, None, **options)


@dataclass(frozen=True, slots=True)
class StateCheck:
    """One promise and how it is tried. `str()` is its name, so that it can be a test's id."""

    name: str
    rule: str
    hint: str
    function: Callable[[StateTrial], None]

    def __str__(self) -> str:
        return self.name

    def run(self, store: Store) -> str | None:
        """Try it on a store, given by its URL or by a function that opens it. Returns why it does not apply,
        None when the promise is kept. Raises StateConformanceError when it is broken."""
        return self.try_on(terms_of(store))

    def try_on(self, terms: Terms) -> str | None:
        """As `run`."""
        trial = StateTrial(self, terms)
        try:
            self.function(trial)
        except NotApplicableError as reason:
            return str(reason)
        finally:
            trial.close()
        return None


def promise(name: str, rule: str, hint: str) -> Callable[[Callable[[StateTrial], None]], StateCheck]:
    """Makes a check of a function that tries one promise."""

    def decorate(function: Callable[[StateTrial], None]) -> StateCheck:
        return StateCheck(name, rule, hint, function)

    return decorate


class StateTrial:
    """What checks are written with."""

    def __init__(self, check: StateCheck, terms: Terms) -> None:
        self.check = check
        self.terms = terms
        self._thread = SourceThread()
        self._threads = [self._thread]
        self._opened: list[StateBackend] = []
        self._topologies: list[str] = []
        self._numbers = itertools.count(1)
        self._name = f"c{uuid.uuid4().hex[:12]}"
        self.store = self.open()

    # --- the store ---------------------------------------------------------------------------------------

    def open(self) -> StateBackend:
        """One more opening of the store."""
        opened = self.ask("the store is opened", self.terms.open)
        self._opened.append(opened)
        return opened

    def life(self, semantics: Semantics = Semantics.OPAQUE, **options: Any) -> Life:
        """A topology with a table, joined."""
        life = self.stranger(semantics, **options)
        self.ask("framework tables are ensured", self.store.ensure_framework_tables)
        life.join()
        return life

    def stranger(self, semantics: Semantics = Semantics.OPAQUE, **options: Any) -> Life:
        """A topology that the store knows nothing of."""
        name = self.name()
        self._topologies.append(name)
        return Life(self, self.store, name, semantics, table(f"t_{name}", semantics, **options))

    def name(self) -> str:
        """A name that nothing else has."""
        return f"{self._name}_{next(self._numbers)}"

    def close(self) -> None:
        """Delete what was made, close what was opened, whatever the store does about it."""
        with contextlib.suppress(Exception):  # that it can be deleted and closed are promises of their own
            for topology in self._topologies:
                self._call(partial(self.store.delete, topology, drop_state=True))
        for opened in self._opened:
            with contextlib.suppress(Exception):
                self._call(opened.close)
        for thread in self._threads:
            thread.close()

    # --- asking ------------------------------------------------------------------------------------------

    def ask(self, what: str, call: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        """What the store answers; whatever it raises breaks the promise."""
        try:
            return self._call(lambda: call(*arguments, **options))
        except (StateConformanceError, NotApplicableError):
            raise
        except NoAnswerError as error:
            self.fail(f"an answer when {what}", f"none within {self.terms.deadline_seconds:g} s", cause=error)
        except Exception as error:  # noqa: BLE001 - every failure of the store is told, with its cause
            self.fail(f"an answer when {what}", tell(error), cause=error)

    def refused(
        self, what: str, kinds: type[TxstreamError] | tuple[type[TxstreamError], ...], call: Callable[[], Any]
    ) -> TxstreamError:
        """The error of one of `kinds` that the store answers with; anything else breaks the promise."""
        kinds = kinds if isinstance(kinds, tuple) else (kinds,)
        expected = f"{' or '.join(kind.__name__ for kind in kinds)} when {what}"
        found = self.outcome(expected, call)
        if not isinstance(found, Exception):
            self.fail(expected, f"no error, but {found!r:.200}")
        if not isinstance(found, kinds):
            self.fail(expected, tell(found), cause=found)
        return found

    def outcome(self, what: str, call: Callable[[], Answer]) -> Answer | Exception:
        """What the store answers or raises."""
        try:
            return self._call(call)
        except StateConformanceError:
            raise
        except NoAnswerError as error:
            self.fail(what, f"neither answer nor error in {self.terms.deadline_seconds:g} s", cause=error)
        except Exception as error:  # noqa: BLE001 - handed to the caller
            return error

    def beside(self, call: Callable[[], Any]) -> Beside:
        """Begin a call on a thread of its own."""
        thread = SourceThread()
        self._threads.append(thread)
        return Beside(self, thread, call)

    def _call(self, call: Callable[[], Answer]) -> Answer:
        return self._thread.call(call, self.terms.deadline_seconds)

    # --- telling -----------------------------------------------------------------------------------------

    def fail(self, expected: str, found: str, *, cause: BaseException | None = None) -> NoReturn:
        check = self.check
        raise StateConformanceError(
            BrokenPromise(check.name, check.rule, expected, found, check.hint)
        ) from cause

    def require(self, what: str, expected: Any, found: Any) -> None:
        """Equal, or the promise is broken. `what` is a clause: "the values after a replay"."""
        if expected != found:
            self.fail(f"{what}: {expected!r:.300}", f"{found!r:.300}")


class Beside:
    """A call on another thread."""

    def __init__(self, trial: StateTrial, thread: SourceThread, call: Callable[[], Any]) -> None:
        self._trial = trial
        self._future = thread.begin(call)

    def outcome(self, what: str) -> Any:
        """What it returned, or the exception that it raised; the promise is broken if it does not end."""
        if not self.ended(self._trial.terms.deadline_seconds):
            self._trial.fail(what, f"neither answer nor error in {self._trial.terms.deadline_seconds:g} s")
        error = self._future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return self._future.result() if error is None else error

    def ended(self, within_seconds: float) -> bool:
        """Has it come to its end?"""
        with contextlib.suppress(TimeoutError):
            self._future.exception(within_seconds)
        return self._future.done()


@dataclass
class Life:
    """One life of a topology with one table, through one opening of the store. Keys are those that it has
    written so far."""

    trial: StateTrial
    store: StateBackend
    topology: str
    semantics: Semantics
    spec: TableSpec
    uuid: str = "uuid-1"
    epoch: int = 1
    keys: dict[Any, None] = field(default_factory=dict)
    sequence: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def at(self, store: StateBackend) -> Life:
        """The same life through another opening."""
        return Life(
            self.trial,
            store,
            self.topology,
            self.semantics,
            self.spec,
            self.uuid,
            self.epoch,
            self.keys,
            self.sequence,
        )

    def next(self, txid: int) -> TransactionAttempt:
        """A new attempt."""
        return TransactionAttempt(Txid(txid), attempt_id(self.epoch, next(self.sequence)))

    def whole(self, attempt: TransactionAttempt, deltas: Deltas | None = None, **options: Any) -> Commit:
        """The commit of an attempt, with deltas for the table."""
        tables = {} if deltas is None else {self.spec.state.table: self.table_of(deltas)}
        return Commit(
            attempt=attempt,
            metas=options.pop("metas", {"partitions": {"p": {"start": attempt.txid}}}),
            deltas={**tables, **options.pop("more", {})},
            tuples=options.pop("tuples", 7),
            planned_at=PLANNED,
            processed_at=PROCESSED,
            **options,
        )

    def table_of(self, deltas: Deltas) -> pa.Table:
        """{"a": 1} for one key and one value; tuples for several."""
        self.keys.update(dict.fromkeys(deltas))
        return to_table(self.spec, deltas)

    # --- calls, unguarded: for `refused`, `outcome` and `beside` ------------------------------------------

    def joining(self, *, first_run: bool = True, tables: Sequence[TableSpec] = (), **options: Any) -> None:
        self.store.join(
            self.topology,
            self.uuid,
            tables or [self.spec],
            semantics=self.semantics,
            first_run=first_run,
            **options,
        )

    def committing(self, attempt: TransactionAttempt, deltas: Deltas | None, **options: Any) -> None:
        reached = options.pop("reached", _nobody)
        tables = options.pop("tables", [self.spec])
        commit = self.whole(attempt, deltas, **options)
        self.store.commit(self.topology, self.uuid, tables, commit, semantics=self.semantics, reached=reached)

    def beginning(self, attempt: TransactionAttempt, deltas: Deltas | None = None, **options: Any) -> None:
        reached = options.pop("reached", _nobody)
        commit = self.whole(attempt, deltas, **options)
        self.store.begin_commit(
            self.topology, self.uuid, [self.spec], commit, semantics=self.semantics, reached=reached
        )

    def writing(self, attempt: TransactionAttempt, deltas: Deltas) -> int:
        writes = [(self.spec, self.table_of(deltas))]
        return self.store.write(self.topology, self.uuid, attempt, writes, semantics=self.semantics)

    def ending(
        self, attempt: TransactionAttempt, deltas: Deltas | None = None, *, keys: int = 0, **options: Any
    ) -> None:
        reached = options.pop("reached", _nobody)
        commit = self.whole(attempt, deltas, **options)
        self.store.end_commit(
            self.topology,
            self.uuid,
            [self.spec],
            commit,
            semantics=self.semantics,
            keys=keys,
            reached=reached,
        )

    def raising(self, attempt: AttemptId, **options: Any) -> None:
        self.store.raise_fence(self.topology, self.uuid, attempt, **options)

    # --- calls that must be answered ----------------------------------------------------------------------

    def join(self, **options: Any) -> Life:
        self.trial.ask("a topology joins", self.joining, **options)
        return self

    def commit(self, txid: int, deltas: Deltas | None, **options: Any) -> TransactionAttempt:
        """Driver path, under a new attempt."""
        attempt = self.next(txid)
        self.trial.ask(f"{attempt} is committed", self.committing, attempt, deltas, **options)
        return attempt

    def begin(self, txid: int, deltas: Deltas | None = None) -> TransactionAttempt:
        """Executor path, under a new attempt."""
        attempt = self.next(txid)
        self.trial.ask(f"{attempt} begins", self.beginning, attempt, deltas)
        return attempt

    def write(self, attempt: TransactionAttempt, deltas: Deltas) -> int:
        return self.trial.ask(f"a task of {attempt} writes", self.writing, attempt, deltas)

    def end(self, attempt: TransactionAttempt, deltas: Deltas | None = None, *, keys: int = 0) -> None:
        self.trial.ask(f"{attempt} ends", self.ending, attempt, deltas, keys=keys)

    def raise_fence(self, epoch: int, sequence: int = 0) -> AttemptId:
        attempt = attempt_id(epoch, sequence)
        self.trial.ask("the fence is raised", self.raising, attempt)
        return attempt

    # --- what is stored -----------------------------------------------------------------------------------

    def values(self, before: int = LATER) -> dict[Any, Any]:
        """key -> value of all keys that were written so far; tuples for several columns."""
        return self.read(list(self.keys), before)

    def read(self, keys: Sequence[Any], before: int = LATER, spec: TableSpec | None = None) -> dict[Any, Any]:
        spec = spec or self.spec
        found = self.trial.ask(
            "keys are read", self.store.read, spec, keys_table(spec, keys), before=Txid(before)
        )
        state = spec.state
        schema = pa.schema([*state.key_schema, *state.value_schema])
        if not isinstance(found, pa.Table) or not found.schema.remove_metadata().equals(schema):
            other = getattr(found, "schema", None)
            shown = f"{found!r:.200}" if other is None else f"{other.to_string()!r:.300}"
            self.trial.fail(f"a table of {schema.to_string()!r}", shown)
        return by_key(spec, found)

    def fence(self) -> FenceRow:
        found = self.trial.ask("the fence is read", self.store.read_fence, self.topology)
        if found is None:
            self.trial.fail(f"a fence of {self.topology}, which has joined", "None")
        return found

    def batch(self, txid: int) -> BatchRecord:
        found = self.trial.ask("a batch is looked up", self.store.batch, self.topology, txid)
        if found is None:
            self.trial.fail(f"a row of the ledger for txid {txid}", "None")
        return found

    def everything(self) -> tuple[Any, ...]:
        """All that is stored, to be compared with what is stored later."""
        ledger = self.trial.ask("the ledger is read", self.store.batches, self.topology)
        fence = self.trial.ask("the fence is read", self.store.read_fence, self.topology)
        return self.values(), ledger, fence

    @contextlib.contextmanager
    def unchanged(self, what: str) -> Iterator[None]:
        """What happens inside leaves nothing behind."""
        before = self.everything()
        yield
        names = ("the values", "the ledger", "the fence")
        for name, one, other in zip(names, before, self.everything(), strict=True):
            self.trial.require(f"{name}, unchanged by {what}", one, other)


def table(
    name: str,
    semantics: Semantics = Semantics.OPAQUE,
    *,
    key: str = "word string",
    value: str = "n bigint",
    reducers: Mapping[str, Reducer] | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> TableSpec:
    """A state table, by default a word count."""
    state = SqlState(name, key=key, value=value, defaults=defaults or {})
    return TableSpec(state, semantics, reducers or {column: Sum(column) for column in state.value_names})


def to_table(spec: TableSpec, deltas: Deltas) -> pa.Table:
    """Key and value columns of {key: value}."""
    schema = pa.schema([*spec.state.key_schema, *spec.state.value_schema])
    rows = [(*_tuple(key), *_tuple(value)) for key, value in deltas.items()]
    columns = [pa.array([row[place] for row in rows], f.type) for place, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def keys_table(spec: TableSpec, keys: Sequence[Any]) -> pa.Table:
    """The key columns of these keys."""
    rows = [_tuple(key) for key in keys]
    schema = spec.state.key_schema
    columns = [pa.array([row[place] for row in rows], f.type) for place, f in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def by_key(spec: TableSpec, rows: pa.Table) -> dict[Any, Any]:
    """{key: value} of key and value columns."""
    found = {}
    for row in rows.to_pylist():
        key = tuple(row[name] for name in spec.state.key_names)
        value = tuple(row[name] for name in spec.state.value_names)
        found[key if len(key) > 1 else key[0]] = value if len(value) > 1 else value[0]
    return found


def tell(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _tuple(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def _nobody(_point: str) -> None:
    return
