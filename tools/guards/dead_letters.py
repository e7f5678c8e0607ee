"""Mistakes about dead letters, which only histories with records that fail by themselves can show."""

from __future__ import annotations

from guards import proofs, sources
from guards.guard import Guard
from guards.hunt import DYING, OPAQUE, TRANSACTIONAL, LetterHunt
from txstream.core.errors import CorruptStateError, ProgressMismatchError, StateValueError
from txstream.plugins.proof.simulation.driver import UnexplainedError
from txstream.plugins.proof.simulation.world import WrongResultError

_COMMIT = "            self._write_committed(here, commit, rows)\n            reached(Point.INSIDE_COMMIT)\n"
_AFTERWARDS = (
    "            self._write_committed(here, __import__('dataclasses').replace(commit, letters=()), rows)\n"
    "            reached(Point.INSIDE_COMMIT)\n"
    "        with self.store.begin(self.life, 'afterwards') as here:\n"
)

DEAD_LETTERS = (
    Guard(
        "dead letters",
        "they are written by the commit",
        sources.PROTOCOL,
        _COMMIT,
        _AFTERWARDS
        + "            when = self._row(commit, COMMITTED, 0).committed_at\n"
        + "            here.write_dead_letters(attempt, commit.letters, when)\n",
        mutant="LettersAreWrittenAfterTheCommit",
        does="Dead letters have a transaction of their own: a crash before it loses the records.",
        hunts=(LetterHunt(WrongResultError, OPAQUE, 1, DYING),),
    ),
    Guard(
        "dead letters",
        "each record that is left out has one",
        sources.PROTOCOL,
        "here.write_dead_letters(commit.attempt, commit.letters, row",
        "here.write_dead_letters(commit.attempt, commit.letters[1:], row",
        mutant="ARecordIsNeitherCountedNorKept",
        does="A record is left out of its batch, and nothing keeps it.",
        hunts=(LetterHunt(WrongResultError, OPAQUE), LetterHunt(WrongResultError, TRANSACTIONAL)),
    ),
    Guard(
        "dead letters",
        "they are undone with their attempt",
        sources.PROTOCOL,
        "        here.undo_dead_letters(attempt.txid)\n",
        "        pass\n",
        mutant="LettersAreNotUndone",
        does="A replay finds the dead letters of the attempt before it.",
        hunts=(
            LetterHunt(CorruptStateError, OPAQUE, 2, DYING),
            LetterHunt(CorruptStateError, TRANSACTIONAL, 2, DYING),
        ),
    ),
    Guard(
        "dead letters",
        "the batch says what it leaves out",
        sources.COORDINATOR,
        "        self._metas.replace(attempt.txid, metas)\n        if attempt.txid not in self._fixed:\n",
        "        if True:\n",
        mutant="TheSetIsNotInThePlan",
        does="Neither plan nor ledger says that the batch leaves records out.",
        hunts=(LetterHunt(WrongResultError, OPAQUE), LetterHunt(WrongResultError, TRANSACTIONAL)),
    ),
    Guard(
        "dead letters",
        "what a stored plan leaves out is stored before its commit",
        sources.COORDINATOR,
        "        self._amending[attempt.txid] += 1\n        return [Amend(attempt.txid, metas)]\n",
        "        return []\n",
        mutant="TheSetIsNotStored",
        does="A driver forgets to store what its first attempt leaves out, commits and dies.",
        hunts=(LetterHunt(ProgressMismatchError, TRANSACTIONAL, 1, DYING, at_once=True),),
    ),
    Guard(
        "dead letters",
        "a record is tried again by itself before it is left out",
        "txstream/engine/batch/stage.py",
        "            and self._fails_alone(one_row(chunk, row))\n",
        "",
        mutant="OneFailureIsEnough",
        does="A record that has failed once, for whatever reason, is dead.",
        hunts=(LetterHunt(WrongResultError, OPAQUE, at_once=True),),
    ),
    Guard(
        "dead letters",
        "what a record that is left out has emitted is undone",
        "txstream/engine/batch/collector.py",
        "            del self._rows[self._only][mark:]\n",
        "            pass\n",
        mutant="WhatItEmittedStays",
        does="A record is left out in the first attempt, and what it had emitted is counted.",
        hunts=(LetterHunt(WrongResultError, OPAQUE, at_once=True),),
    ),
    Guard(
        "dead letters",
        "a stored plan whose commit may have begun leaves out nothing more",
        sources.COORDINATOR,
        "        return not self._is_transactional or attempt.txid not in self._asked\n",
        "        return True\n",
        mutant="AnEffectStays",
        does="A record is left out though one database has counted it already, which nothing undoes.",
        hunts=(LetterHunt(WrongResultError, TRANSACTIONAL, 2, DYING),),
    ),
    Guard(
        "dead letters",
        "a value that the second database refuses leaves out nothing",
        "txstream/engine/commit/committer.py",
        'vars(error)["wrote_nothing"] = not (at or shared or begun)',
        'vars(error)["wrote_nothing"] = True',
        mutant="ARefusalForgetsTheFirstDatabase",
        does="A record that a database refuses is left out, though another one has counted it already.",
        hunts=(LetterHunt(WrongResultError, TRANSACTIONAL, 2, refuses=True),),
    ),
    Guard(
        "dead letters",
        "a trial undoes the commit that it rehearses",
        sources.PROTOCOL,
        "            raise _RehearsedError\n",
        "            pass\n",
        mutant="ATrialCommits",
        does="A trial commits, so the next one of the same attempt takes the driver for a fenced one.",
        hunts=(LetterHunt(UnexplainedError, OPAQUE, refuses=True),),
    ),
    Guard(
        "dead letters",
        "a batch that a database has refused is rehearsed",
        "txstream/engine/loop/processing.py",
        "                if is_rehearsed or (failures is not None and failures.in_commit):\n",
        "                if is_rehearsed:\n",
        mutant="NoCommitIsRehearsed",
        does="A record that a database refuses is never found, so the run ends though nothing was counted.",
        hunts=(LetterHunt(StateValueError, OPAQUE, refuses=True),),
    ),
    Guard(
        "dead letters",
        "a retry changes their status in its commit",
        sources.PROTOCOL,
        "        if commit.retried:\n",
        "        if False:\n",
        mutant="ARetryCommitsTwice",
        does="A retried record is still dead after the commit, so the next retry counts it once more.",
        hunts=(
            LetterHunt(WrongResultError, OPAQUE),
            LetterHunt(WrongResultError, TRANSACTIONAL),
        ),
    ),
    Guard(
        "dead letters",
        "what an earlier attempt of a retry has undone is retried again",
        sources.RETRIES,
        "        dead = DEAD, retried_in(before)\n",
        "        dead = (DEAD,)\n",
        mutant="ARetryIsForgotten",
        does="One database has a retry when its next attempt is planned, which then takes no record.",
        hunts=(LetterHunt(WrongResultError, OPAQUE, 2, refuses=True),),
    ),
    Guard(
        "dead letters",
        "a retry takes those of earlier txids alone",
        sources.RETRIES,
        " and one.txid < before\n",
        "\n",
        f"{proofs.RETRIES}::test_a_retry_takes_no_letter_of_its_own_txid",
    ),
)
