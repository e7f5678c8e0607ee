"""Coordinators brought into a wanted state, and their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from support.inmemory import Range
from txstream.core.batch_metas import BatchMetas
from txstream.core.coordinator import (
    Advance,
    Command,
    Coordinator,
    EmitBatch,
    EmitCommit,
    Persist,
    Plan,
)
from txstream.core.semantics import Semantics
from txstream.core.transaction import AttemptSequence, Epoch, TransactionAttempt, Txid

OPAQUE, TRANSACTIONAL = Semantics.OPAQUE, Semantics.TRANSACTIONAL
BOTH = pytest.mark.parametrize("semantics", [OPAQUE, TRANSACTIONAL, Semantics.NON_TRANSACTIONAL])

Metas = BatchMetas[Range]
Commands = Sequence[Command[Range]]
C = TypeVar("C")


def metas(start: int, end: int) -> Metas:
    return BatchMetas({"p": Range(start, end)})


def make(semantics: Semantics = OPAQUE, pending: int = 3, **options: Any) -> Coordinator[Range]:
    options.setdefault("current", Txid(1))
    options.setdefault("stored", {})
    options.setdefault("next_attempt", AttemptSequence(Epoch(1)).next)
    return Coordinator(semantics, max_spout_pending=pending, **options)


def only(commands: Commands, kind: type[C]) -> C:
    """Return the one command of this kind."""
    found = [command for command in commands if isinstance(command, kind)]
    assert len(found) == 1, f"expected one {kind.__name__}, found {commands}"
    return found[0]


def kinds(commands: Commands) -> list[str]:
    return [type(command).__name__ for command in commands]


def plan_and_emit(
    coordinator: Coordinator[Range], commands: Commands, batch: Metas
) -> tuple[TransactionAttempt, Commands]:
    """Answer the plan, and persist if asked; return the attempt that is emitted and the last answer."""
    answers = coordinator.planned(only(commands, Plan).ticket, batch)
    if coordinator.semantics is TRANSACTIONAL:
        persist = only(answers, Persist)
        answers = coordinator.persisted(persist.txid, persist.metas)
    return only(answers, EmitBatch).attempt, answers


def filled(semantics: Semantics, pending: int = 3) -> tuple[Coordinator[Range], list[TransactionAttempt]]:
    """A coordinator with `pending` batches of 10 records in processing."""
    coordinator = make(semantics, pending)
    commands: Commands = coordinator.sync()
    attempts = []
    for number in range(pending):
        attempt, commands = plan_and_emit(coordinator, commands, metas(10 * number, 10 * number + 10))
        attempts.append(attempt)
    assert kinds(commands) == ["EmitBatch"]
    return coordinator, attempts


def commit(coordinator: Coordinator[Range], commands: Commands) -> Commands:
    """Carry the commit among `commands` through to its Advance."""
    advance = only(coordinator.ack(only(commands, EmitCommit).attempt), Advance)
    return coordinator.advanced(advance.txid)
