"""Commands in a PID namespace of their own, as in another container of the same host name."""

from __future__ import annotations

import functools
import subprocess

import pytest

from check_no_skips import NO_PID_NAMESPACES

_UNSHARE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
_AS_ROOT = ("unshare", "--user", "--map-root-user", *_UNSHARE[1:])


def in_another_pid_namespace() -> tuple[str, ...]:
    """Return what to put before a command. Skips the test where the system does not permit it."""
    found = _permitted()
    if found is None:
        pytest.skip(f"{NO_PID_NAMESPACES}; run the tests as root, or permit user namespaces")
    return found


@functools.cache
def _permitted() -> tuple[str, ...] | None:
    for way in (_UNSHARE, _AS_ROOT):
        try:
            if subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0:
                return way
        except FileNotFoundError:
            return None
    return None
