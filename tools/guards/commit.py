"""Guards of the commit (5.3), and of reading while a batch is being written."""

from __future__ import annotations

from guards import proofs, sources
from guards.guard import Guard
from guards.hunt import (
    CRASHES,
    LATE,
    LATE_BEGINS,
    OPAQUE,
    STALE,
    TRANSACTIONAL,
    ZOMBIES,
    Hunt,
    refused_by_the_next_commit,
)
from guards.patch import Patch
from txstream.api.errors import CoordinatorError, ProgressMismatchError, TxidRegressionError
from txstream.simulation.world import WrongResultError

COMMIT = (
    Guard(
        "5.3",
        "driver path: the fence is raised",
        sources.PROTOCOL,
        sources.RAISE_IN_COMMIT,
        "    " + sources.LOOK,
        proofs.PROMISE.format("stale-commit-is-refused"),
    ),
    Guard(
        "5.3",
        "driver path: an earlier attempt is undone",
        sources.PROTOCOL,
        "if self._was_here(found, commit):",
        "if False:",
        proofs.PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "tuples that are sent into the commit phase are counted there",
        "txstream/engine/batch/task_answers.py",
        "{bolt.id for bolt in plan.bolts if bolt.in_commit} if crossing is None else set()",
        "{bolt.id for bolt in plan.bolts if bolt.in_commit}",
        "tests/unit/test_worker.py::test_tuples_for_the_commit_phase_are_counted_in_it_and_not_before",
    ),
    Guard(
        "5.3",
        "a whole commit is one transaction",
        sources.SQLITE,
        '        event.listen(engine, "begin", _begin)\n',
        "",
        f"{proofs.READERS}::test_on_the_driver_path_any_query_sees_whole_batches_only[opaque]",
    ),
    Guard(
        "5.3",
        "driver path: one transaction and one ledger row for all tables",
        sources.PROTOCOL,
        "            rows = _write(here, attempt, writes)\n"
        "            self._write_committed(here, commit, rows)\n",
        "            for part in writes[:-1]:\n"
        "                _write(here, attempt, [part])\n"
        "                here.write_batch(self._row(commit, COMMITTED, 1))\n"
        "                here._connection.exec_driver_sql('COMMIT')\n"
        "                here._connection.exec_driver_sql('BEGIN IMMEDIATE')\n"
        "            rows = _write(here, attempt, writes[-1:])\n"
        "            self._write_committed(here, commit, rows)\n",
        proofs.PROMISE.format("regression-is-refused"),
        instead=(
            Patch(
                sources.PROTOCOL,
                "            rows = _write(here, attempt, writes)\n"
                "            self._write_committed(here, commit, rows)\n",
                "            rows = _write(here, attempt, writes[:1])\n"
                "        with self.store.begin(self.life, str(attempt)) as here:\n"
                "            rows += _write(here, attempt, writes[1:])\n"
                "            self._write_committed(here, commit, rows)\n",
            ),
        ),
    ),
    Guard(
        "5.3",
        "the batch before was committed in this same database",
        sources.PROTOCOL,
        "if txid > FIRST_TXID and status != COMMITTED:",
        "if False:",
        "tests/unit/test_recover.py::test_a_database_restored_beneath_a_running_driver",
        promises=("a-gap-is-refused",),
        mutant="AGapIsBuiltUpon",
        does="A running driver goes on although a database was restored from an older copy.",
        hunts=(
            Hunt(WrongResultError, OPAQUE, restores=True),
            Hunt(WrongResultError, TRANSACTIONAL, 2, restores=True),
        ),
    ),
    Guard(
        "5.3",
        "the batch before was committed, not only begun",
        sources.PROTOCOL,
        "if txid > FIRST_TXID and status != COMMITTED:",
        "if txid > FIRST_TXID and before not in found:",
        proofs.PROMISE.format("a-gap-is-refused"),
    ),
    Guard(
        "5.3",
        "the batch before was committed by the attempt that ZooKeeper has",
        "txstream/engine/commit/committer.py",
        "after=after,",
        "",
        "tests/unit/test_recover.py::test_a_copy_of_another_attempt_is_not_built_upon",
        promises=("a-gap-is-refused",),
        instead=(Patch(sources.PROTOCOL, "commit.after not in (None, by)", "False"),),
    ),
    Guard(
        "5.3",
        "begin: the fence is raised",
        sources.PROTOCOL,
        sources.RAISE + "            # Asked before",
        sources.LOOK + "            # Asked before",
        proofs.PROMISE.format("stale-commit-is-refused"),
    ),
    Guard(
        "5.3",
        "begin: the ledger says `committing`, even in place of `committed`",
        sources.PROTOCOL,
        "            here.write_batch(self._row(commit, COMMITTING, 0))\n",
        "",
        proofs.PROMISE.format("ledger-says-committing"),
        mutant="BeginWritesNoLedgerRow",
        does="Nothing tells the next attempt that tasks may have written.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, CRASHES),),
    ),
    Guard(
        "5.3",
        "begin: an earlier attempt is undone",
        sources.PROTOCOL,
        "if written_before:",
        "if False:",
        proofs.PROMISE.format("beginning-undoes"),
        mutant="BeginDoesNotRestore",
        does="`begin_commit` leaves an earlier attempt's rows in place.",
        hunts=(Hunt(WrongResultError, OPAQUE), Hunt(WrongResultError, OPAQUE, 2)),
    ),
    Guard(
        "5.3",
        "a task demands that the fence equals its attempt",
        sources.PROTOCOL,
        sources.HOLD + "            return",
        "            return",
        proofs.PROMISE.format("stale-write-is-refused"),
        mutant="TasksDoNotLookAtTheFence",
        does="A task of an old attempt writes whenever it runs.",
        hunts=(Hunt(WrongResultError, OPAQUE), Hunt(TxidRegressionError, TRANSACTIONAL)),
    ),
    Guard(
        "5.3",
        "a task refuses a fence below its attempt too",
        sources.SQLITE,
        "fence.c.uuid == uuid, fence.c.attempt == attempt)",
        "fence.c.uuid == uuid, fence.c.attempt <= attempt)",
        proofs.PROMISE.format("a-write-needs-a-beginning"),
        mutant="TasksLookForNewerAttemptsOnly",
        does="As `LostBeginsAreTakenForDone`, and tasks accept a lower fence: a late begin undoes them.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, LATE_BEGINS),),
        instead=(
            Patch(
                sources.FENCE_RULES,
                "    if found.attempt < attempt:\n        raise",
                "    if False:\n        raise",
            ),
            sources.TAKE_LOST_BEGINS_FOR_DONE,
        ),
    ),
    Guard(
        "5.3",
        "the end also demands that the fence equals its attempt",
        sources.PROTOCOL,
        sources.HOLD + "            rows",
        "            rows",
        proofs.PROMISE.format("stale-end-is-refused"),
        mutant="TheEndDoesNotLookAtTheFence",
        does="A late end writes `committed` for a batch that another attempt is writing.",
        hunts=(Hunt(WrongResultError, OPAQUE, 1, ZOMBIES),),
    ),
    Guard(
        "5.3",
        "every opaque table is restored, with or without deltas",
        sources.PROTOCOL,
        "if spec.semantics is Semantics.OPAQUE:",
        "if spec.state.table == 'first':",
        proofs.PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "restore: a row that this txid created is deleted",
        sources.WRITER,
        "        connection.execute(self._delete_created.where(here))\n",
        "",
        proofs.PROMISE.format("phantom-keys-are-undone"),
        instead=(
            Patch(
                sources.MERGING, "return None if left is None else (", "return stored if left is None else ("
            ),
        ),
    ),
    Guard(
        "5.3",
        "restore: value = prev",
        sources.WRITER,
        "        connection.execute(self._put_back.where(here))\n",
        "",
        proofs.PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "restore: only rows of this txid, not of later ones",
        sources.WRITER,
        "here = self._table.c[TXID_COLUMN] == txid",
        "here = self._table.c[TXID_COLUMN] >= txid",
        proofs.PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "raise: the fence lets an attempt in only once",
        sources.FENCE,
        'fence.c.attempt < bindparam("mine"),',
        'fence.c.attempt <= bindparam("mine"),',
        proofs.PROMISE.format("an-attempt-commits-once"),
        instead=(Patch(sources.FENCE_RULES, "    if not may_be_equal:\n", "    if False:\n"),),
    ),
    Guard(
        "5.3",
        "no task writes before its attempt has begun",
        sources.COMMIT,
        "            if at not in begun:\n                self._begin(at, one)\n",
        "            pass\n",
        "tests/unit/test_commit_paths.py::test_the_path_is_chosen_by_batch_and_told_by_the_ledger",
    ),
    Guard(
        "5.3",
        "a commit does not end before every share is written",
        "txstream/engine/batch/shares.py",
        '        if "failure" in document:\n            raise',
        '        if "failure" in document:\n            rows.append(0)\n            continue\n'
        '        if "failure" in document:\n            raise',
        "tests/unit/test_commit_shares.py::"
        "test_a_database_that_a_task_cannot_reach_fails_the_attempt_and_is_waited_for",
        mutant="TheEndDoesNotWaitForEveryShare",
        does="A commit ends as soon as one task has answered.",
        hunts=(Hunt(WrongResultError, OPAQUE), Hunt(WrongResultError, TRANSACTIONAL)),
        instead=(
            Patch(
                "txstream/simulation/world.py",
                "return all(task.is_done for task in tasks)",
                "return not tasks or any(task.is_done for task in tasks)",
            ),
        ),
    ),
    Guard(
        "5.3",
        "the commit is ended in every database",
        sources.COMMIT,
        "for at, states in enumerate(self._states):\n            if at:",
        "for at, states in list(enumerate(self._states))[:1]:\n            if at:",
        "tests/unit/test_commit_paths.py::test_a_driver_that_dies_anywhere_leaves_two_databases_exact",
        mutant="OneDatabaseIsNotEnded",
        does="One database is not ended, so its ledger still says `committing`.",
        hunts=(Hunt(ProgressMismatchError, OPAQUE, 2),),
    ),
    Guard(
        "5.3",
        "only one thread commits, even while an attempt that was given up still runs",
        "txstream/engine/loop/workers.py",
        "jobs if lane is Lane.JOB else 1,",
        "jobs,",
        "tests/unit/test_loop.py::test_one_thread_commits_whatever_was_given_up",
    ),
    Guard(
        "5.3",
        "an outage at COMMIT is a lost answer",
        "txstream/state/sql/errors.py",
        "case Kind.UNREACHABLE if at_commit:",
        "case Kind.UNREACHABLE if False:",
        "tests/unit/test_state_sqlite.py::TestFile::test_an_outage_at_commit_leaves_its_outcome_open",
    ),
    Guard(
        "5.3",
        "a lost connection to ZooKeeper is a lost answer, not a refusal",
        "txstream/zookeeper/client.py",
        "        except _LOST as error:\n"
        "            raise LostAnswerError(str(error) or type(error).__name__) from error\n",
        "",
        f"{proofs.ZOOKEEPER_PARTS}::test_an_answer_that_was_lost_is_no_refusal",
    ),
    Guard(
        "5.3",
        "the ledger settles a lost answer",
        sources.COMMIT,
        "committed = lost and states.outcome(attempt)",
        "committed = lost",
        "tests/unit/test_loop_outages.py::"
        "test_a_lost_answer_that_turns_out_to_be_no_commit_fails_the_attempt",
        mutant="LostAnswersAreTakenForCommits",
        does="Every lost answer is taken for a commit, without a look at the ledger.",
        hunts=refused_by_the_next_commit(
            Hunt(ProgressMismatchError, OPAQUE),
            Hunt(ProgressMismatchError, TRANSACTIONAL),
        ),
    ),
    Guard(
        "5.3",
        "a lost answer may have been a commit",
        sources.COMMIT,
        "committed = lost and states.outcome(attempt)",
        "committed = False",
        "tests/unit/test_loop_outages.py::test_a_lost_answer_that_turns_out_to_be_a_commit_is_an_ack",
    ),
    Guard(
        "5.3",
        "the outcome is true only if the row says `committed`, by this attempt",
        sources.PROTOCOL,
        "row.status == COMMITTED and row.attempt == attempt.attempt",
        "row.attempt == attempt.attempt",
        proofs.PROMISE.format("outcome-is-of-one-attempt"),
        mutant="TheOutcomeIsTheRowsAttempt",
        does="After a lost answer, a `committing` row of this attempt counts as committed.",
        hunts=(Hunt(ProgressMismatchError, OPAQUE, 1, LATE),),
    ),
    Guard(
        "5.3",
        "once its commit is acked, an attempt cannot fail",
        sources.COORDINATOR,
        "if batch is None or batch.phase is Phase.ADVANCING:",
        "if batch is None:",
        f"{proofs.COORDINATOR}::test_once_its_commit_is_acked_an_attempt_can_no_longer_fail",
        mutant="CommittedAttemptsMayFail",
        does="A fail is still accepted after the commit was acked, while its Advance is under way.",
        hunts=(Hunt(CoordinatorError, OPAQUE, 1, STALE),),
        instead=(
            Patch(
                sources.COORDINATOR,
                "        batch = self._find(attempt)\n"
                "        if batch is None or batch.phase is Phase.ADVANCING:",
                "        batch = self.active.get(attempt.txid)\n        if batch is None:",
            ),
        ),
    ),
    Guard(
        "5.3",
        "the next commit waits for the answer to Advance",
        sources.COORDINATOR,
        "            batch.phase = Phase.ADVANCING\n",
        "            batch.phase = Phase.ADVANCING\n            self.current = Txid(self.current + 1)\n",
        f"{proofs.COORDINATOR}::test_the_next_commit_begins_only_after_advance_was_answered",
        mutant="TheNextCommitDoesNotWaitForAdvance",
        does="The next commit begins before the previous one is known to be stored.",
        hunts=(Hunt(CoordinatorError, OPAQUE),),
    ),
    Guard(
        "5.3",
        "Advance is repeated until it is answered",
        sources.PROGRESS,
        'while (problem := self._fenced.try_multi("advance", operations)) is not None:',
        'if (problem := self._fenced.try_multi("advance", operations)) is not None:\n'
        "                raise problem\n"
        "            while False:",
        f"{proofs.PROGRESS}::test_a_lost_answer_of_advance_is_recognised",
    ),
    Guard(
        "5.3",
        "Advance commits the stored plan only if nobody has changed it since",
        sources.PROGRESS,
        "            return version, Check(path, version)\n",
        "            return version, Check(self._paths.metas, 0)\n",
        f"{proofs.MEMORY_PROGRESS}::test_a_plan_that_was_changed_is_not_committed",
    ),
    Guard(
        "5.3",
        "Advance keeps the metas of its own txid",
        sources.COORDINATOR,
        "self._metas.cleanup_before(txid)\n        return",
        "self._metas.cleanup_before(Txid(txid + 1))\n        return",
        f"{proofs.COORDINATOR}::test_advance_keeps_its_txids_metas_and_drops_those_before",
    ),
    Guard(
        "5.3",
        "stop ends on a txid boundary",
        sources.COORDINATOR,
        "end = self.last_open if end is None else end",
        "end = Txid(self.current - 1) if end is None else end",
        "tests/unit/test_coordinator_ends.py",
    ),
    Guard(
        "5.3",
        "stop waits for the plan of a replay",
        sources.COORDINATOR,
        "if self._planning is not None and self._planning.txid > self._end:",
        "if self._planning is not None:",
        "tests/unit/test_coordinator_ends.py::test_draining_waits_for_the_plan_of_a_replay",
    ),
    Guard(
        "5.3",
        "no txid is opened while the topology is paused",
        sources.COORDINATOR,
        "if not replay and (self._idle or self._paused):",
        "if not replay and self._idle:",
        "tests/unit/test_coordinator_ends.py",
    ),
    Guard(
        "5.3",
        "raise: a missing fence is not created again",
        "txstream/state/fence_rules.py",
        "    if found is None:\n",
        "    if found is None:\n"
        "        return FenceRow(topology, life.uuid, AttemptId(0))\n"
        "    if found is None:\n",
        proofs.MEMORY_PROMISE.format("lost-fence-stops-writing"),
    ),
    Guard(
        "reading",
        "the documented query leaves out a batch that is being written",
        "docs/commits.md",
        "CASE WHEN w.txid > last.txid THEN w.prev_n ELSE w.n END AS n",
        "w.n",
        f"{proofs.READERS}::test_on_the_executor_path_a_plain_query_sees_parts_and_the_documented_one_does_not",
    ),
)
