"""The Makefile, `.ci/run` and the checks behind them, as far as they can be tested without installing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest
from support.lists import each

import check_no_skips
import check_types
import rerun_failed
from tracked_wheel import ROOT, CheckError, tracked_files

PYPROJECT_TIME = (ROOT / "pyproject.toml").stat().st_mtime


def make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # This suite may itself run under make, whose flags and variables must not reach the make under test.
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "UV")
    }
    command = ["make", "--no-print-directory", *arguments]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60
    )


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


# --- make --------------------------------------------------------------------------------------------------


def test_an_old_python_is_refused_in_one_sentence(tmp_path: Path) -> None:
    old = script(tmp_path / "python3.9", 'case "$2" in *print*) echo "Python 3.9";; *) exit 1;; esac')
    done = make("demo", f"VENV={tmp_path / 'venv'}", f"PYTHON={old}")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("make:")]
    assert said == [
        f"txstream needs Python 3.11 or newer, but {old} is Python 3.9: "
        "install one and name it, as in `make demo PYTHON=python3.12`."
    ]
    assert not (tmp_path / "venv").exists()


def test_a_missing_python_is_told_in_one_sentence(tmp_path: Path) -> None:
    done = make("test", f"VENV={tmp_path / 'venv'}", f"PYTHON={tmp_path / 'nothing'}")
    assert done.returncode != 0
    assert "is not to be found" in done.stderr
    assert "make test PYTHON=" in done.stderr


def test_a_python_without_venv_is_told_the_package(tmp_path: Path) -> None:
    bare = script(tmp_path / "python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    done = make("demo", f"VENV={tmp_path / 'venv'}", f"PYTHON={bare}")
    assert done.returncode != 0
    assert "apt-get install python3-venv" in done.stderr


@pytest.mark.parametrize(
    ("stamp", "target", "installs"),
    [
        (".installed-core", "demo", False),
        (".installed-core", "test", True),
        (".installed-dev", "test", False),
        (None, "demo", True),
    ],
)
def test_a_second_run_installs_nothing(
    tmp_path: Path, stamp: str | None, target: str, installs: bool
) -> None:
    venv = environment(tmp_path, stamp, PYPROJECT_TIME + 1)
    planned = make("--dry-run", target, f"VENV={venv}").stdout
    assert ("pip install" in planned) is installs
    assert "-m venv" not in planned


def test_a_changed_pyproject_installs_again(tmp_path: Path) -> None:
    venv = environment(tmp_path, ".installed-core", PYPROJECT_TIME - 1)
    assert "pip install" in make("--dry-run", "demo", f"VENV={venv}").stdout


def test_an_environment_whose_python_is_gone_is_made_anew(tmp_path: Path) -> None:
    venv = environment(tmp_path, ".installed-core", PYPROJECT_TIME + 1)
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to(tmp_path / "uninstalled")
    planned = make("--dry-run", "demo", f"VENV={venv}").stdout
    assert "-m venv" in planned
    assert "pip install" in planned


@pytest.mark.parametrize("status", [0, 1])
def test_what_pip_says_is_shown_only_when_it_fails(tmp_path: Path, status: int) -> None:
    venv = environment(tmp_path, None, 0)
    says = f'case "$*" in *"pip install"*) echo "Collecting numpy"; echo "no space" >&2; exit {status};; esac'
    script(venv / "bin" / "python", says)
    script(venv / "bin" / "txstream", 'echo "the demo"')
    done = make("demo", f"VENV={venv}")
    told = done.stdout + done.stderr
    assert (done.returncode == 0) is (status == 0)
    assert ("Collecting numpy" in told, "no space" in told, "the demo" in told) == (
        status != 0,
        status != 0,
        status == 0,
    )
    assert "Installing txstream" in told


def test_where_uv_cannot_install_pip_does(tmp_path: Path) -> None:
    venv = environment(tmp_path, None, 0)
    script(venv / "bin" / "python", 'case "$*" in *"pip install"*) echo "by pip" >&2; exit 1;; esac')
    uv = script(tmp_path / "uv", 'echo "no uv today" >&2; exit 2')
    told = make("demo", f"VENV={venv}", f"UV={uv}").stderr
    assert ("no uv today" in told, "by pip" in told) == (True, True)


def test_each_peer_is_installed_once_in_an_environment_of_its_own(tmp_path: Path) -> None:
    venv = environment(tmp_path, None, 0)
    planned = make("--dry-run", "peers", f"VENV={venv}").stdout
    for name, package in (("flink", "apache-flink"), ("pathway", "pathway")):
        assert re.search(rf"{venv}-{name}/bin/python -m pip install .*'{package}==", planned)
        Path(f"{venv}-{name}").mkdir()
        Path(f"{venv}-{name}", ".installed").touch()
    assert "pip install" not in make("--dry-run", "peers", f"VENV={venv}").stdout


def test_check_does_lint_format_types_and_tests() -> None:
    planned = make("--dry-run", "check", f"VENV={sys.prefix}").stdout
    commands = ["ruff check", "ruff format --check", "tools/check_types.py", "tools/lanes.py gate"]
    places = [planned.index(command) for command in commands]
    assert places == sorted(places)


def environment(folder: Path, stamp: str | None, stamped: float) -> Path:
    """Return a folder that make takes for an environment, with one stamp of the given modification time."""
    venv = folder / "venv"
    (venv / "bin").mkdir(parents=True)
    python = venv / "bin" / "python"
    python.write_text("")
    os.utime(python, (PYPROJECT_TIME - 100, PYPROJECT_TIME - 100))
    if stamp is not None:
        (venv / stamp).write_text("")
        os.utime(venv / stamp, (stamped, stamped))
    return venv


# --- the README --------------------------------------------------------------------------------------------

README_COLUMNS = 80


def test_the_readme_wraps() -> None:
    """People read it in terminals. Code, tables and what cannot be broken may be longer."""
    wide, is_code = [], False
    for number, line in enumerate((ROOT / "README.md").read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            is_code = not is_code
        elif len(line) > README_COLUMNS and not is_code and not line.startswith(("|", "![")):
            wide.append(f"line {number} has {len(line)} characters: {line}")
    assert wide == []


# --- the checks --------------------------------------------------------------------------------------------


def test_count_is_read_from_success_and_from_failure() -> None:
    assert check_types.files_checked("Success: no issues found in 1 source file\n") == 1
    failed = "a.py:1: error: x  [misc]\nFound 2 errors in 1 file (checked 40 source files)\n"
    assert check_types.files_checked(failed) == 40
    with pytest.raises(CheckError, match="without saying"):
        check_types.files_checked("Found 1 error in 1 file (errors prevented further checking)\n")


def test_fewer_files_checked_than_tracked_is_an_error_that_names_them() -> None:
    tracked = [
        PurePosixPath("txstream/spouts/kafka/__init__.py"),
        PurePosixPath("txstream/core/batch_metas.py"),
    ]
    check_types.compare(2, tracked, tracked)
    with pytest.raises(
        CheckError, match=r"checked 1 files, git tracks 2 .* lacks txstream/spouts/kafka/__init__\.py"
    ):
        check_types.compare(1, tracked, tracked[1:])
    with pytest.raises(CheckError, match=r"without __init__\.py"):
        check_types.compare(1, tracked, tracked)


def pytest_of(tmp_path: Path, tests: str, *options: str) -> str:
    """Return what pytest prints when it runs `tests` without this project's settings."""
    (tmp_path / "test_it.py").write_text(tests)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tools"), str(ROOT / "tests")])
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # loading Hypothesis takes longer than the tests
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, *options, tmp_path],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout


