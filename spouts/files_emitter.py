"""The executors' side of `FileSpout`: planned ranges as Arrow record batches. No file stays open."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from txstream.api.errors import DataLostError, PartitionUnavailableError
from txstream.api.spouts import PartitionEmitter
from txstream.spouts.files_format import File, Incomplete
from txstream.transaction import TransactionAttempt

if TYPE_CHECKING:
    from txstream.spouts.files import FileRange, FileSpout


class FileEmitter(PartitionEmitter["FileRange"]):
    """Reads ranges of one format."""

    def __init__(self, source: FileSpout) -> None:
        self._source = source
        self._format = source.reader()

    def emit(self, attempt: TransactionAttempt, partition: str, meta: FileRange) -> Iterator[pa.RecordBatch]:
        """The rows of one range. Raises DecodeError for what cannot be read as declared. A file that differs
        from the plan is DataLostError on the driver's host. Another host may see changes late (a network file
        system), so there it is PartitionUnavailableError, and the batch is tried again."""
        if meta.is_empty:
            return
        directory = self._source.directory
        try:
            yield from self._format.read(File.look(directory, partition), meta)
        except DataLostError as error:
            raise self._gone(error) from error
        except FileNotFoundError as error:
            if not directory.is_dir():
                raise PartitionUnavailableError(
                    f"the directory {directory} is not there on the host {platform.node()}; the driver and "
                    f"every Spark executor must see it under this path"
                ) from error
            raise self._gone(File.missing(directory, partition).lost(meta, "it was deleted")) from error
        except Incomplete as error:
            file = File.missing(directory, partition)
            raise self._gone(file.lost(meta, f"it is no longer complete ({error})")) from error
        except OSError as error:
            raise PartitionUnavailableError(f"{directory / partition} cannot be read: {error}") from error

    def _gone(self, error: DataLostError) -> DataLostError | PartitionUnavailableError:
        here = platform.node()
        if here == self._source.driver_host:
            return error
        return PartitionUnavailableError(
            f"as the host {here} sees it, {error}. Does it see the same directory as the driver's host "
            f"{self._source.driver_host}, and at once?"
        )
