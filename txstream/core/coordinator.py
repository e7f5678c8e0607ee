"""The one state machine that decides which txid is planned, processed, committed and failed.

It is pure: no clock, no threads, no I/O. It takes events and returns commands. The engine carries out the
commands and reports back with events.

Over 500 lines: one machine, whose every event reads and changes the same state.

Invariants.
- Active txids are `current`, `current` + 1, ... without a gap, at most `max_spout_pending` of them.
- A plan starts from the metas of the txid before it, committed or not; plans are made one at a time.
- Behind a batch without records nothing is planned before it is committed, because it may hold first places.
- Only `current` commits, only when PROCESSED, and the next commit begins after its Advance was answered.
- An attempt whose commit was acked (ADVANCING) can no longer fail.
- A stored plan may come to leave out records only while nobody can have committed it, not even in part, and
  what it leaves out is stored before its commit is asked for. So every replay of it leaves out the same.
- When an attempt fails, it and all later active ones are dropped and run again under new attempts. Unless
  their plans are fixed, these are dropped too: a replay may shrink, and the next batch must then start where
  the replay ends. Fixed are the plans of a transactional spout, and first places that are planned as
  `current`: the batch before them is committed, and they hold nothing that might not be readable.
- While it is paused no txid is opened. What is open, or was and must be replayed, still finishes.
- Answers to superseded plans and attempts change nothing.

`check` states what of this can be seen at one moment. `story` keeps the last events and commands; an error of
the state machine shows it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

from txstream.core.batch_metas import BatchMetas
from txstream.core.errors import CoordinatorError
from txstream.core.semantics import Semantics
from txstream.core.story import Story
from txstream.core.transaction import FIRST_TXID, AttemptId, TransactionAttempt, Txid

Meta = TypeVar("Meta")
T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])


class BatchPhase(StrEnum):
    """The phase that an active txid is in."""

    PROCESSING = "processing"
    PROCESSED = "processed"
    COMMITTING = "committing"
    ADVANCING = "advancing"


@dataclass(frozen=True, slots=True)
class Plan(Generic[Meta]):
    """Ask the spout's coordinator what `txid` holds, starting from `last`. The answer to a `replay` must be
    `planned`, if need be with nothing in it, because an earlier attempt may have written. `horizons` are
    those of the batch before, behind which the answer's must not fall."""

    ticket: int
    txid: Txid
    last: Mapping[str, Meta]
    replay: bool
    horizons: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Persist(Generic[Meta]):
    """Store the plan, which is fixed, before anything of it is emitted."""

    txid: Txid
    metas: BatchMetas[Meta]


@dataclass(frozen=True, slots=True)
class Amend(Generic[Meta]):
    """Store the plan again, with the records that it leaves out from now on."""

    txid: Txid
    metas: BatchMetas[Meta]


@dataclass(frozen=True, slots=True)
class EmitBatch(Generic[Meta]):
    """Process the batch. If `stored`, its plan is fixed, so the engine waits for unreadable partitions."""

    attempt: TransactionAttempt
    metas: BatchMetas[Meta]
    stored: bool


@dataclass(frozen=True, slots=True)
class EmitCommit(Generic[Meta]):
    """Commit the processed batch to the state's databases."""

    attempt: TransactionAttempt
    metas: BatchMetas[Meta]


@dataclass(frozen=True, slots=True)
class Advance(Generic[Meta]):
    """Set current to txid + 1, in one write. `store` says that txid's metas are not stored yet."""

    txid: Txid
    attempt: AttemptId
    metas: BatchMetas[Meta]
    store: bool


@dataclass(frozen=True, slots=True)
class Cancel:
    """This attempt was superseded: its work may stop. This is only a request; the fence makes it safe."""

    attempt: TransactionAttempt


Command = (
    Plan[Meta] | Persist[Meta] | Amend[Meta] | EmitBatch[Meta] | EmitCommit[Meta] | Advance[Meta] | Cancel
)