def junit(tmp_path: Path, tests: str) -> str:
    """Return the report of a pytest run over `tests`, made as in `.ci/run`."""
    report = tmp_path / "report.xml"
    pytest_of(tmp_path, tests, f"--junitxml={report}")
    return report.read_text(encoding="utf-8")


def test_a_skipped_test_and_a_skipped_module_are_problems(tmp_path: Path) -> None:
    found = check_no_skips.problems(
        junit(
            tmp_path, "import pytest\n\ndef test_a():\n    pytest.skip('no server')\n\ndef test_b(): pass\n"
        )
    )
    assert len(found) == 1
    assert re.fullmatch(r"skipped: test_it\.test_a: .*test_it\.py:4: no server", found[0])
    found = check_no_skips.problems(junit(tmp_path, "import pytest\npytest.importorskip('no_such_module')\n"))
    assert len(found) == 1
    assert "no_such_module" in found[0]


@pytest.mark.parametrize(
    ("name", "option"),
    [("get_mysql.NO_MYSQL", "--without-mysql"), ("get_registry.NO_REGISTRY", "--without-registry")],
)
def test_only_tests_on_a_server_that_cannot_be_fetched_are_excused(
    tmp_path: Path, name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    report = junit(
        tmp_path,
        "import pytest, get_mysql, get_registry\n\n"
        f"def test_a():\n    pytest.skip({name} + '; fetch it')\n\n"
        "def test_b():\n    pytest.skip('there is no mariadbd here')\n\n"
        "def test_c():\n    pass\n",
    )
    assert len(check_no_skips.problems(report)) == 2
    assert check_no_skips.main([option, str(tmp_path / "report.xml")]) == 1
    (found,) = capsys.readouterr().err.splitlines()
    assert "test_b" in found


def test_what_a_container_forbids_is_excused(tmp_path: Path) -> None:
    report = junit(
        tmp_path,
        "import pytest, check_no_skips\n\n"
        "def test_a():\n    pytest.skip(f'{check_no_skips.NO_PID_NAMESPACES}; be root')\n\n"
        "def test_b():\n    pytest.skip('something else is not permitted here')\n",
    )
    (found,) = check_no_skips.problems(report)
    assert "test_b" in found


def test_expected_failures_are_none_and_an_empty_run_is_one(tmp_path: Path) -> None:
    passing = "import pytest\n\n@pytest.mark.xfail\ndef test_a():\n    assert False\n"
    assert check_no_skips.problems(junit(tmp_path, passing)) == []
    assert check_no_skips.problems(junit(tmp_path, "")) == ["the report has no test at all"]


def test_a_run_ends_with_what_was_skipped_and_why(tmp_path: Path) -> None:
    tests = (
        "import pytest\n\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_a(n):\n    pytest.skip('no server; type install server')\n\n"
        "def test_b():\n    pytest.skip('no server; type install server')\n\n"
        "def test_c():\n    pytest.skip('no such machine')\n"
    )
    *_, servers, machines, _ = pytest_of(
        tmp_path, tests, "-p", "support.skips", "-p", "xdist", "-n", "1"
    ).splitlines()
    assert servers == "3 tests: no server; type install server"
    assert machines == "1 test: no such machine"


def test_skips_end_with_status_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "report.xml"
    report.write_text("<testsuite><testcase name='t'><skipped message='m'/></testcase></testsuite>")
    for options in ([], ["--without-mysql"], ["--without-mysql", "--without-registry"]):
        assert check_no_skips.main([*options, str(report)]) == 1
        assert "skipped: " in capsys.readouterr().err
    assert check_no_skips.main(["--without-mysql"]) == 2
    assert check_no_skips.main([str(tmp_path / "absent.xml")]) == 1


# --- flaky tests -------------------------------------------------------------------------------------------

SLOW, UNIT = "tests/integration/test_a.py::test_x[1]", "tests/unit/test_b.py::test_y"


def test_what_failed_is_written_with_its_first_failure(tmp_path: Path) -> None:
    tests = (
        "import time\nimport pytest\n\ntime.sleep(0.2)  # collecting it takes time\n\n"
        "@pytest.fixture\ndef late():\n    yield\n    raise ValueError('taken down')\n\n"
        "@pytest.mark.parametrize('n', [1, 2])\n"
        "def test_a(n, late):\n    assert n == 1, 'not one'\n\n"
        "def test_b():\n    pass\n"
    )
    for processes in ([], ["-p", "xdist", "-n", "1"]):
        report = tmp_path / f"report-{len(processes)}.json"
        pytest_of(tmp_path, tests, "-p", "support.run_report", f"--report-to={report}", *processes)
        written = json.loads(report.read_text(encoding="utf-8"))
        assert written["status"] == 1
        ((file, (cases, seconds)),) = written["files"].items()
        assert (file.endswith("test_it.py"), cases, seconds > 0.2) == (True, 3, True)
        assert [seconds > 0.2 for seconds in written["ended"].values()] == [True]
        one, two = written["failed"].items()
        assert one[0].endswith("test_it.py::test_a[1]")
        assert "taken down" in one[1]
        assert two[0].endswith("test_it.py::test_a[2]")
        assert "not one" in two[1]


def test_a_failed_test_of_services_that_passes_by_itself_is_flaky() -> None:
    assert rerun_failed.judge(1, {SLOW: "was slow"}, lambda test: test == SLOW) == (
        True,
        [f"FLAKY {SLOW}", "was slow"],
    )
    other = SLOW.replace("x", "z")
    assert rerun_failed.judge(1, {SLOW: "was slow", other: "wrong"}, lambda test: test == SLOW) == (
        False,
        [f"FLAKY {SLOW}", "was slow", f"failed twice: {other}"],
    )


@each(
    ("status", "failed", "why"),
    [
        (1, {UNIT: "wrong", SLOW: "slow"}, f"needs no service: {UNIT}"),
        (1, {"tests/simulation/test_c.py::test_z": "wrong"}, "needs no service"),
        (1, {f"{SLOW}-{n}": "slow" for n in range(3)}, "3 tests failed, more than 2"),
        (1, {}, "no failed test"),
        (2, {SLOW: "slow"}, "ended with status 2"),
        (3, {SLOW: "slow"}, "ended with status 3"),
    ],
)
def test_other_failures_are_not_run_again(status: int, failed: dict[str, str], why: str) -> None:
    def passes(test: str) -> bool:
        raise AssertionError(f"{test} was run again")

    is_flaky, (line, *_) = rerun_failed.judge(status, failed, passes)
    assert not is_flaky
    assert why in line


def test_a_run_that_wrote_no_failures_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rerun_failed.main([str(tmp_path / "absent.json")]) == 1
    assert "not run" in capsys.readouterr().err


# --- the files ---------------------------------------------------------------------------------------------


def test_ci_script_is_tracked_executable_and_parses() -> None:
    run = ROOT / ".ci" / "run"
    assert PurePosixPath(".ci/run") in tracked_files()
    assert os.access(run, os.X_OK)
    bash = shutil.which("bash")
    assert bash is not None
    assert subprocess.run([bash, "-n", run], check=False).returncode == 0


def test_changelog_has_the_version_or_says_that_it_is_coming() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.M)
    assert version is not None
    unreleased = changelog.split("## [Unreleased]")[1].split("\n## ")[0]
    assert f"## [{version[1]}]" in changelog or version[1] in unreleased


def test_every_make_target_that_contributing_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = set(re.findall(r"`make ([a-z]+)", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")))
    assert named
    assert named <= targets
