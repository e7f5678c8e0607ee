"""Mistakes about Delta tables: what is appended, when, and by whom."""

from __future__ import annotations

from guards.guard import Guard

_ROOM = "txstream/plugins/delta"
_TESTS = "tests/plugins/delta/test_delta.py"
_COMPARED = f"{_TESTS}::test_who_has_compared_before_another_driver_commits_cannot_commit"

DELTA = (
    Guard(
        "delta",
        "nothing is appended before its batch is committed",
        "txstream/plugins/outbox/sending.py",
        "                if txid >= before:\n                    break\n",
        "",
        f"{_TESTS}::test_each_txid_is_a_version_with_its_rows",
    ),
    Guard(
        "delta",
        "what the table has is not appended again",
        f"{_ROOM}/lake.py",
        "            if txid <= self._last(table):\n                return False\n",
        "",
        f"{_TESTS}::test_what_is_appended_and_not_noted_is_not_appended_again",
    ),
    Guard(
        "delta",
        "the log is read before each comparison",
        f"{_ROOM}/lake.py",
        "            table.update_incremental()\n            if txid <=",
        "            if txid <=",
        f"{_TESTS}::test_each_txid_is_a_version_with_its_rows",
    ),
    Guard(
        "delta",
        "files are appended by the reading that was compared",
        f"{_ROOM}/lake.py",
        "            self._require(files)\n",
        "            self._require(files)\n            table.update_incremental()\n",
        f"{_COMPARED}[append]",
    ),
    Guard(
        "delta",
        "a take-over leaves a transaction of its own",
        f"{_ROOM}/lake.py",
        "            if fence:\n",
        "            if False:\n",
        f"{_COMPARED}[take_over]",
    ),
    Guard(
        "delta",
        "a file that is appended is there as a whole",
        f"{_ROOM}/lake.py",
        "            self._require(files)\n",
        "",
        f"{_TESTS}::test_a_foreign_writer_a_compaction_and_a_vacuum_come_between",
    ),
    Guard(
        "delta",
        "a table belongs to one life of one topology",
        f"{_ROOM}/lake.py",
        "        if owner != self._owner:\n",
        "        if False:\n",
        f"{_TESTS}::test_tables_that_are_refused",
    ),
    Guard(
        "delta",
        "a table that has less than was noted is refused",
        f"{_ROOM}/lake.py",
        "if sent is not None and last < sent:",
        "if False:",
        f"{_TESTS}::test_a_table_that_was_restored_from_an_older_copy_is_refused",
    ),
    Guard(
        "delta",
        "a table is not made again where one was",
        f"{_ROOM}/lake.py",
        "                if sent is not None:\n",
        "                if False:\n",
        f"{_TESTS}::test_a_folder_that_is_away_for_a_while",
    ),
    Guard(
        "delta",
        "a rewind takes out no rows of others",
        f"{_ROOM}/lake.py",
        " or self._has_of_others(table, version)",
        "",
        f"{_TESTS}::test_a_rewind_takes_out_no_rows_of_others",
    ),
    Guard(
        "delta",
        "no attempt changes a file of another one",
        f"{_ROOM}/files.py",
        "{task:05d}-{digest.hexdigest()}.parquet",
        "{task:05d}.parquet",
        f"{_TESTS}::test_files_of_undone_attempts_are_never_appended_and_are_removed",
    ),
    Guard(
        "delta",
        "files of a committed batch are not taken for those of undone attempts",
        f"{_ROOM}/lake.py",
        " and one.path not in named",
        "",
        f"{_TESTS}::test_files_of_undone_attempts_are_never_appended_and_are_removed",
    ),
)