class RotatingTransactionalState(Generic[T]):
    """The coordinator's ordered map txid -> value. It has no gaps and refuses changes out of order, even
    after it was emptied. Only a new map without values may begin at any txid."""

    def __init__(self, values: Mapping[Txid, T] | None = None) -> None:
        self._values: dict[Txid, T] = {txid: values[txid] for txid in sorted(values)} if values else {}
        txids = list(self._values)
        if txids and txids != list(range(txids[0], txids[-1] + 1)):
            raise CoordinatorError(f"stored batches have a gap: {', '.join(map(str, txids))}")
        self._next: int | None = txids[-1] + 1 if txids else None

    def __iter__(self) -> Iterator[Txid]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, txid: Txid) -> T:
        return self._values[txid]

    def get_or_create(self, txid: Txid, init: Callable[[T | None], T]) -> T:
        """Return the value of `txid`, made from its predecessor's if there is none. Raises CoordinatorError
        for a txid that does not follow the last one."""
        if txid not in self._values:
            if self._next is not None and txid != self._next:
                raise CoordinatorError(f"txid {txid} cannot follow txid {self._next - 1}")
            last = self.last()
            self._values[txid] = init(self._values[last] if last is not None else None)
            self._next = txid + 1
        return self._values[txid]

    def replace(self, txid: Txid, value: T) -> None:
        """Replace an existing txid's value (by a plan that was found stored). Raises CoordinatorError."""
        if txid not in self._values:
            raise CoordinatorError(f"txid {txid} is not here to be replaced")
        self._values[txid] = value

    def last(self) -> Txid | None:
        return next(reversed(self._values), None)

    def has(self, txid: Txid) -> bool:
        return txid in self._values

    def remove(self, txid: Txid) -> None:
        """Remove the last txid. Raises CoordinatorError for any other, which would leave a gap."""
        if txid != self.last():
            raise CoordinatorError(f"txid {txid} cannot be removed, the last one is {self.last()}")
        del self._values[txid]
        self._next = txid

    def cleanup_before(self, txid: Txid) -> None:
        for old in [t for t in self._values if t < txid]:
            del self._values[old]

    def list(self) -> list[Txid]:
        return [*self._values]


@dataclass(slots=True)
class ActiveBatch:
    """One active txid: its present attempt and phase."""

    attempt: TransactionAttempt
    phase: BatchPhase


def _event(method: Method) -> Method:
    """Keep what an event is answered with in the story, and show the story with a refusal."""

    @functools.wraps(method)
    def answered(self: Coordinator[Any], *args: Any, **options: Any) -> Any:
        try:
            answer = method(self, *args, **options)
        except CoordinatorError as error:
            error.story = self.story.lines()
            error.add_note("\n".join(["the coordinator's last events and commands:", *error.story]))
            raise
        if isinstance(answer, list):
            for command in answer:
                self.story.answer(type(command).__name__, *_subject(command))
        return answer

    return cast("Method", answered)


def shown(command: Command[Any]) -> str:
    """Return the command's kind, txid and attempt, in words."""
    txid, attempt = _subject(command)
    whose = f"txid {txid}" if attempt is None else str(TransactionAttempt(txid, attempt))
    return f"{type(command).__name__} {whose}"


def _subject(command: Command[Any]) -> tuple[Txid, AttemptId | None]:
    """Return the txid of a command, and the attempt if it is about one."""
    match command:
        case EmitBatch(attempt) | EmitCommit(attempt) | Cancel(attempt):
            return attempt.txid, attempt.attempt
        case Advance(txid, attempt_id):
            return txid, attempt_id
        case Plan() | Persist() | Amend():
            return command.txid, None


