"""One check over one store: creates topologies of its own in it, calls the store, and reports what broke.

Invariants:

- Every topology and every table of a check has a unique name, so all checks may share one store. What a check
  has created is deleted at its end.
- Every method of the store is called on one of the suite's own threads.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from txstream.core.errors import TxstreamError
from txstream.core.semantics import Semantics
from txstream.plugins.proof.call_thread import CallThread
from txstream.plugins.proof.promises import Check, ConformanceError, Trial, described
from txstream.plugins.proof.state_suite.life import Life, table
from txstream.state import StateBackend, TableSpec, open_database

FENCED = (Semantics.OPAQUE, Semantics.TRANSACTIONAL)

OpenStore = Callable[[], StateBackend]


class StateConformanceError(ConformanceError):
    """A store breaks a promise that topologies rely on."""


@dataclass(frozen=True, slots=True)
class Terms:
    """How a store is checked.

    open: opens the store, always the same one, as a driver and its executors do. It may be open several
    times. url: the URL by which other processes open it, if they can.
    lock_seconds: how long a raise of the fence waits for a transaction that is held open.
    deadline_seconds: how long any call may take. Much longer than needed, for a busy machine.
    """

    open: OpenStore
    url: str | None = None
    lock_seconds: float = 0.2
    deadline_seconds: float = 30.0


Store = str | OpenStore
"""A URL, or a function that opens the store, the same one at every call."""


def terms_of(store: Store, **options: float) -> Terms:
    """Return the terms of a store given by its URL or by a function that opens it."""
    if isinstance(store, str):
        return Terms(partial(open_database, store), store, **options)
    return Terms(store, None, **options)


class StateCheck(Check["StateTrial"]):
    """One promise of a store."""

    __slots__ = ()

    def run(self, store: Store) -> str | None:
        """Run the check on a store, given by its URL or by a function that opens it. Returns why the promise
        does not apply, None when it is kept. Raises StateConformanceError when it is broken."""
        return self.try_on(terms_of(store))

    def try_on(self, terms: Terms) -> str | None:
        """As `run`, on these terms."""
        return self.conclude(StateTrial(self, terms))


def each(*kinds: Semantics) -> Callable[[Callable[[Life], None]], Callable[[StateTrial], None]]:
    """Make a check that runs the function for each semantics, on a topology that has joined the store."""

    def decorate(function: Callable[[Life], None]) -> Callable[[StateTrial], None]:
        def try_each(trial: StateTrial) -> None:
            for semantics in kinds:
                function(trial.life(semantics))

        return try_each

    return decorate


class StateTrial(Trial):
    """One check of one store: the tools that checks are written with."""

    error = StateConformanceError

    def __init__(self, check: StateCheck, terms: Terms) -> None:
        super().__init__(check, terms.deadline_seconds)
        self.terms = terms
        self._threads: list[CallThread] = []
        self._opened: list[StateBackend] = []
        self._topologies: list[str] = []
        self._numbers = itertools.count(1)
        self._name = f"c{uuid.uuid4().hex[:12]}"
        self.store = self.open()

    def open(self) -> StateBackend:
        """Open the store once more."""
        opened = self.ask("the store is opened", self.terms.open)
        self._opened.append(opened)
        return opened

    def life(self, semantics: Semantics = Semantics.OPAQUE, more: int = 0, **options: Any) -> Life:
        """Return a topology with a table and `more` word-count tables, joined to the store."""
        life = self.stranger(semantics, **options)
        others = [table(f"t{number}_{life.topology}", semantics) for number in range(1, more + 1)]
        life.tables = (*life.tables, *others)
        return life.join()

    def stranger(
        self, semantics: Semantics = Semantics.OPAQUE, tables: Sequence[TableSpec] = (), **options: Any
    ) -> Life:
        """Return a topology that the store does not know, by default with a table of its own."""
        name = self.name()
        self._topologies.append(name)
        return Life(
            self, self.store, name, semantics, tuple(tables) or (table(f"t_{name}", semantics, **options),)
        )

    def name(self) -> str:
        """Return a unique name."""
        return f"{self._name}_{next(self._numbers)}"

    def close(self) -> None:
        """Delete what was created and close what was opened, ignoring the store's errors."""
        with contextlib.suppress(Exception):  # deleting and closing are promises with checks of their own
            for topology in self._topologies:
                self.outcome("a topology is deleted", self.store.delete, topology, drop_state=True)
        for opened in self._opened:
            with contextlib.suppress(Exception):
                self.outcome("the store is closed", opened.close)
        for thread in self._threads:
            thread.close()
        super().close()

    def refused(
        self,
        what: str,
        kind: type[TxstreamError],
        call: Callable[..., Any],
        *arguments: Any,
        **options: Any,
    ) -> None:
        """Require that the store raises an error of this kind. Anything else breaks the promise."""
        expected = f"{kind.__name__} when {what}"
        found = self.outcome(what, call, *arguments, **options)
        if not isinstance(found, Exception):
            self.fail(expected, f"no error; the answer was {found!r:.200}")
        if not isinstance(found, kind):
            self.fail(expected, described(found), cause=found)

    def beside(self, call: Callable[[], Any]) -> Beside:
        """Begin a call on a thread of its own."""
        thread = CallThread()
        self._threads.append(thread)
        return Beside(self, thread, call)

    def require(self, what: str, expected: Any, found: Any) -> None:
        """Fail unless both are equal. `what` is a noun phrase: "the values after a replay"."""
        if expected != found:
            self.fail(f"{what}: {expected!r:.300}", f"{found!r:.300}")


class Beside:
    """A call on another thread."""

    def __init__(self, trial: StateTrial, thread: CallThread, call: Callable[[], Any]) -> None:
        self._trial = trial
        self._future = thread.begin(call)

    def outcome(self, what: str) -> Any:
        """Return what the call returned or the exception that it raised. Fail if it misses the deadline."""
        if not self.ended(self._trial.deadline_seconds):
            self._trial.fail(what, f"neither within {self._trial.deadline_seconds:g} s")
        error = self._future.exception()
        if error is not None and not isinstance(error, Exception):
            raise error
        return self._future.result() if error is None else error

    def ended(self, within_seconds: float) -> bool:
        """Wait this long for the call to end. Returns whether it has ended."""
        with contextlib.suppress(TimeoutError):
            self._future.exception(within_seconds)
        return self._future.done()
