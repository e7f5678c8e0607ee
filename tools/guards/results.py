"""Mistakes about results that leave for a topic: what is sent, when, and by whom."""

from __future__ import annotations

from guards import proofs
from guards.guard import Guard

_TESTS = "tests/plugins/outbox"
_TOPIC = "spouts/kafka/transactional_topic.py"
_DIES = f"{_TESTS}/test_transactional_topic.py::test_who_dies_at_any_call_leaves_each_txid_once"
_FREEZES = f"{_TESTS}/test_transactional_topic.py::test_who_freezes_at_any_call_and_wakes_up_adds_nothing"

RESULTS = (
    Guard(
        "results",
        "what a batch has left of a row is copied in its commit",
        "txstream/state/commit_protocol.py",
        "                here.keep_changes(commit.attempt, spec)\n",
        "                pass\n",
        proofs.SQLITE_KEEPS.format("optional"),
        promise="changes-are-kept",
    ),
    Guard(
        "results",
        "a txid counts as sent once the broker has it",
        "txstream/plugins/outbox/sending.py",
        "            for txid, what in found:\n",
        "            for txid, what in found:\n                sent[outbox.name] = txid\n",
        f"{_TESTS}/test_sink.py::test_a_broker_that_was_away_gets_every_row_in_order[OpaqueSpout]",
    ),
    Guard(
        "results",
        "a rewind is told in its turn, although it has no rows",
        "txstream/plugins/outbox/sending.py",
        "        txids = sorted({*found, *batches})\n",
        "        txids = sorted(found)\n",
        f"{_TESTS}/test_sink.py::test_a_rewind_is_told_in_its_turn[OpaqueSpout]",
    ),
    Guard(
        "results",
        "the marker of a txid is in the transaction of its rows",
        _TOPIC,
        '            marker = json.dumps({"life": self._life, "txid": txid}).encode()\n',
        '            marker = json.dumps({"life": self._life, "txid": txid}).encode()\n'
        "            self._producer.commit_transaction()\n            self._producer.begin_transaction()\n",
        _DIES,
    ),
    Guard(
        "results",
        "what the marker names is not sent again",
        _TOPIC,
        "        if txid <= self.reached:\n            return\n",
        "",
        _DIES,
    ),
    Guard(
        "results",
        "the marker is read once nobody else can write it",
        _TOPIC,
        "            self._producer.init_transactions()\n            self.reached = self._read_marker()\n",
        "            self.reached = self._read_marker()\n            self._producer.init_transactions()\n",
        _FREEZES,
    ),
    Guard(
        "results",
        "what the marker does not name is sent",
        _TOPIC,
        'int(marker["txid"])',
        'int(marker["txid"]) + 1',
        _DIES,
    ),
    Guard(
        "results",
        "nothing is sent before its batch is committed",
        "txstream/plugins/outbox/sending.py",
        "                if txid >= before:\n                    break\n",
        "",
        f"{_TESTS}/test_changes.py::test_what_an_undone_attempt_has_left_is_not_sent",
    ),
    Guard(
        "results",
        "a row that stays as it is, for one of a greater sequence, is not copied again",
        "txstream/state/sql/postgresql.py",
        'select(written).where(written.c[TXID_COLUMN] == bindparam("txid"))',
        "select(written)",
        "tests/integration/test_state_postgres.py::TestChanges::"
        "test_they_are_copied_by_the_statement_that_makes_them",
    ),
)
