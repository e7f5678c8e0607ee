"""The guards of exactly-once, each with the test that fails without it. `check_guards.py` proves every line.

A guard is a piece of code. To take it away, `old` becomes `new` in `file`; then `test` must fail. The table
is also what docs/guarantees.md and docs/semantics.md show.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Guard:
    """One guard of one clause."""

    clause: str
    what: str
    file: str
    old: str
    new: str
    test: str

    @property
    def name(self) -> str:
        return f"{self.clause} {self.what}"


PROMISE = "tests/unit/test_state_promises.py::test_promise[sqlite-{}]"
MEMORY_PROMISE = PROMISE.replace("sqlite", "memory")
SQLITE_LOCKS = "tests/unit/test_sql_locks.py::TestLocks"
POSTGRESQL_LOCKS = "tests/integration/test_locks_postgres.py::TestLocks"
MYSQL_LOCKS = "tests/integration/test_locks_mysql.py::TestLocks"
MEMORY_PROGRESS = "tests/unit/test_zookeeper_progress.py"
ZOOKEEPER_PARTS = "tests/unit/test_zookeeper_parts.py"
STARTS = "tests/unit/test_start_races.py"
READERS = "tests/unit/test_concurrent_reader.py::TestReaders"
COORDINATOR = "tests/unit/test_coordinator.py"
RECOVERY = "tests/unit/test_recovery.py"
PROGRESS = "tests/integration/test_zookeeper_contract.py"
KAFKA_READ = "tests/integration/test_kafka_spout_read.py"
KAFKA_PLAN = "tests/integration/test_kafka_spout_plan.py"

_PROTOCOL = "txstream/state/protocol.py"
_FENCE = "txstream/state/sql/fence.py"
_WRITER = "txstream/state/sql/writer.py"
_RECOVERY = "txstream/engine/start/recovery.py"
_COMMIT = "txstream/engine/commit/committer.py"
_COORDINATOR = "txstream/coordinator.py"
_PROGRESS = "txstream/zookeeper/progress.py"
_FENCED = "txstream/zookeeper/fenced.py"
_POSTGRESQL = "txstream/state/sql/postgresql.py"
_MYSQL = "txstream/state/sql/mysql.py"
_SERVER = "txstream/state/sql/server_timeouts.py"
_SQLITE = "txstream/state/sql/sqlite.py"

_RAISE = "            here.raise_fence(attempt.attempt, may_be_equal=False)\n"
_RAISE_IN_COMMIT = "    " + _RAISE
_HOLD = "            if self.life.is_fenced:\n                here.hold_fence(attempt.attempt)\n"

VALUE_RULES = (
    Guard(
        "5.1",
        "opaque, same txid: value = prev + delta",
        _WRITER,
        "changes[name] = case((same_batch, again), else_=merged[name])",
        "changes[name] = merged[name]",
        PROMISE.format("a-share-counts-once"),
    ),
    Guard(
        "5.1",
        "opaque, same txid: prev stays",
        _WRITER,
        "changes[prev.name] = case((same_batch, prev), else_=columns[name])",
        "changes[prev.name] = columns[name]",
        PROMISE.format("a-share-counts-once"),
    ),
    Guard(
        "5.1",
        "all prevs are set when a row's txid changes, also of a value that does not",
        _WRITER,
        "changes[prev.name] = case((same_batch, prev), else_=columns[name])",
        "changes[prev.name] = case((same_batch, prev), (columns[name] == merged[name], prev), "
        "else_=columns[name])",
        PROMISE.format("several-columns-are-one-row"),
    ),
    Guard(
        "5.1",
        "transactional, same txid: skip",
        _WRITER,
        "changes[name] = case((same_batch, columns[name]), else_=merged[name])",
        "changes[name] = merged[name]",
        PROMISE.format("a-share-counts-once"),
    ),
    Guard(
        "5.1",
        "a row with a newer txid is refused",
        _WRITER,
        "return changes, columns[TXID_COLUMN] <= excluded[TXID_COLUMN]",
        "return changes, None",
        PROMISE.format("regression-is-refused"),
    ),
    Guard(
        "5.1",
        "a key has one delta in an attempt",
        "txstream/state/values.py",
        "    _refuse_twice(spec, deltas)\n",
        "",
        PROMISE.format("keys-come-once-and-whole"),
    ),
    Guard(
        "5.1",
        "a row whose value is back at zero stays",
        _WRITER,
        "            if written != chunk.num_rows:\n",
        "            value = self._table.c[self.spec.state.value_names[0]]\n"
        "            connection.execute(delete(self._table).where(value == 0))\n"
        "            if written != chunk.num_rows:\n",
        PROMISE.format("opaque-rules"),
    ),
)

START = (
    Guard(
        "5.2.1",
        "the epoch is above every fence's",
        _RECOVERY,
        "highest = max(highest, epoch_of(fence.attempt))",
        "pass",
        f"{RECOVERY}::test_the_epoch_is_above_zookeepers_and_every_fences",
    ),
    Guard(
        "5.2.1",
        "the epoch is claimed by compare-and-set",
        _FENCED,
        "            except RefusedError:\n                races += 1\n",
        "            except RefusedError:\n"
        "                self._claim = (claim, version + 1)\n"
        "                return claim.epoch\n",
        f"{PROGRESS}::test_the_loser_of_a_race_claims_again_and_the_winner_is_fenced[memory]",
    ),
    Guard(
        "5.2.1",
        "a claim whose answer was lost is known by its owner",
        _FENCED,
        "if stored.owner == owner:",
        "if False:",
        f"{PROGRESS}::test_a_lost_answer_of_claim_epoch_is_recognised_by_its_owner[memory-after]",
    ),
    Guard(
        "5.2.2",
        "every fence of every database is raised",
        _RECOVERY,
        "partial(database.raise_fence, attempt_id(epoch, 0))",
        "partial(databases[0].raise_fence, attempt_id(epoch, 0))",
        f"{RECOVERY}::test_every_fence_is_raised_before_anything_is_read_that_the_decision_depends_on",
    ),
    Guard(
        "5.2.2",
        "a leader that waits for a locked fence looks whether it was succeeded",
        _RECOVERY,
        "        locked(error)\n        store.verify()\n",
        "        locked(error)\n",
        f"{RECOVERY}::test_a_leader_that_was_succeeded_does_not_wait_for_a_fence_any_longer",
    ),
    Guard(
        "5.2",
        "the epoch is mine by its owner id, not by its number",
        _FENCED,
        "        if stored.owner != claim.owner:\n            raise FencedError",
        "        if stored.epoch != claim.epoch:\n            raise FencedError",
        f"{MEMORY_PROGRESS}::test_a_leader_is_known_by_its_owner_id_not_by_its_number",
    ),
    Guard(
        "5.2",
        "the epoch is read as of now, also from a server that lags",
        _FENCED,
        "        claim, version = self.require_claim()\n        self.tree.sync()\n        node",
        "        claim, version = self.require_claim()\n        node",
        f"{MEMORY_PROGRESS}::test_a_leader_is_fenced_though_its_server_lags",
    ),
    Guard(
        "5.2",
        "a lead ends with its session",
        "txstream/zookeeper/leadership.py",
        "self._held_in is not None and self._held_in == self._zk.sessions_lost",
        "self._held_in is not None",
        f"{ZOOKEEPER_PARTS}::test_a_lead_ends_with_its_session",
    ),
    Guard(
        "5.2",
        "a run that was succeeded ends, also when it has nothing to write",
        "txstream/engine/driver/services.py",
        "                loop.abort(error)\n                return\n",
        "                return\n",
        "tests/unit/test_loop_ends.py::test_a_run_that_was_succeeded_ends_though_it_has_nothing_to_write",
    ),
    Guard(
        "5.2",
        "only a first run makes fences and tables",
        "txstream/engine/start/identity.py",
        "first_run = store.load().current == FIRST_TXID",
        "first_run = True",
        f"{STARTS}::test_what_a_later_run_misses_is_told_and_not_made_anew",
    ),
    Guard(
        "5.2",
        "a database that joins goes on from C-1 only where its ledger has the attempt that ZooKeeper has",
        "txstream/engine/start/joining.py",
        "(last.txid == progress.current - 1 and last.attempt == progress.committed_by)",
        "last.txid == progress.current - 1",
        "tests/unit/test_joining.py::test_a_ledger_of_another_attempt_does_not_go_on_from_there",
    ),
    Guard(
        "5.2.3",
        "progress is read as of now, also from a server that lags",
        _PROGRESS,
        "                self._tree.sync()\n                before",
        "                before",
        f"{MEMORY_PROGRESS}::test_progress_is_read_as_of_now_from_a_server_that_lags",
    ),
    Guard(
        "5.2.3",
        "progress is of one moment",
        _PROGRESS,
        "if before is not None and self._tree.get(self._paths.current) == before:",
        "if before is not None:",
        f"{MEMORY_PROGRESS}::test_progress_is_of_one_moment_though_a_leader_goes_on_while_it_is_read",
    ),
    Guard(
        "5.2.5",
        "the coordinator knows what was committed in part",
        "txstream/engine/start/takeover.py",
        "        replays=resume.replays,\n",
        "",
        f"{STARTS}::test_a_leader_knows_what_was_committed_in_part[memory]",
    ),
    Guard(
        "5.2",
        "what has joined since the start began is seen before anything is decided",
        "txstream/engine/start/takeover.py",
        "    claim = confirm(topology, claim, store)\n",
        "",
        "tests/unit/test_start_races.py"
        "::test_a_state_that_joined_while_the_former_code_started_is_not_left_out[sqlite]",
    ),
    Guard(
        "5.2",
        "code that lacks a column of a table does not write it, whenever the column came",
        "txstream/state/sql/tables.py",
        "    declarations.refuse_other_declaration(owner, spec)\n    added",
        "    added",
        "tests/unit/test_start_races.py"
        "::test_a_column_that_came_while_the_former_code_started_is_not_left_out[sqlite]",
    ),
    Guard(
        "5.2",
        "what a rebuild of ZooKeeper finds is not changed by an older driver",
        "txstream/engine/start/identity.py",
        "            first = None if fence is not None and fence.identity else kept\n",
        "            first = kept\n",
        "tests/unit/test_start_races.py"
        "::test_a_driver_of_before_does_not_change_what_a_rebuild_of_zookeeper_would_find[sqlite]",
    ),
    Guard(
        "5.2",
        "joining does not replace the identity that a leader keeps",
        "txstream/state/fence_rules.py",
        "    return found.attempt == 0 or found.identity is None\n",
        "    return True\n",
        "tests/unit/test_start_races.py::test_joining_does_not_replace_what_a_leader_keeps[sqlite]",
    ),
    Guard(
        "5.2",
        "a first run that is refused takes back nothing that another driver leads",
        "txstream/engine/start/identity.py",
        ", uuid=identity.uuid, attempt=AttemptId(0))",
        ", uuid=identity.uuid)",
        "tests/unit/test_start_races.py"
        "::test_a_first_run_that_fails_leaves_what_another_driver_has_taken_up[sqlite]",
    ),
    Guard(
        "5.2",
        "pruning leaves the last two committed rows",
        "txstream/state/sql/ledger.py",
        "    bound = min(max(bounds, default=0), last - 2, first + rows - 1)\n",
        "    bound = min(max(bounds, default=0), last - 1, first + rows - 1)\n",
        "tests/unit/test_recover.py::test_a_pruned_ledger_is_enough[OpaqueSpout]",
    ),
    Guard(
        "5.2.5",
        "a row `committing` is not taken for committed",
        _RECOVERY,
        'len(rows) == len(ledgers) and all(row.status == "committed" for row in rows)',
        "len(rows) == len(ledgers)",
        f"{RECOVERY}::test_a_txid_that_is_committed_in_part_is_replayed_in_every_database",
    ),
    Guard(
        "5.2.5",
        "one of two databases at C is not enough",
        _RECOVERY,
        'len(rows) == len(ledgers) and all(row.status == "committed" for row in rows)',
        'all(row.status == "committed" for row in rows)',
        f"{RECOVERY}::test_a_txid_that_is_committed_in_part_is_replayed_in_every_database",
    ),
    Guard(
        "5.2.5",
        "all at C, but by one and the same attempt",
        _RECOVERY,
        "if everywhere and len({row.attempt for row in rows}) == 1:",
        "if everywhere:",
        f"{RECOVERY}::test_a_txid_that_is_committed_in_part_is_replayed_in_every_database",
    ),
    Guard(
        "5.2.5",
        "a ledger behind C-1, or ahead of C, is a mismatch",
        _RECOVERY,
        "elif txid != current - 1:",
        "elif txid > current:",
        f"{RECOVERY}::test_anything_else_is_a_mismatch_that_names_both_figures",
    ),
    Guard(
        "5.2.5",
        "C-1 was committed by the attempt that ZooKeeper has",
        _RECOVERY,
        "if row.attempt != progress.committed_by:",
        "if False:",
        f"{RECOVERY}::test_anything_else_is_a_mismatch_that_names_both_figures",
    ),
    Guard(
        "5.2.5",
        "C-1 has the metas that ZooKeeper has",
        _RECOVERY,
        "if stored is not None and codec.encode(stored.metas) != codec.encode(ledger):",
        "if False:",
        f"{RECOVERY}::test_anything_else_is_a_mismatch_that_names_both_figures",
    ),
    Guard(
        "5.2.5",
        "before a mismatch is told, the epoch is read again",
        _RECOVERY,
        "            store.verify()\n            raise\n",
        "            raise\n",
        f"{RECOVERY}::test_a_mismatch_seen_by_a_leader_that_was_succeeded_is_the_end_of_its_turn",
    ),
    Guard(
        "5.2.6",
        "a transactional plan in a ledger is adopted",
        _RECOVERY,
        "if stored is None:\n            return AdoptPlan(Txid(row.txid), metas)",
        "if stored is None:\n            return None",
        f"{RECOVERY}::test_a_plan_that_only_a_ledger_has_is_adopted",
    ),
    Guard(
        "5.2.6",
        "a plan that differs from the ledger's is a mismatch",
        _RECOVERY,
        "if codec.encode(stored.metas) != codec.encode(metas):",
        "if False:",
        f"{RECOVERY}::test_a_plan_that_differs_from_the_one_in_a_ledger_is_a_mismatch",
    ),
    Guard(
        "5.2.6",
        "a plan that is already stored is adopted",
        _PROGRESS,
        "                    return stored\n                _fail_if_refused(problem)",
        "                    return metas\n                _fail_if_refused(problem)",
        f"{PROGRESS}::test_a_plan_that_is_already_stored_is_adopted[memory]",
    ),
)

COMMIT = (
    Guard(
        "5.3",
        "driver path: the fence is raised",
        _PROTOCOL,
        _RAISE_IN_COMMIT,
        "",
        PROMISE.format("stale-commit-is-refused"),
    ),
    Guard(
        "5.3",
        "driver path: an earlier attempt is undone",
        _PROTOCOL,
        "if self._was_here(here, commit):",
        "if False:",
        PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "all of a commit is one transaction",
        _SQLITE,
        '        event.listen(engine, "begin", _begin)\n',
        "",
        f"{READERS}::test_on_the_driver_path_any_query_sees_whole_batches_only[opaque]",
    ),
    Guard(
        "5.3",
        "driver path: one transaction and one ledger row for all tables",
        _PROTOCOL,
        "            rows = _write(here, attempt, writes)\n"
        "            here.write_batch(self._row(commit, COMMITTED, rows))\n",
        "            for part in writes[:-1]:\n"
        "                _write(here, attempt, [part])\n"
        "                here.write_batch(self._row(commit, COMMITTED, 1))\n"
        "                here._connection.exec_driver_sql('COMMIT')\n"
        "                here._connection.exec_driver_sql('BEGIN IMMEDIATE')\n"
        "            rows = _write(here, attempt, writes[-1:])\n"
        "            here.write_batch(self._row(commit, COMMITTED, rows))\n",
        PROMISE.format("regression-is-refused"),
    ),
    Guard(
        "5.3",
        "the batch before is committed in this very database",
        _PROTOCOL,
        "if txid > FIRST_TXID and status != COMMITTED:",
        "if False:",
        "tests/unit/test_recover.py::test_a_database_restored_beneath_a_running_driver",
    ),
    Guard(
        "5.3",
        "the batch before was committed, not only begun",
        _PROTOCOL,
        "if txid > FIRST_TXID and status != COMMITTED:",
        "if txid > FIRST_TXID and before not in found:",
        PROMISE.format("a-gap-is-refused"),
    ),
    Guard(
        "5.3",
        "the batch before was committed by the attempt that ZooKeeper has",
        "txstream/engine/commit/committer.py",
        "after=self._committed_by.get(Txid(attempt.txid - 1)),",
        "",
        "tests/unit/test_recover.py::test_a_copy_of_another_attempt_is_not_built_upon",
    ),
    Guard(
        "5.3",
        "begin: the fence is raised",
        _PROTOCOL,
        _RAISE + "            # Asked before",
        "            # Asked before",
        PROMISE.format("stale-commit-is-refused"),
    ),
    Guard(
        "5.3",
        "begin: the ledger says `committing`, also over `committed`",
        _PROTOCOL,
        "            here.write_batch(self._row(commit, COMMITTING, 0))\n",
        "",
        PROMISE.format("ledger-says-committing"),
    ),
    Guard(
        "5.3",
        "begin: an earlier attempt is undone",
        _PROTOCOL,
        "if written_before:",
        "if False:",
        PROMISE.format("beginning-undoes"),
    ),
    Guard(
        "5.3",
        "a task demands that the fence is its attempt's",
        _PROTOCOL,
        _HOLD + "            return",
        "            return",
        PROMISE.format("stale-write-is-refused"),
    ),
    Guard(
        "5.3",
        "equal, not just no newer",
        _SQLITE,
        "fence.c.uuid == uuid, fence.c.attempt == attempt)",
        "fence.c.uuid == uuid, fence.c.attempt <= attempt)",
        PROMISE.format("a-write-needs-a-beginning"),
    ),
    Guard(
        "5.3",
        "the end demands the fence too",
        _PROTOCOL,
        _HOLD + "            rows",
        "            rows",
        PROMISE.format("stale-end-is-refused"),
    ),
    Guard(
        "5.3",
        "every table is restored, with deltas or without",
        _PROTOCOL,
        "if spec.semantics is Semantics.OPAQUE:",
        "if spec.state.table == 'first':",
        PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "restore: a row that this txid created is deleted",
        _WRITER,
        "        connection.execute(self._delete_created.where(here))\n",
        "",
        PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "restore: value = prev",
        _WRITER,
        "        connection.execute(self._put_back.where(here))\n",
        "",
        PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "restore: of this txid, not of later ones",
        _WRITER,
        "here = self._table.c[TXID_COLUMN] == txid",
        "here = self._table.c[TXID_COLUMN] >= txid",
        PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "5.3",
        "raise: an attempt is let in once",
        _FENCE,
        'fence.c.attempt < bindparam("mine"),',
        'fence.c.attempt <= bindparam("mine"),',
        PROMISE.format("an-attempt-commits-once"),
    ),
    Guard(
        "5.3",
        "no task writes before its attempt has begun",
        _COMMIT,
        "            if at not in begun:\n                self._begin(at, attempt, metas, batch, reached)\n",
        "            pass\n",
        "tests/unit/test_commit_paths.py::test_the_path_is_chosen_by_batch_and_told_by_the_ledger",
    ),
    Guard(
        "5.3",
        "the end comes when every share is written, not before",
        "txstream/engine/commit/shares.py",
        '        if "failure" in document:\n            raise',
        '        if "failure" in document:\n            rows.append(0)\n            continue\n'
        '        if "failure" in document:\n            raise',
        "tests/unit/test_commit_shares.py::"
        "test_a_database_that_a_task_cannot_reach_fails_the_attempt_and_is_waited_for",
    ),
    Guard(
        "5.3",
        "every database is ended",
        _COMMIT,
        "for at, states in enumerate(self._states):\n            if at:",
        "for at, states in list(enumerate(self._states))[:1]:\n            if at:",
        "tests/unit/test_commit_paths.py::test_a_driver_that_dies_anywhere_leaves_two_databases_exact",
    ),
    Guard(
        "5.3",
        "one thread commits, also beside an attempt that was given up",
        "txstream/engine/driver/workers.py",
        "jobs if lane is Lane.JOB else 1,",
        "jobs,",
        "tests/unit/test_loop.py::test_one_thread_commits_whatever_was_given_up",
    ),
    Guard(
        "5.3",
        "an outage at COMMIT is a lost answer",
        "txstream/state/sql/failures.py",
        "case Kind.UNREACHABLE if at_commit:",
        "case Kind.UNREACHABLE if False:",
        "tests/unit/test_state_sqlite.py::TestFile::test_an_outage_at_commit_leaves_its_outcome_open",
    ),
    Guard(
        "5.3",
        "a connection to ZooKeeper that is lost is a lost answer, no refusal",
        "txstream/zookeeper/client.py",
        "        except _LOST as error:\n"
        "            raise LostAnswerError(str(error) or type(error).__name__) from error\n",
        "",
        f"{ZOOKEEPER_PARTS}::test_an_answer_that_was_lost_is_no_refusal",
    ),
    Guard(
        "5.3",
        "a lost answer is settled by the ledger",
        _COMMIT,
        "committed = lost and states.outcome(attempt)",
        "committed = lost",
        "tests/unit/test_loop_outages.py::"
        "test_a_lost_answer_that_turns_out_to_be_no_commit_fails_the_attempt",
    ),
    Guard(
        "5.3",
        "a lost answer may have been a commit",
        _COMMIT,
        "committed = lost and states.outcome(attempt)",
        "committed = False",
        "tests/unit/test_loop_outages.py::test_a_lost_answer_that_turns_out_to_be_a_commit_is_an_ack",
    ),
    Guard(
        "5.3",
        "the outcome is `committed`, by this attempt",
        _PROTOCOL,
        "row.status == COMMITTED and row.attempt == attempt.attempt",
        "row.attempt == attempt.attempt",
        PROMISE.format("outcome-is-of-one-attempt"),
    ),
    Guard(
        "5.3",
        "once its commit is acked an attempt cannot fail",
        _COORDINATOR,
        "if batch is None or batch.phase is Phase.ADVANCING:",
        "if batch is None:",
        f"{COORDINATOR}::test_once_its_commit_is_acked_an_attempt_can_no_longer_fail",
    ),
    Guard(
        "5.3",
        "the next commit waits for the answer to Advance",
        _COORDINATOR,
        "            batch.phase = Phase.ADVANCING\n",
        "            batch.phase = Phase.ADVANCING\n            self.current = Txid(self.current + 1)\n",
        f"{COORDINATOR}::test_the_next_commit_begins_only_after_advance_was_answered",
    ),
    Guard(
        "5.3",
        "Advance is repeated until it is answered",
        _PROGRESS,
        'while (problem := self._fenced.try_multi("advance", operations)) is not None:',
        'if (problem := self._fenced.try_multi("advance", operations)) is not None:\n'
        "                raise problem\n"
        "            while False:",
        f"{PROGRESS}::test_a_lost_answer_of_advance_is_recognised",
    ),
    Guard(
        "5.3",
        "Advance commits the plan that was stored, in the version in which it was",
        _PROGRESS,
        "            return version, Check(path, version)\n",
        "            return version, Check(self._paths.metas, 0)\n",
        f"{MEMORY_PROGRESS}::test_a_plan_that_was_changed_is_not_committed",
    ),
    Guard(
        "5.3",
        "Advance keeps the metas of its own txid",
        _COORDINATOR,
        "self._metas.cleanup_before(txid)\n        return",
        "self._metas.cleanup_before(Txid(txid + 1))\n        return",
        f"{COORDINATOR}::test_advance_keeps_its_txids_metas_and_drops_those_before",
    ),
    Guard(
        "5.3",
        "stop ends on a txid boundary",
        _COORDINATOR,
        "end = self.last_open if end is None else end",
        "end = Txid(self.current - 1) if end is None else end",
        "tests/unit/test_coordinator_ends.py",
    ),
    Guard(
        "5.3",
        "stop waits for the plan of a replay",
        _COORDINATOR,
        "if self._planning is not None and self._planning.txid > self._end:",
        "if self._planning is not None:",
        "tests/unit/test_coordinator_ends.py::test_draining_waits_for_the_plan_of_a_replay",
    ),
    Guard(
        "5.3",
        "while it is paused no txid is opened",
        _COORDINATOR,
        "if not replay and (self._idle or self._paused):",
        "if not replay and self._idle:",
        "tests/unit/test_coordinator_ends.py",
    ),
)

LOCKS = (
    Guard(
        "5.4",
        "PostgreSQL: READ COMMITTED, set explicitly",
        _POSTGRESQL,
        '            isolation_level="READ COMMITTED",\n',
        "",
        f"{POSTGRESQL_LOCKS}::test_whoever_waited_for_a_task_undoes_what_it_wrote",
    ),
    Guard(
        "5.4",
        "MySQL and MariaDB: READ COMMITTED, set explicitly",
        _MYSQL,
        '            isolation_level="READ COMMITTED",\n',
        "",
        f"{MYSQL_LOCKS}::test_isolation_is_set_whatever_the_servers_default_is",
    ),
    Guard(
        "5.4",
        "no plain read before the fence",
        _PROTOCOL,
        _RAISE_IN_COMMIT,
        "                self._was_here(here, commit)\n" + _RAISE_IN_COMMIT,
        f"{SQLITE_LOCKS}::test_the_fence_is_the_first_statement_of_every_transaction",
    ),
    Guard(
        "5.4",
        "PostgreSQL: FOR SHARE",
        "txstream/state/sql/dialect.py",
        ".with_for_update(read=True)",
        ".with_for_update(read=True, key_share=True)",
        f"{POSTGRESQL_LOCKS}::test_nobody_raises_the_fence_while_a_task_writes",
    ),
    Guard(
        "5.4",
        "a lock, and in share mode",
        "txstream/state/sql/dialect.py",
        ".with_for_update(read=True)",
        ".with_for_update()",
        f"{POSTGRESQL_LOCKS}::test_tasks_of_one_attempt_write_side_by_side",
    ),
    Guard(
        "5.4",
        "MySQL and MariaDB: LOCK IN SHARE MODE, FOR SHARE",
        "txstream/state/sql/dialect.py",
        "            .with_for_update(read=True)\n",
        "",
        f"{MYSQL_LOCKS}::test_nobody_raises_the_fence_while_a_task_writes",
    ),
    Guard(
        "5.4",
        "SQLite: autocommit mode of the driver",
        _SQLITE,
        "    connection.isolation_level = None\n",
        "",
        "tests/unit/test_state_sqlite.py::TestFile::test_every_commit_is_on_disk_before_it_is_acked",
    ),
    Guard(
        "5.4",
        "SQLite: BEGIN IMMEDIATE",
        _SQLITE,
        '"BEGIN" if read_only else "BEGIN IMMEDIATE"',
        '"BEGIN"',
        f"{SQLITE_LOCKS}::test_the_fence_is_the_first_statement_of_every_transaction",
    ),
    Guard(
        "5.4",
        "SQLite: WAL",
        _SQLITE,
        '"journal_mode = WAL", "synchronous = FULL"',
        '"synchronous = FULL",',
        "tests/unit/test_state_sqlite.py::TestFile::test_every_commit_is_on_disk_before_it_is_acked",
    ),
    Guard(
        "5.4",
        "SQLite: FULL, so that a commit is on the disk before it is acked",
        _SQLITE,
        '"journal_mode = WAL", "synchronous = FULL"',
        '"journal_mode = WAL", "synchronous = NORMAL"',
        "tests/unit/test_state_sqlite.py::TestFile::test_every_commit_is_on_disk_before_it_is_acked",
    ),
    Guard(
        "5.4",
        "SQLite: a task's check takes the write lock",
        _SQLITE,
        "return connection.execute(held).rowcount == 1",
        "connection.exec_driver_sql('COMMIT')\n"
        "        connection.exec_driver_sql('BEGIN')\n"
        "        return connection.exec_driver_sql('SELECT 1 FROM txstream_fence WHERE attempt = ?', "
        "(attempt,)).first() is not None",
        f"{SQLITE_LOCKS}::test_nobody_raises_the_fence_while_a_task_writes",
    ),
    Guard(
        "5.4",
        "PostgreSQL: idle in a transaction for less than the message timeout",
        _SERVER,
        "self.countable(message_timeout_seconds / 2)",
        "self.countable(message_timeout_seconds * 20)",
        f"{POSTGRESQL_LOCKS}::test_a_task_that_freezes_loses_its_transaction",
    ),
    Guard(
        "5.4",
        "MySQL and MariaDB: idle in a transaction for less than the message timeout",
        _SERVER,
        "self.countable(message_timeout_seconds / 2)",
        "self.countable(message_timeout_seconds * 20)",
        f"{MYSQL_LOCKS}::test_a_task_that_freezes_loses_its_transaction",
    ),
    Guard(
        "5.4",
        "PostgreSQL: raising the fence does not wait forever",
        _POSTGRESQL,
        "        self._configure(driver, lock_timeout=_milliseconds(seconds))\n",
        "",
        "tests/integration/test_locks_postgres.py::TestLocks::test_a_lock_that_stays_is_told",
    ),
    Guard(
        "5.4",
        "keys are written in one order",
        "txstream/state/values.py",
        '[(place, "ascending") for place in range(keys)]',
        '[(keys, "ascending")]',
        f"{POSTGRESQL_LOCKS}::test_copies_of_a_share_do_not_deadlock",
    ),
)

ORDER = (
    Guard(
        "5.4",
        "tables are written in one order",
        _PROTOCOL,
        "for spec, deltas in sorted(writes, key=_name)]",
        "for spec, deltas in writes]",
        f"{POSTGRESQL_LOCKS}::test_copies_of_a_share_of_several_tables_do_not_deadlock",
    ),
    Guard(
        "5.2.6",
        "an opaque replay of C plans anew, whatever a `committing` row says",
        _RECOVERY,
        "    if semantics is Semantics.TRANSACTIONAL:\n        adopted =",
        "    if True:\n        adopted =",
        f"{RECOVERY}::test_a_txid_that_is_committed_in_part_is_replayed_in_every_database",
    ),
    Guard(
        "5.3",
        "raise: a fence that is missing is not made anew",
        "txstream/state/fence_rules.py",
        "    if found is None:\n",
        "    if found is None:\n"
        "        return FenceRow(topology, life.uuid, AttemptId(0))\n"
        "    if found is None:\n",
        MEMORY_PROMISE.format("lost-fence-stops-writing"),
    ),
)

HOLES = (
    Guard(
        "hole 1",
        "phantom keys: restore on the driver path",
        _PROTOCOL,
        "if self._was_here(here, commit):",
        "if False:",
        PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "hole 2",
        "zombies: an older attempt is not let in by the fence",
        _FENCE,
        '        fence.c.attempt < bindparam("mine"),\n',
        "",
        PROMISE.format("stale-commit-is-refused"),
    ),
    Guard(
        "hole 2",
        "zombies: every ZooKeeper write checks the epoch",
        _FENCED,
        "self.tree.multi([Check(self._paths.epoch, epoch_version), *operations])",
        "self.tree.multi([*operations])",
        f"{PROGRESS}::test_the_older_of_two_leaders_cannot_write_anything[memory]",
    ),
    Guard(
        "hole 3",
        "ZooKeeper lost: a database that knows the topology is not joined anew",
        "txstream/engine/start/identity.py",
        "            stored = _refuse_orphan(topology.id, store, target.database)\n",
        "            pass\n",
        "tests/unit/test_recover.py",
    ),
    Guard(
        "hole 3",
        "ZooKeeper from an old copy: the ledger is compared",
        _RECOVERY,
        "            raise _mismatch(topology, progress, database, row, "
        '"they may be at most one batch apart")\n',
        "            continue\n",
        "tests/simulation/test_histories.py::"
        "test_a_zookeeper_that_was_restored_from_an_old_copy_is_a_mismatch",
    ),
    Guard(
        "hole 3",
        "ZooKeeper made again: which states there are is read after the fences were raised",
        "txstream/inspect/recover_from_ledgers.py",
        "    snapshot, identity = look()\n    rebuilt",
        "    rebuilt",
        "tests/unit/test_recover.py::test_a_state_that_joined_while_somebody_was_asked",
    ),
    Guard(
        "hole 3",
        "state tables remember whose they are",
        "txstream/state/fence_rules.py",
        "    if found.uuid != life.uuid:\n",
        "    if False:\n",
        PROMISE.format("one-id-is-one-life"),
    ),
    Guard(
        "hole 4",
        "corrupt ZooKeeper data is told with its path",
        _PROGRESS,
        "if txids != list(range(first, first + len(txids))) or (position.txid > FIRST_TXID and not txids):",
        "if False:",
        f"{PROGRESS}::test_corrupt_progress_is_named_and_never_started_afresh",
    ),
    Guard(
        "hole 5",
        "short replays: a range ends where it was planned to",
        "spouts/kafka_range_read.py",
        "return self.position >= self.range.end",
        "return self.position > self.range.start",
        f"{KAFKA_READ}::test_a_record_larger_than_a_fetch",
    ),
    Guard(
        "hole 5",
        "short replays: what retention took of a range is not skipped",
        "spouts/kafka_fetch.py",
        '                self._lost(read, f"the log begins at offset {first}")\n',
        "                return read.advance(first)\n",
        f"{KAFKA_READ}::test_a_range_that_retention_took",
    ),
    Guard(
        "hole 6",
        "a truncated log is lost data",
        "spouts/kafka_coordinator.py",
        "elif position < log.first:",
        "elif False:",
        f"{KAFKA_PLAN}::test_what_retention_took_is_lost_or_a_recorded_gap",
    ),
    Guard(
        "hole 6",
        "a topic that was created again is another one",
        "spouts/kafka_coordinator.py",
        "return bool(meta.topic_id and log.topic_id and meta.topic_id != log.topic_id)",
        "return False",
        f"{KAFKA_PLAN}::test_a_topic_created_again",
    ),
    Guard(
        "hole 7",
        "older metas go in the write that sets current, not before",
        _PROGRESS,
        "            failures = 0\n"
        '            while (problem := self._fenced.try_multi("advance", operations)) is not None:\n',
        "            if older:\n"
        '                self._fenced.try_multi("clean", operations[2:])\n'
        "                operations = operations[:2]\n"
        "            failures = 0\n"
        '            while (problem := self._fenced.try_multi("advance", operations)) is not None:\n',
        f"{PROGRESS}::test_a_batch_costs_two_round_trips_whatever_the_number_of_partitions",
    ),
    Guard(
        "hole 8",
        "a partition that a batch leaves out keeps its place",
        "txstream/metas.py",
        "        carried = dict(last)\n",
        "        carried: dict[str, Meta] = {}\n",
        "tests/unit/test_metas.py::test_a_plan_keeps_the_place_of_every_partition",
    ),
    Guard(
        "hole 8",
        "a plan starts where the last planned one ends",
        _COORDINATOR,
        "self._planning = Plan(self._tickets, txid, self._before(txid).positions(), replay)",
        "self._planning = Plan(self._tickets, txid, self._before(self.current).positions(), replay)",
        f"{COORDINATOR}::test_a_plan_starts_from_the_previous_planned_batch_committed_or_not",
    ),
    Guard(
        "hole 9",
        "a late fail of a superseded attempt changes nothing",
        _COORDINATOR,
        "return batch if batch is not None and batch.attempt == attempt else None",
        "return batch",
        f"{COORDINATOR}::test_a_late_fail_during_the_commit_of_a_newer_attempt_changes_nothing",
    ),
    Guard(
        "hole 10",
        "attempt numbers grow over restarts",
        "txstream/transaction.py",
        "return attempt_id(self.epoch, self._sequence)",
        "return attempt_id(Epoch(0), self._sequence)",
        "tests/unit/test_transaction.py::"
        "test_a_sequence_only_grows_and_stays_above_what_a_new_leader_raises_fences_to",
    ),
    Guard(
        "hole 10",
        "within one epoch they only grow",
        "txstream/transaction.py",
        "        self._sequence += 1\n",
        "        self._sequence = 1\n",
        "tests/unit/test_transaction.py::"
        "test_a_sequence_only_grows_and_stays_above_what_a_new_leader_raises_fences_to",
    ),
)

READING = (
    Guard(
        "reading",
        "the documented query leaves out a batch that is being written",
        "docs/commits.md",
        "CASE WHEN w.txid > last.txid THEN w.prev_n ELSE w.n END AS n",
        "w.n",
        f"{READERS}::test_on_the_executor_path_a_plain_query_sees_parts_and_the_documented_one_does_not",
    ),
)

GUARDS = (*VALUE_RULES, *START, *COMMIT, *LOCKS, *ORDER, *HOLES, *READING)
