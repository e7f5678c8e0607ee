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
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn, TypeVar

from txstream.api.errors import TxstreamError
from txstream.semantics import Semantics
from txstream.state import StateBackend, open_database
from txstream.testing.promises import BrokenPromise, ConformanceError
from txstream.testing.spout_harness import NotApplicableError
from txstream.testing.spout_thread import NoAnswerError, SourceThread
from txstream.testing.state_life import Life, table

FENCED = (Semantics.OPAQUE, Semantics.TRANSACTIONAL)

Answer = TypeVar("Answer")
OpenStore = Callable[[], StateBackend]


class StateConformanceError(ConformanceError):
    """A store does not do what a topology relies on."""


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


def tell(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
