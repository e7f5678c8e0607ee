"""Whether a driver has ended is told only of a process of this very boot, PID namespace and start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from support.lists import each
from support.pid_namespaces import in_another_pid_namespace

from txstream.plugins.proof.zookeeper_tree import MemoryTree
from txstream.zookeeper.candidates import DriverProcess, candidate_at, candidate_data, first_living

FIRST, SECOND = (f"/leader/{letter * 32}-000000000{number}" for letter, number in (("a", 1), ("b", 2)))
TELL = """
import json
from txstream.zookeeper.candidates import DriverProcess
print(json.dumps(DriverProcess.this().to_document()), flush=True)
input()
"""


def this() -> DriverProcess:
    found = DriverProcess.this()
    assert found is not None
    return found


def start(*before: str) -> tuple[subprocess.Popen[str], DriverProcess]:
    """Start a process that tells who it is and then waits for a line."""
    pipe = subprocess.PIPE
    child = subprocess.Popen([*before, sys.executable, "-c", TELL], stdin=pipe, stdout=pipe, text=True)
    assert child.stdout is not None
    found = DriverProcess.decode(json.loads(child.stdout.readline()))
    assert found is not None
    return child, found


def test_a_process_of_ours_runs_until_it_has_ended() -> None:
    child, found = start()
    assert found.runs() is True
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert found.runs() is False, "a process that only waits for its parent has ended, too"
    child.communicate()
    assert found.runs() is False


def test_a_process_that_has_the_pid_of_another_is_not_taken_for_it() -> None:
    assert this().runs() is True
    assert replace(this(), started=this().started - 1).runs() is False


@each("other", [{"host": "elsewhere"}, {"boot": "another"}, {"pid_namespace": "pid:[1]"}, {"pid": 1 << 80}])
@each("pid", [os.getpid(), 4_194_305], ids=["ours", "missing"])
def test_of_a_process_elsewhere_it_cannot_be_told(pid: int, other: dict[str, Any]) -> None:
    assert replace(this(), **{"pid": pid, **other}).runs() is None


def test_of_a_process_in_another_pid_namespace_it_cannot_be_told() -> None:
    child, found = start(*in_another_pid_namespace())
    assert found.runs() is None, f"it runs as {found.pid} elsewhere, which may be no pid of ours"
    assert (found.boot, found.host) == (this().boot, this().host)
    child.communicate("\n")
    assert found.runs() is None


def test_what_older_drivers_left_is_readable_and_tells_nothing() -> None:
    tree = MemoryTree()
    since = datetime.now(UTC).isoformat()
    old = {"driver": f"{this().host}:4194305", "since": since, "standby": None}
    for document in (old, {**old, "process": None}, {**old, "process": {"pid": "x"}}, {**old, "process": 7}):
        tree.write(FIRST, json.dumps(document).encode())
        found = candidate_at(tree, FIRST)
        assert found is not None
        assert (found.driver, found.runs(), found.session_seconds) == (old["driver"], None, None)
    tree.write(FIRST, b"?")
    found = candidate_at(tree, FIRST)
    assert found is not None
    assert found.runs() is None


def test_a_standby_that_lives_is_seen_behind_a_leader_that_has_ended() -> None:
    tree = MemoryTree()
    ended = json.loads(candidate_data("cold", 30.0))
    ended["process"]["started"] -= 1
    tree.write(FIRST, json.dumps(ended).encode())
    assert first_living(tree, "/leader") is None
    tree.write(SECOND, candidate_data("warm", 7.0))
    living = first_living(tree, "/leader")
    assert living is not None
    assert (living.standby, living.session_seconds, living.runs()) == ("warm", 7.0, True)