class Coordinator(Generic[Meta]):
    """The state machine; the module gives its invariants. `current` and `stored` come from the progress
    store. `next_attempt` hands out attempt ids that only grow. `replays` are txids that an earlier leader may
    have committed in part. No txid after `last_txid` is opened."""

    def __init__(
        self,
        semantics: Semantics,
        *,
        current: Txid,
        stored: Mapping[Txid, BatchMetas[Meta]],
        next_attempt: Callable[[], AttemptId],
        max_spout_pending: int,
        replays: frozenset[Txid] = frozenset(),
        last_txid: Txid | None = None,
    ) -> None:
        if max_spout_pending < 1:
            raise CoordinatorError(f"max_spout_pending is {max_spout_pending}, it must be at least 1")
        self.story = Story()
        self.semantics = semantics
        self._is_transactional = semantics is Semantics.TRANSACTIONAL
        self.current = current
        self.max_spout_pending = max_spout_pending
        self.last_txid = last_txid
        self.active: dict[Txid, ActiveBatch] = {}
        self._next_attempt = next_attempt
        self._metas: RotatingTransactionalState[BatchMetas[Meta]] = RotatingTransactionalState(stored)
        self._check_stored(stored)
        self._fixed = {txid for txid in stored if txid >= current}
        self._replays = set(replays)
        # Txids that some driver may have committed in part, with the attempt if only one has been asked for.
        self._asked: dict[Txid, AttemptId | None] = dict.fromkeys(replays)
        self._amending: Counter[Txid] = Counter()
        self._planning: Plan[Meta] | None = None
        self._persisting: Txid | None = None
        self._tickets = 0
        self._idle = False
        self._end: Txid | None = None
        self._paused = False

    def _check_stored(self, stored: Mapping[Txid, BatchMetas[Meta]]) -> None:
        if self.current > FIRST_TXID and Txid(self.current - 1) not in stored:
            raise CoordinatorError(
                f"current is {self.current}, but the metas of txid {self.current - 1} are missing"
            )
        if not self._is_transactional and any(
            txid >= self.current and metas.partitions for txid, metas in stored.items()
        ):
            raise CoordinatorError(
                f"plans are stored from txid {self.current} on, but the semantics is {self.semantics}, "
                f"not transactional"
            )

    # --- questions ----------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether nothing is active and nothing is being planned."""
        return not self.active and self._planning is None and self._persisting is None

    @property
    def is_draining(self) -> bool:
        """Whether no further txid will be opened."""
        return self._end is not None and self._end <= self.last_open

    @property
    def last_open(self) -> Txid:
        """The last txid that was opened and will be committed, or the last committed one if none is open."""
        return max((Txid(self.current - 1), *self.active, *self._replays))

    @property
    def is_paused(self) -> bool:
        return self._paused

    def may_leave_out(self, attempt: TransactionAttempt) -> bool:
        """Return whether the attempt may still come to leave out records of its batch."""
        batch = self._find(attempt)
        if batch is None or batch.phase is not BatchPhase.PROCESSING:
            return False
        return not self._is_transactional or attempt.txid not in self._asked

    def is_planning(self, ticket: int) -> bool:
        """Return whether the answer to this `Plan` is still wanted."""
        return self._planning is not None and self._planning.ticket == ticket

    def committed_metas(self) -> BatchMetas[Meta]:
        """Return the metas of the last committed batch; empty before the first."""
        return self._before(self.current)

    def metas(self, txid: Txid) -> BatchMetas[Meta]:
        return self._metas[txid]

    def stored_txids(self) -> list[Txid]:
        """Return the txids whose metas are held, both committed ones and plans."""
        return self._metas.list()

    @_event
    def check(self) -> None:
        """Raise CoordinatorError if an invariant of the module does not hold. For tests and simulations."""
        active, planning = sorted(self.active), self._planning
        wrong = [
            (active != list(range(self.current, self.current + len(active))), "active txids have a gap"),
            (len(active) > self.max_spout_pending, "more txids are active than may be"),
            (self._committing_txids not in ([], [self.current]), "another txid than the current one commits"),
            (
                len({one.attempt for one in self.active.values()}) < len(active)
                or any(one.attempt.txid != txid for txid, one in self.active.items()),
                "an attempt stands for two txids",
            ),
            (any(not self._metas.has(txid) for txid in active), "an active txid has no metas"),
            (self._persisting in self.active, "a plan was emitted before it was stored"),
            (planning is not None and self._persisting is not None, "two plans are made at once"),
            (bool(self._amending.keys() & {*self._committing_txids}), "a plan commits before it is stored"),
            (
                planning is not None and planning.last != self._before(planning.txid).positions(),
                "a plan does not start where the txid before it ends",
            ),
            (any(txid < self.current for txid in self._replays), "a committed txid is to be replayed"),
            (
                any(txid < self.current - 1 for txid in self._metas),
                "metas before those of the last committed txid are kept",
            ),
        ]
        found = [sentence for is_wrong, sentence in wrong if is_wrong]
        if found:
            raise CoordinatorError(f"txid {self.current} is current, and {'; '.join(found)}")

    @property
    def _committing_txids(self) -> list[Txid]:
        ending = (BatchPhase.COMMITTING, BatchPhase.ADVANCING)
        return [txid for txid, batch in self.active.items() if batch.phase in ending]

    def _before(self, txid: Txid) -> BatchMetas[Meta]:
        previous = Txid(txid - 1)
        return self._metas[previous] if self._metas.has(previous) else BatchMetas()

    # --- events -------------------------------------------------------------------------------------

    @_event
    def sync(self) -> list[Command[Meta]]:
        """Return commands for all that can start now. Call it at the start; every event ends in it."""
        self.story.add("sync")
        return self._sync()

    def _sync(self) -> list[Command[Meta]]:
        commands: list[Command[Meta]] = []
        for offset in range(self.max_spout_pending):
            txid = Txid(self.current + offset)
            if txid not in self.active:
                if any(end is not None and txid > end for end in (self.last_txid, self._end)):
                    break
                if not self._metas.has(txid) or self._persisting == txid:
                    commands.extend(self._plan(txid))
                    break
                if self._paused and txid not in self._replays:
                    break
                commands.append(self._emit(txid))
            if not self._metas[txid].partitions:
                break
        head = self.active.get(self.current)
        if head is not None and head.phase is BatchPhase.PROCESSED and self.current not in self._amending:
            head.phase = BatchPhase.COMMITTING
            asked_before = self.current in self._asked
            self._asked[self.current] = None if asked_before else head.attempt.attempt
            commands.append(EmitCommit(head.attempt, self._metas[self.current]))
        return commands

    @_event
    def wake(self) -> list[Command[Meta]]:
        """Take a timer's event after `nothing_to_plan`: it may be worth asking the spout again."""
        self.story.add("wake")
        self._idle = False
        return self._sync()

    @_event
    def drain(self, end: Txid | None = None) -> None:
        """Open no further txid, or none after `end`. What is active, or was and must be replayed, still
        finishes. The answer to a plan of a new txid is not waited for, because it may take long.

        Raises CoordinatorError if something after `end` is open or committed."""
        end = self.last_open if end is None else end
        self.story.add("drain", end)
        if end < self.last_open:
            raise CoordinatorError(f"txid {self.last_open} is open or committed, so {end} cannot be the last")
        self._end = end if self._end is None else min(end, self._end)
        if self._planning is not None and self._planning.txid > self._end:
            self._planning = None

    @_event
    def pause(self) -> None:
        """Open no further txid until `resume`. What is open finishes, as in `drain`."""
        self.story.add("pause")
        self._paused = True
        if self._planning is not None and not self._planning.replay:
            self._planning = None

    @_event
    def resume(self) -> None:
        """Open txids again, from the next `sync` on."""
        self.story.add("resume")
        self._paused = False

    @_event
    def planned(self, ticket: int, metas: BatchMetas[Meta]) -> list[Command[Meta]]:
        """Take the answer to `Plan`."""
        plan = self._take_plan(ticket, "planned")
        if plan is None:
            return []
        if not metas.has_work and not plan.replay:
            raise CoordinatorError(f"txid {plan.txid} was planned with nothing in it")
        missing = set(plan.last) - set(metas.positions())
        if missing:
            raise CoordinatorError(
                f"the plan of txid {plan.txid} lost the place of {', '.join(sorted(missing))}"
            )
        self._metas.get_or_create(plan.txid, lambda _: metas)
        if self._is_transactional or (metas.begun and plan.txid == self.current):
            self._persisting = plan.txid
            return [Persist(plan.txid, metas)]
        return self._sync()

    @_event
    def nothing_to_plan(self, ticket: int) -> list[Command[Meta]]:
        """Take the answer to `Plan` that no partition has anything: the transaction is not opened."""
        plan = self._take_plan(ticket, "nothing to plan")
        if plan is None:
            return []
        if plan.replay:
            raise CoordinatorError(
                f"the replay of txid {plan.txid} must be planned, if need be with nothing in it"
            )
        self._idle = True
        return self._sync()

    @_event
    def persisted(self, txid: Txid, metas: BatchMetas[Meta]) -> list[Command[Meta]]:
        """The plan is stored. `metas` are the stored ones: another leader's, if those were there first."""
        self.story.add("persisted", txid)
        if txid != self._persisting:
            raise CoordinatorError(f"txid {txid} was persisted, but {self._persisting} was asked for")
        self._persisting = None
        self._fixed.add(txid)
        self._metas.replace(txid, metas)
        return self._sync()

    @_event
    def leave_out(self, attempt: TransactionAttempt, metas: BatchMetas[Meta]) -> list[Command[Meta]]:
        """The attempt leaves out records, which `metas` name. A stored plan is amended before the commit."""
        self.story.add("leave out", attempt.txid, attempt.attempt)
        if self._find(attempt) is None:
            return []
        if not self.may_leave_out(attempt):
            raise CoordinatorError(f"{attempt} cannot leave out further records of its batch")
        self._metas.replace(attempt.txid, metas)
        if attempt.txid not in self._fixed:
            return []
        self._amending[attempt.txid] += 1
        return [Amend(attempt.txid, metas)]

    @_event
    def amended(self, txid: Txid) -> list[Command[Meta]]:
        """The amended plan is stored."""
        self.story.add("amended", txid)
        self._amending -= Counter([txid])
        return self._sync()

    @_event
    def ack(self, attempt: TransactionAttempt) -> list[Command[Meta]]:
        """The attempt was processed or committed, whichever it was doing."""
        self.story.add("ack", attempt.txid, attempt.attempt)
        batch = self._find(attempt)
        if batch is None:
            return []
        if batch.phase is BatchPhase.PROCESSING:
            batch.phase = BatchPhase.PROCESSED
            return self._sync()
        if batch.phase is BatchPhase.COMMITTING:
            batch.phase = BatchPhase.ADVANCING
            metas = self._metas[attempt.txid]
            return [Advance(attempt.txid, attempt.attempt, metas, store=not self._is_transactional)]
        raise CoordinatorError(f"{attempt} was acked while {batch.phase}")

    def wrote_nothing(self, attempt: TransactionAttempt) -> None:
        """The commit of this attempt was refused, and has written nothing anywhere. Call it before `fail`.
        Unless the commit of another attempt has been asked for too, the batch may still leave out records."""
        if self._find(attempt) is not None and self._asked.get(attempt.txid) == attempt.attempt:
            del self._asked[attempt.txid]

    @_event
    def fail(self, attempt: TransactionAttempt, why: str = "") -> list[Command[Meta]]:
        """The attempt failed: it and all later active ones are replayed. `why` is for the story."""
        self.story.add("fail", attempt.txid, attempt.attempt, why=why)
        batch = self._find(attempt)
        if batch is None or batch.phase is BatchPhase.ADVANCING:
            return []
        dropped = [txid for txid in self.active if txid >= attempt.txid]
        commands: list[Command[Meta]] = [Cancel(self.active.pop(txid).attempt) for txid in sorted(dropped)]
        if not self._is_transactional:
            self._planning = None
            for txid in reversed(self._metas.list()):
                if txid >= attempt.txid and txid not in self._fixed:
                    self._metas.remove(txid)
        self._replays.update(dropped)
        return commands + self._sync()

    @_event
    def advanced(self, txid: Txid) -> list[Command[Meta]]:
        """The commit of `txid` is stored: the next commit may begin."""
        self.story.add("advanced", txid)
        batch = self.active.get(txid)
        if txid != self.current or batch is None or batch.phase is not BatchPhase.ADVANCING:
            raise CoordinatorError(f"txid {txid} was advanced, but txid {self.current} is current")
        del self.active[txid]
        self._replays.discard(txid)
        self._fixed.discard(txid)
        self._asked.pop(txid, None)
        self.current = Txid(txid + 1)
        self._metas.cleanup_before(txid)
        return self._sync()

    # --- inside -------------------------------------------------------------------------------------

    def _find(self, attempt: TransactionAttempt) -> ActiveBatch | None:
        batch = self.active.get(attempt.txid)
        return batch if batch is not None and batch.attempt == attempt else None

    def _emit(self, txid: Txid) -> Command[Meta]:
        attempt = TransactionAttempt(txid, self._next_attempt())
        self.active[txid] = ActiveBatch(attempt, BatchPhase.PROCESSING)
        return EmitBatch(attempt, self._metas[txid], stored=txid in self._fixed)

    def _plan(self, txid: Txid) -> list[Command[Meta]]:
        replay = txid in self._replays
        if self._planning is not None or self._persisting is not None:
            return []
        if not replay and (self._idle or self._paused):
            return []
        self._tickets += 1
        before = self._before(txid)
        self._planning = Plan(self._tickets, txid, before.positions(), replay, before.horizons)
        return [self._planning]

    def _take_plan(self, ticket: int, answer: str) -> Plan[Meta] | None:
        if self._planning is None or self._planning.ticket != ticket:
            self.story.add(answer, why=f"ticket {ticket} is not waited for")
            return None
        plan, self._planning = self._planning, None
        self.story.add(answer, plan.txid)
        return plan
