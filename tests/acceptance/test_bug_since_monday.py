"""`make fork`: wrong until Wednesday, looked at, exact on Thursday, and nothing left running."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.timeout(600)


@pytest.mark.soak
def test_a_bug_since_monday_is_found_and_exact_on_thursday(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "txstream.examples.bug_since_monday"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    days = re.findall(r"^(Monday|Wednesday|Thursday): (wrong in|exact: yes)", done.stdout, re.MULTILINE)
    assert days == [("Monday", "wrong in"), ("Wednesday", "wrong in"), ("Thursday", "exact: yes")]
    assert "1 of 3 components changed (amount); state totals: rows differ" in done.stdout
    assert list(tmp_path.iterdir()) == [], "its folder is gone"
    assert [one.pid for one in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(one.info)] == []
