"""Mistakes about lookups: what a tuple sees of its own batch, of earlier ones and of undone attempts."""

from __future__ import annotations

from guards.guard import Guard

_BOLT = "bolts/lookup.py"
_TESTS = "tests/unit/test_lookups.py"
_PAST = "txstream/plugins/audit/past_tables.py"
_VERSIONS = "tests/plugins/audit/test_replay_versions.py"

LOOKUPS = (
    Guard(
        "lookups",
        "a tuple sees what its own batch has for the table",
        _BOLT,
        "        fold.add_partial(self.table.deltas())\n",
        "",
        f"{_TESTS}::test_a_tuple_sees_the_batches_before_and_its_own[opaque-auto-False]",
    ),
    Guard(
        "lookups",
        "the batch before is committed before a table is read",
        "txstream/api/builder.py",
        "max_spout_pending=1 if readers else self._max_spout_pending",
        "max_spout_pending=self._max_spout_pending",
        f"{_TESTS}::test_a_tuple_sees_the_batches_before_and_its_own[opaque-auto-False]",
    ),
    Guard(
        "lookups",
        "a row that an undone attempt has written is read as it was",
        _BOLT,
        "before=self.batch_id.txid)",
        "before=Txid(self.batch_id.txid + 1))",
        f"{_TESTS}::test_what_an_undone_attempt_has_written_is_not_seen[False]",
    ),
    Guard(
        "lookups",
        "a kept row is forgotten once a batch has changed it",
        _BOLT,
        "            self._rows.pop(key, None)\n",
        "            pass\n",
        f"{_TESTS}::test_a_kept_row_is_read_again_once_it_has_changed",
    ),
    Guard(
        "lookups",
        "a kept row is forgotten once an undone attempt has changed it",
        _BOLT,
        "chain(reading.written_since(table, before), reading.written_by(table, txid))",
        "reading.written_since(table, before)",
        f"{_TESTS}::test_a_kept_row_that_an_undone_attempt_has_changed_is_read_again",
    ),
    Guard(
        "lookups",
        "a kept row is forgotten where its removal leaves no trace",
        _BOLT,
        "if before > txid or (leaves_no_trace and txid - before > 1):",
        "if before > txid:",
        f"{_TESTS}::test_a_kept_row_is_read_again_once_it_has_changed",
    ),
    Guard(
        "lookups",
        "a row that is older than the table's is not seen",
        _BOLT,
        "                older = row[place] > delta[place]\n",
        "                older = False\n",
        f"{_TESTS}::test_a_row_that_is_older_than_the_tables_changes_nothing",
    ),
    Guard(
        "lookups",
        "a version is what a row was, and not what its batch has left",
        "txstream/state/sql/writer.py",
        "            values = {name: self._prev(name).label(name) for name in values}\n",
        "",
        f"{_VERSIONS}::test_each_batch_is_joined_again_with_the_rows_of_then[opaque-auto]",
    ),
    Guard(
        "lookups",
        "of the versions since a batch the first counts",
        _PAST,
        "key=lambda one: one[BATCH], reverse=True)",
        "key=lambda one: one[BATCH], reverse=False)",
        f"{_VERSIONS}::test_each_batch_is_joined_again_with_the_rows_of_then[opaque-auto]",
    ),
    Guard(
        "lookups",
        "rows of a commit that has not ended are no rows of then",
        _PAST,
        "read(connection, keys, as_of + 1)",
        "read(connection, keys, before)",
        f"{_VERSIONS}::test_while_executors_commit_rows_are_read_as_of_then",
    ),
    Guard(
        "lookups",
        "what was before versions were kept is not claimed to be known",
        _PAST,
        "(connection.execute(without).scalar_one() or 0) + 1",
        "1",
        f"{_VERSIONS}::test_before_versions_were_kept_it_is_the_table_of_today_and_is_said",
    ),
)
