"""Guards that close the ten holes that Storm leaves (docs/semantics.md)."""

from __future__ import annotations

from guards import proofs, sources
from guards.guard import Guard

HOLES = (
    Guard(
        "hole 1",
        "phantom keys: restore on the driver path",
        sources.PROTOCOL,
        "if self._was_here(here, commit):",
        "if False:",
        proofs.PROMISE.format("phantom-keys-are-undone"),
    ),
    Guard(
        "hole 2",
        "zombies: the fence refuses an older attempt",
        sources.FENCE,
        '        fence.c.attempt < bindparam("mine"),\n',
        "",
        proofs.PROMISE.format("stale-commit-is-refused"),
    ),
    Guard(
        "hole 2",
        "zombies: every ZooKeeper write checks the epoch",
        sources.FENCED,
        "self.tree.multi([Check(self._paths.epoch, epoch_version), *operations])",
        "self.tree.multi([*operations])",
        f"{proofs.PROGRESS}::test_the_older_of_two_leaders_cannot_write_anything[memory]",
    ),
    Guard(
        "hole 3",
        "ZooKeeper lost: a topology does not join a database that already knows it",
        "txstream/engine/start/identity.py",
        "            stored = _refuse_orphan(topology.id, store, target.database)\n",
        "            pass\n",
        "tests/unit/test_recover.py",
    ),
    Guard(
        "hole 3",
        "ZooKeeper restored from an old copy: it is compared with the ledger",
        sources.RECOVERY,
        "            raise _mismatch(topology, progress, database, row, "
        '"they may be at most one batch apart")\n',
        "            continue\n",
        "tests/simulation/test_histories.py::"
        "test_a_zookeeper_that_was_restored_from_an_old_copy_is_a_mismatch",
    ),
    Guard(
        "hole 3",
        "ZooKeeper rebuilt: the list of states is read after the fences are raised",
        "txstream/inspect/recover_from_ledgers.py",
        "    snapshot, identity = look()\n    rebuilt",
        "    rebuilt",
        "tests/unit/test_recover.py::test_a_state_that_joined_while_somebody_was_asked",
    ),
    Guard(
        "hole 3",
        "a fence remembers the uuid of its topology",
        "txstream/state/fence_rules.py",
        "    if found.uuid != life.uuid:\n",
        "    if False:\n",
        proofs.PROMISE.format("one-id-is-one-life"),
    ),
    Guard(
        "hole 4",
        "corrupt ZooKeeper data is an error that names its path",
        sources.PROGRESS,
        "if txids != list(range(first, first + len(txids))) or (position.txid > FIRST_TXID and not txids):",
        "if False:",
        f"{proofs.PROGRESS}::test_corrupt_progress_is_named_and_never_started_afresh",
    ),
    Guard(
        "hole 5",
        "short replays: a read ends only at the planned end of its range",
        "spouts/kafka_range_read.py",
        "return self.position >= self.range.end",
        "return self.position > self.range.start",
        f"{proofs.KAFKA_READ}::test_a_record_larger_than_a_fetch",
    ),
    Guard(
        "hole 5",
        "short replays: records of a range that retention deleted are not skipped",
        "spouts/kafka_fetch.py",
        '                self._lost(read, f"the log begins at offset {first}")\n',
        "                return read.advance(first)\n",
        f"{proofs.KAFKA_READ}::test_a_range_that_retention_took",
    ),
    Guard(
        "hole 5",
        "short replays: a stored plan whose beginning was deleted is not begun",
        "spouts/kafka_coordinator.py",
        "elif log.first > meta.start:",
        "elif False:",
        f"{proofs.KAFKA_PLANS}::test_a_stored_plan_is_whole_from_the_logs_first_offset_to_its_end",
    ),
    Guard(
        "hole 5",
        "blocks of records become one only if nothing lies between them",
        "spouts/kafka_record_blocks.py",
        " and block.first == blocks[-1].stop",
        "",
        "tests/unit/test_kafka_decode_numpy.py::test_only_neighbours_in_the_same_records_become_one_block",
    ),
    Guard(
        "hole 6",
        "a truncated log counts as lost data",
        "spouts/kafka_coordinator.py",
        "elif position < log.first:",
        "elif False:",
        f"{proofs.KAFKA_PLAN}::test_what_retention_took_is_lost_or_a_recorded_gap",
    ),
    Guard(
        "hole 6",
        "a log that was cut back counts as lost data",
        "spouts/kafka_coordinator.py",
        "elif position > log.end:",
        "elif False:",
        f"{proofs.KAFKA_PLANS}::test_a_place_outside_of_the_log_is_lost_data",
    ),
    Guard(
        "hole 6",
        "a gap is recorded even if nothing is read behind it",
        "spouts/kafka_coordinator.py",
        "if taken or name not in last or place.skipped_from is not None:",
        "if taken or name not in last:",
        f"{proofs.KAFKA_PLANS}::test_a_gap_is_recorded_even_if_nothing_is_read_behind_it",
    ),
    Guard(
        "hole 6",
        "a topic that was deleted and created again counts as another topic",
        "spouts/kafka_coordinator.py",
        "return bool(meta.topic_id and log.topic_id and meta.topic_id != log.topic_id)",
        "return False",
        f"{proofs.KAFKA_PLAN}::test_a_topic_created_again",
    ),
    Guard(
        "hole 6",
        "a run is not caught up with a topic that was created again",
        "spouts/kafka_coordinator.py",
        "return bool(meta.topic_id and now) and now == target.topic_id != meta.topic_id",
        "return False",
        f"{proofs.KAFKA_PLANS}::test_a_topic_created_again_is_not_caught_up_wherever_the_former_one_ended",
    ),
    Guard(
        "hole 7",
        "older metas are deleted in the write that sets `current`, not before",
        sources.PROGRESS,
        "            failures = 0\n"
        '            while (problem := self._fenced.try_multi("advance", operations)) is not None:\n',
        "            if older:\n"
        '                self._fenced.try_multi("clean", operations[2:])\n'
        "                operations = operations[:2]\n"
        "            failures = 0\n"
        '            while (problem := self._fenced.try_multi("advance", operations)) is not None:\n',
        f"{proofs.PROGRESS}::test_a_batch_costs_two_round_trips_whatever_the_number_of_partitions",
    ),
    Guard(
        "hole 8",
        "a partition that a batch leaves out keeps its place",
        "txstream/batch_metas.py",
        "        carried = dict(last)\n",
        "        carried: dict[str, Meta] = {}\n",
        "tests/unit/test_metas.py::test_a_plan_keeps_the_place_of_every_partition",
    ),
    Guard(
        "hole 8",
        "a plan starts where the last planned one ends",
        sources.COORDINATOR,
        "self._planning = Plan(self._tickets, txid, self._before(txid).positions(), replay)",
        "self._planning = Plan(self._tickets, txid, self._before(self.current).positions(), replay)",
        f"{proofs.COORDINATOR}::test_a_plan_starts_from_the_previous_planned_batch_committed_or_not",
    ),
    Guard(
        "hole 9",
        "a late fail of a superseded attempt changes nothing",
        sources.COORDINATOR,
        "return batch if batch is not None and batch.attempt == attempt else None",
        "return batch",
        f"{proofs.COORDINATOR}::test_a_late_fail_during_the_commit_of_a_newer_attempt_changes_nothing",
    ),
    Guard(
        "hole 10",
        "attempt numbers keep growing across restarts",
        "txstream/transaction.py",
        "return attempt_id(self.epoch, self._sequence)",
        "return attempt_id(Epoch(0), self._sequence)",
        "tests/unit/test_transaction.py::"
        "test_a_sequence_only_grows_and_stays_above_what_a_new_leader_raises_fences_to",
    ),
    Guard(
        "hole 10",
        "within one epoch, attempt numbers only grow",
        "txstream/transaction.py",
        "        self._sequence += 1\n",
        "        self._sequence = 1\n",
        "tests/unit/test_transaction.py::"
        "test_a_sequence_only_grows_and_stays_above_what_a_new_leader_raises_fences_to",
    ),
)
