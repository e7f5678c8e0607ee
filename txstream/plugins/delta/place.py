"""Where a Delta table is, and how to reach it.

Invariant. What is said of a place shows no storage option's value, and nothing of its address that may be a
password.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txstream.core.errors import ServiceUnavailableError, TopologyError, TxstreamError
from txstream.core.transaction import Txid

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.fs import DeltaStorageHandler

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
_SECRET_PART = re.compile(r"(?<=://)[^/@]*:[^/@]*@|\?\S*")
_HIDDEN = "***"
_SHORTEST_HIDDEN = 4  # characters: "true" or a port, hidden wherever they stand, would hide the sense


def require_deltalake() -> Any:
    """Return the library. Raises TopologyError where it is not installed."""
    try:
        import deltalake
    except ImportError as error:
        raise TopologyError(
            "a Delta table needs the package deltalake, on the driver and on executors; type "
            "pip install 'txstream[delta]'"
        ) from error
    return deltalake


@dataclass(frozen=True, slots=True)
class Place:
    """A Delta table's address, a path or a URL, and the options with which to reach it, such as keys."""

    uri: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)

    @classmethod
    def of(cls, uri: str | Path, options: Mapping[str, str] | None = None) -> Place:
        """Check and return a place. A path is taken from the working folder, once."""
        text = str(uri)
        if not text or not isinstance(uri, (str, Path)):
            raise TopologyError(f"a Delta table has a path or a URL, not {uri!r}")
        given = dict(options or {})
        for name, value in given.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise TopologyError(
                    f"Delta table {text!r}: storage option {name!r} is {type(value).__name__}; names and "
                    f"values are text, as in {{'aws_region': 'eu-west-1'}}"
                )
        return cls(text.rstrip("/") if _SCHEME.match(text) else str(Path(text).absolute()), given)

    @property
    def local(self) -> Path | None:
        """The folder, if it is one of this machine."""
        if self.uri.startswith("file://"):
            return Path(self.uri.removeprefix("file://"))
        return None if _SCHEME.match(self.uri) else Path(self.uri)

    @property
    def shown(self) -> str:
        return _SECRET_PART.sub("", self.uri)

    def __str__(self) -> str:
        return f"Delta table {self.shown!r}"

    def files(self) -> DeltaStorageHandler:
        """Return what reads and writes in the table's folder. Raises ServiceUnavailableError where a folder
        of this machine is not there: it was made with the table, so what it is on is away."""
        require_deltalake()
        from deltalake.fs import DeltaStorageHandler

        if self.local is not None and not self.local.is_dir():
            raise self.away("its folder is not there")
        with self.reaching():
            return DeltaStorageHandler(self.uri, dict(self.options) or None)

    def read(self, version: int | None = None) -> DeltaTable | None:
        """Open the table, as of a version or as it is; return None if there is none. Raises
        ServiceUnavailableError, also for a version that is not there."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self.reaching():
            try:
                return DeltaTable(self.uri, version=version, storage_options=dict(self.options) or None)
            except TableNotFoundError:
                return None

    def away(self, why: object) -> ServiceUnavailableError:
        error = ServiceUnavailableError(f"{self} cannot be reached: {self.without_secrets(str(why))}")
        error.service = str(self)
        return error

    def without_secrets(self, text: str) -> str:
        for value in self.options.values():
            if len(value) >= _SHORTEST_HIDDEN:
                text = text.replace(value, _HIDDEN)
        return _SECRET_PART.sub(_HIDDEN, text) if "://" in text else text

    @contextlib.contextmanager
    def reaching(self) -> Iterator[None]:
        """Turn what the library or the file system raises into ServiceUnavailableError."""
        from deltalake.exceptions import CommitFailedError, DeltaError

        try:
            yield
        except TxstreamError:
            raise
        except CommitFailedError as error:
            raise self.away(
                f"another driver was faster, or another writer has changed it ({error})"
            ) from None
        except (DeltaError, OSError) as error:
            raise self.away(error) from None  # its text has no more than this


def app_id(topology: str, table: str) -> str:
    """Return the name under which a topology's transactions are in the log of the Delta table."""
    return f"{topology}/{table}"


def folder_of(topology: str, table: str, txid: Txid) -> str:
    """Return the folder in the table's own that has the files of a txid."""
    digest = hashlib.blake2b(app_id(topology, table).encode(), digest_size=8).hexdigest()
    return f"txstream-{digest}/{txid:020d}"
