"""Small files that processes share, written whole or not at all, and locks between processes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from txstream.core.errors import ServiceUnavailableError

_POLL_SECONDS = 0.05


def write_atomically(path: Path, text: str) -> None:
    """Replace `path` with `text`. A reader sees all of the old text or all of the new, even after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def java_properties(properties: Mapping[str, str]) -> str:
    """Return the text of a Java properties file. Java reads it as Latin-1 with escapes, so a path that is not
    ASCII (for example in a home directory with an accent) must be escaped."""
    return "".join(f"{key}={_escaped(value)}\n" for key, value in properties.items())


def _escaped(value: str) -> str:
    units = value.replace("\\", "\\\\").encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    return "".join(chr(code) if 0x20 <= code < 0x7F else f"\\u{code:04x}" for code in codes)


def try_lock(path: Path) -> int | None:
    """Return a file descriptor that holds an exclusive flock on `path`, or None if another process has it.

    The lock belongs to the open file. It lasts until the descriptor and every inherited copy of it are
    closed, so never longer than the processes that hold it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def locked(path: Path, *, waiting_for: str, timeout_seconds: float) -> Iterator[None]:
    """Hold the lock file `path`, which excludes other processes and other threads.

    Raises ServiceUnavailableError when it is not free within `timeout_seconds`. `waiting_for` says what its
    holder is doing.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = threading.Event()
    while (descriptor := try_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise ServiceUnavailableError(
                f"another process has been {waiting_for} for more than {timeout_seconds:.0f} s "
                f"(it holds {path}); wait for it to end, or end it, and try again"
            )
        pause.wait(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(descriptor)
