"""`docs/state-backends.md`: its backend runs as printed, and its table has every promise."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.committing import BATCHES, check_tables, committing, word_source
from support.guide import DOCS, load, python_of
from support.states import Rig

from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.plugins.proof.promises import run_checks
from txstream.plugins.proof.state_suite import StateReport
from txstream.state import open_database, place_of, registry
from txstream.testing import (
    Point,
    StateConformanceError,
    TopologyTest,
    check_state_backend,
    state_checks,
)

GUIDE = DOCS / "state-backends.md"
TEXT = GUIDE.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def guide(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModuleType]:
    """The guide's code as a module; loading it registers its scheme."""
    yield load(GUIDE, tmp_path_factory.mktemp("guide"))
    registry._registered.pop("events")
    del sys.modules[f"guide_{GUIDE.stem}"]


@pytest.fixture
def url(guide: ModuleType, tmp_path: Path) -> str:
    return f"events://{tmp_path}/events.log"


@pytest.mark.soak
def test_the_example_keeps_every_promise_that_applies(guide: ModuleType, tmp_path: Path) -> None:
    """Each check has a log of its own, which is read from its beginning whenever it is opened."""
    report = run_checks(
        state_checks(),
        None,
        lambda check: check.run(f"events://{tmp_path}/{check}.log"),
        error=StateConformanceError,
        report=StateReport,
    )
    assert dict(report.not_applicable).keys() == {
        "other-processes-see-it",
        "expired-rows-are-removed",
        "due-rows-are-marked",
        "removed-rows-are-hidden",
    }


def test_what_the_example_prints(
    guide: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = [line for line in TEXT.splitlines() if line.startswith(("kept  ", "not applicable "))]
    only = [
        line.removeprefix("not applicable").removeprefix("kept").partition(":")[0].strip() for line in shown
    ]
    monkeypatch.setattr(guide, "check_state_backend", partial(check_state_backend, only=only))
    guide.check_log(tmp_path)
    assert capsys.readouterr().out.splitlines() == shown


def test_the_guides_tests(guide: Any, tmp_path: Path) -> None:
    check = next(check for check in state_checks() if check.name == "opaque-rules")
    guide.test_promise(check, tmp_path)


def test_the_example_of_a_broken_promise(guide: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    transaction = guide.LogBackend.transaction

    @contextlib.contextmanager
    def careless(self: Any, **options: Any) -> Iterator[Any]:
        failed = None
        with transaction(self, **options) as here:
            try:
                yield here
            except Exception as error:  # noqa: BLE001 - the mistake under test
                failed = error
        if failed is not None:
            raise failed

    monkeypatch.setattr(guide.LogBackend, "transaction", careless)
    with pytest.raises(StateConformanceError) as caught:
        check_state_backend(url, only=["beginning-is-atomic"])
    assert str(caught.value) in TEXT


def test_the_table_has_every_promise_in_its_words() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", TEXT.split("### The promises")[1], re.M)
    assert rows == [(check.name, check.rule) for check in state_checks()]


def test_a_topology_over_the_example(url: str) -> None:
    with TopologyTest(committing(word_source()), database=url) as test:
        test.crash(at=Point.INSIDE_COMMIT)
        test.restart()
        test.commit(1)
        test.crash(at=Point.AFTER_COMMIT)
        test.restart()
        test.run()
        check_tables(test, BATCHES)


def test_half_a_line_is_no_transaction(url: str) -> None:
    """A process that is killed while it writes leaves half a line."""
    rig = Rig(open_database(url), url).join()
    rig.commit(1, {"a": 1})
    path = Path(place_of(url))
    whole = path.read_bytes()
    with path.open("ab") as log:
        log.write(whole.splitlines()[-1][:-20])
    again = Rig(open_database(url), url, sequence=rig.sequence)
    assert again.values() == {"a": 1}
    again.commit(2, {"a": 1})
    assert again.values() == rig.values() == {"a": 2}


def _commit_and_die(guide: Path, folder: Path, url: str) -> None:
    load(guide, folder)
    rig = Rig(open_database(url), url, epoch=2)
    rig.commit(2, {"a": 1, "b": 1}, reached=lambda _: os.kill(os.getpid(), signal.SIGKILL))


def test_a_process_that_is_killed_lets_go_of_the_lock(url: str, tmp_path: Path) -> None:
    rig = Rig(open_database(url), url).join()
    rig.commit(1, {"a": 1})
    folder = tmp_path / "child"
    folder.mkdir()
    child = get_context("spawn").Process(target=_commit_and_die, args=(GUIDE, folder, url))
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    rig.commit(2, {"a": 1})
    assert rig.values() == {"a": 2}


def test_what_cannot_be_opened_is_an_outage(guide: ModuleType, tmp_path: Path) -> None:
    database = open_database(f"events://{tmp_path}/none/events.log")
    with pytest.raises(ServiceUnavailableError, match="cannot be opened"):
        database.ensure_framework_tables()
    with pytest.raises(UsageError, match="has no absolute path"):
        open_database("events://events.log")
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    assert place_of(f"events://{link}/x.log") == place_of(f"events://{tmp_path}/x.log")


def test_an_installed_package_makes_it_known_to_every_process(tmp_path: Path) -> None:
    """The entry point is declared as in the guide. Executors may use it: they are on one machine here."""
    site = tmp_path / "site"
    information = site / "my_package-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-package\nVersion: 1.0\n")
    declared = re.search(r"```toml\n\[project\.entry-points\.\"(.+)\"\]\n(.+) = \"(.+)\"\n```", TEXT)
    assert declared is not None
    (information / "entry_points.txt").write_text(f"[{declared[1]}]\n{declared[2]} = {declared[3]}\n")
    (site / "my_package").mkdir()
    code = (
        python_of(GUIDE)
        .partition("import txstream\n")[0]
        .replace("on_executors = False", "on_executors = True")
    )
    (site / "my_package" / "logs.py").write_text(code)
    program = (
        "import sys, txstream.testing as t; print(t.check_state_backend(sys.argv[1], only=sys.argv[2:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, f"events://{tmp_path}/events.log", "other-processes-see-it"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert (done.stdout, done.returncode) == ("kept            other-processes-see-it\n", 0), done.stderr
