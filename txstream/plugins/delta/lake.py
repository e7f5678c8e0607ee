"""Appends files to a Delta table, each txid once.

How a txid is appended once. With each version, the log of a Delta table may have a transaction of an
application: here `topology/table` and the txid. The library neither skips one that is there already nor
refuses a lower one. So `append` 1. reads the log to its end, 2. compares the transaction there with the txid,
3. commits by that reading. Step 3 fails if anybody has committed a transaction of the same application since
step 1; commits of other writers do not matter. One reading serves one commit: a second one by it fails, too.

Invariants. The transaction in the log never falls. A version that raises it has all files of that txid, each
of which was there, with its size, just before. The table belongs to one bolt of one life of a topology, by a
property; a table without it that has the same columns becomes that bolt's.
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Field, Schema, Transaction
from deltalake.transaction import AddAction
from pyarrow.fs import FileSelector, FileType

from txstream.core.errors import (
    CorruptStateError,
    DataLostError,
    IdentityMismatchError,
    ProgressMismatchError,
    StateTableError,
)
from txstream.core.transaction import FIRST_TXID, Txid
from txstream.core.wording import counted
from txstream.plugins.delta.files import WrittenFile
from txstream.plugins.delta.place import Place, app_id, folder_of
from txstream.plugins.delta.reading import last_not_after

log = logging.getLogger(__name__)

OWNER = "txstream.owner"
"""The property that says whose table it is."""
_NONE_YET = Txid(FIRST_TXID - 1)
# A file cannot be appended by its name and size alone to a table with one of these.
_REFUSED_FEATURES = frozenset(
    {
        *("columnMapping", "generatedColumns", "identityColumns", "rowTracking", "checkConstraints"),
        *("icebergCompatV1", "icebergCompatV2"),
    }
)
_REFUSED_PROPERTIES = ("delta.constraints.", "delta.columnMapping.mode", "delta.enableRowTracking")

_OF_NO_ROWS = frozenset(
    {"OPTIMIZE", "VACUUM START", "VACUUM END", "RESTORE", "SET TBLPROPERTIES", "ADD COLUMN"}
)


class Lake:
    """A Delta table, as the bolt with this SQL table of one life of a topology sees it. Not thread-safe."""

    def __init__(self, place: Place, topology: str, uuid: str, table: str) -> None:
        self._place = place
        self._topology, self._table = topology, table
        self._app = app_id(topology, table)
        self._owner = json.dumps({"app": self._app, "uuid": uuid})
        self._delta: DeltaTable | None = None

    def take_over(
        self, columns: pa.Schema, partition_by: Sequence[str], sent: Txid | None, *, fence: bool = True
    ) -> Txid:
        """Open the table, or make it if nothing was ever sent; return the last txid that is in it. With
        `fence`, whoever was about to append a txid cannot any more.

        `sent` is what was noted. Raises IdentityMismatchError for a table of another bolt or topology,
        StateTableError for other columns, DataLostError for one that is gone, ProgressMismatchError for one
        that has less than was noted, and ServiceUnavailableError.
        """
        with self._place.reaching():
            table = self._place.read()
            if table is None:
                if sent is not None:
                    raise DataLostError(
                        f"{self._place} is gone: its log is not there, and it had all up to txid {sent}. "
                        f"Bring it back, or give the bolt another uri and another table="
                    )
                table = self._made(columns, partition_by)
            self._check_owner(table)
            self._check_columns(table, columns, partition_by)
            last = self._last(table)
            if sent is not None and last < sent:
                raise ProgressMismatchError(
                    f"{self._place} is as of txid {last}, but all up to txid {sent} was appended to it: it "
                    f"was restored from an older copy, or versions were removed. Bring them back, or "
                    f"give the bolt another uri and another table="
                )
            if fence:
                self._commit(table, last, [])
        self._delta = table
        return last

    def append(self, txid: Txid, files: Sequence[WrittenFile]) -> bool:
        """Append the files of a txid, unless the table has them. Return whether they were missing.

        Raises ServiceUnavailableError, also if another driver appends to the table: call `take_over` then,
        and again. Raises DataLostError if a file is gone.
        """
        table = self._delta
        assert table is not None
        with self._place.reaching():
            table.update_incremental()
            if txid <= self._last(table):
                return False
            self._require(files)
            self._commit(table, txid, files)
        return True

    def restore(self, txid: Txid, to: Txid) -> bool:
        """Let the table have, as of `txid`, what it had as of `to`, unless it is as far. Return whether its
        rows are those: rows of others that came since stay, and so do all others then.

        Raises what `append` does. Raises DataLostError if files that were there then are gone.
        """
        table = self._delta
        assert table is not None
        with self._place.reaching():
            table.update_incremental()
            last = self._last(table)
            if txid <= last:
                return True
            if last <= to:  # nothing of what is undone has come here
                self._commit(table, txid, [])
                return True
            version = last_not_after(self._place, self._app, to, table.version(), table)
            if version is None or self._has_of_others(table, version):
                why = "its log goes back less" if version is None else "others have written there since"
                log.warning(
                    "%s keeps the rows of txid %d to %d, which were undone by a rewind: %s. Take them out by "
                    "hand",
                    *(self._place, to + 1, last, why),
                )
                self._commit(table, txid, [])
                return False
            columns = table.schema()
            table.restore(version, commit_properties=self._properties(txid))
            table.update_incremental()
            there = {one.name for one in table.schema().fields}
            if missing := [one for one in columns.fields if one.name not in there]:
                table.alter.add_columns(missing, commit_properties=self._properties(txid))
        return True

    def _has_of_others(self, table: DeltaTable, since: int) -> bool:
        """Return whether rows behind a version are not ours."""
        later = table.history(table.version() - since)
        return any(
            one.get("txstream-topology") is None and one["operation"] not in _OF_NO_ROWS for one in later
        )

    def close(self) -> None:
        """Forget what was read of the log."""
        self._delta = None

    def remove_undone(self, txid: Txid, files: Sequence[WrittenFile]) -> int:
        """Remove files of a txid's attempts that were undone: all but these, which are committed. Return
        their number."""
        named = {one.path for one in files}
        folder = folder_of(self._topology, self._table, txid)
        system = self._place.files()
        with self._place.reaching():
            found = system.get_file_info_selector(FileSelector(folder, allow_not_found=True))
            undone = [one.path for one in found if one.type is FileType.File and one.path not in named]
            for path in undone:
                with contextlib.suppress(FileNotFoundError):
                    system.delete_file(path)
        # What a worker that was killed has begun: the library neither shows it nor would a vacuum remove it.
        begun = [*(self._place.local / folder).glob("*#*")] if self._place.local else []
        for one in begun:
            one.unlink(missing_ok=True)
        return len(undone) + len(begun)

    def _made(self, columns: pa.Schema, partition_by: Sequence[str]) -> DeltaTable:
        log.info("making %s", self._place)
        return DeltaTable.create(
            self._place.uri,
            Schema.from_arrow(columns),
            mode="error",
            partition_by=list(partition_by),
            configuration={OWNER: self._owner},
            storage_options=dict(self._place.options) or None,
            commit_properties=self._properties(_NONE_YET),
            raise_if_key_not_exists=False,
        )

    def _check_owner(self, table: DeltaTable) -> None:
        owner = table.metadata().configuration.get(OWNER)
        if owner is None:
            table.alter.set_table_properties(
                {OWNER: self._owner}, raise_if_not_exists=False, commit_properties=self._properties(_NONE_YET)
            )
            table.update_incremental()
            owner = table.metadata().configuration.get(OWNER)
        if owner != self._owner:
            raise IdentityMismatchError(
                f"{self._place} belongs to another topology, or to an earlier life of this one: its property "
                f"{OWNER} is {owner}, and this would be {self._owner}. Give the bolt another uri"
            )

    def _check_columns(self, table: DeltaTable, columns: pa.Schema, partition_by: Sequence[str]) -> None:
        """Add columns that the table lacks; raise StateTableError for any other difference."""
        metadata, protocol = table.metadata(), table.protocol()
        features = _REFUSED_FEATURES & {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        properties = [
            name
            for name, value in metadata.configuration.items()
            if name.startswith(_REFUSED_PROPERTIES) and value not in ("none", "false")
        ]
        if features or properties:
            raise StateTableError(
                f"{self._place} has {', '.join(sorted(features) + properties)}, with which files cannot be "
                f"appended as they are; give the bolt another uri"
            )
        if list(metadata.partition_columns) != list(partition_by):
            raise StateTableError(
                f"{self._place} is partitioned by {metadata.partition_columns}, and the bolt has "
                f"partition_by={list(partition_by)}"
            )
        wanted = {one.name: one for one in Schema.from_arrow(columns).fields}
        there = {one.name: one for one in table.schema().fields}
        wrong = [
            f"column {name!r} is {there[name].type} there and {one.type} here"
            for name, one in wanted.items()
            if name in there and there[name].type != one.type
        ]
        wrong += [f"column {name!r} may not be null there" for name, one in there.items() if not one.nullable]
        taken = {name.lower() for name in there}
        wrong += [
            f"column {name!r} differs in case from one that is there"
            for name in wanted
            if name not in there and name.lower() in taken
        ]
        if wrong:
            raise StateTableError(
                f"{self._place} does not fit: {'; '.join(wrong)}. Give the bolt another uri"
            )
        missing = [Field(name, one.type, nullable=True) for name, one in wanted.items() if name not in there]
        if missing:
            log.warning("%s gets %s: %s", self._place, counted(len(missing), "column"),
                        ", ".join(one.name for one in missing))  # fmt: skip
            table.alter.add_columns(missing, commit_properties=self._properties(self._last(table)))
            table.update_incremental()

    def _last(self, table: DeltaTable) -> Txid:
        found = table.transaction_version(self._app)
        if found is None:
            raise CorruptStateError(
                f"{self._place} has no transaction of {self._app!r} any more, so nobody knows what is in it. "
                f"Unset delta.setTransactionRetentionDuration, and give the bolt another uri and table="
            )
        return Txid(found)

    def _require(self, files: Sequence[WrittenFile]) -> None:
        found = self._place.files().get_file_info([one.path for one in files])
        wrong = [one for one, info in zip(files, found, strict=True) if info.size != one.size]
        if wrong:
            raise DataLostError(
                f"{self._place} lacks {counted(len(wrong), 'file')} of a committed batch, such as "
                f"{wrong[0].path} with {counted(wrong[0].rows, 'row')}: removed by a vacuum while the "
                f"topology stood still, or its folder is another one. Bring them back"
            )

    def _commit(self, table: DeltaTable, txid: Txid, files: Sequence[WrittenFile]) -> None:
        now = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(one.path, one.size, one.partition, now, True, json.dumps({"numRecords": one.rows}))
            for one in files
        ]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            list(table.metadata().partition_columns),
            commit_properties=self._properties(txid),
        )

    def _properties(self, txid: Txid) -> CommitProperties:
        told = {"txstream-topology": self._topology, "txstream-txid": txid}
        return CommitProperties(custom_metadata=told, app_transactions=[Transaction(self._app, txid)])
