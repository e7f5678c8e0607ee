"""Fetching MySQL, as far as that can be tested without a network: scripts stand in for Debian's programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import get_mysql

APT = """
for word in "$@"; do
  case "$word" in
    Dir::Cache=*) cache="${word#*=}" ;;
    Dir::Etc::sourcelist=*) cat "${word#*=}" >> "$PLAYED/sources" ;;
    install) touch "$cache/archives/mysql-server-core_9_amd64.deb" "$cache/archives/perl-base_5_amd64.deb" ;;
  esac
done
"""
UNPACK = """
case "$2" in *perl*) exit 1 ;; esac
mkdir -p "$3/usr/sbin" "$3/usr/lib/x86_64-linux-gnu"
echo > "$3/usr/sbin/mysqld"
printf '#!/bin/sh\\necho mysqld  Ver 9.7.4\\n' > "$3/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
chmod +x "$3/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"
"""


class Debian:
    """A cache folder, and a folder of programs, which is all of PATH besides /usr/bin and /bin."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._programs = folder / "programs"
        self._programs.mkdir()
        self.at = folder / "cache" / "mysql"
        self.sources = folder / "sources"
        patch.setenv("PATH", f"{self._programs}:/usr/bin:/bin")
        patch.setenv("PLAYED", str(folder))
        patch.setattr(get_mysql, "_KEYRING", self._programs / "apt-get")
        patch.setattr(get_mysql, "folder", lambda: self.at)
        self.has("apt-get", APT)
        self.has("dpkg", "echo amd64")
        self.has("dpkg-deb", UNPACK)
        self.has("mysqld", "echo mysqld  Ver 10.11.6-MariaDB")

    def has(self, name: str, script: str) -> None:
        program = self._programs / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.at.parent.iterdir()) if self.at.parent.exists() else []


@pytest.fixture
def debian(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Debian:
    return Debian(tmp_path, monkeypatch)


def test_it_is_fetched_once(debian: Debian, capsys: pytest.CaptureFixture[str]) -> None:
    assert get_mysql.server() is None
    assert get_mysql.main([]) == 0
    assert str(debian.at) in capsys.readouterr().out
    assert debian.left() == ["mysql"]
    loader, option, libraries, server = get_mysql.server() or []
    assert (Path(loader).name, option) == ("ld-linux-x86-64.so.2", "--library-path")
    assert libraries.startswith(str(Path(loader).parent))
    assert Path(server) == debian.at / "usr" / "sbin" / "mysqld"
    assert debian.sources.read_text().endswith(" sid main\n")
    debian.has("apt-get", "exit 1")
    assert get_mysql.main([]) == 0
    assert capsys.readouterr().out == ""


def test_a_mysql_of_the_systems_is_enough(debian: Debian) -> None:
    debian.has("mysqld", "echo mysqld  Ver 8.4.6 for Linux on x86_64")
    assert get_mysql.main([]) == 0
    assert debian.left() == []
    assert [Path(word).name for word in get_mysql.server() or []] == ["mysqld"]


@pytest.mark.parametrize(
    ("name", "script", "expected"),
    [
        ("apt-get", "echo no network here; exit 100", "apt-get .* failed:\nno network here"),
        ("dpkg-deb", "echo disk full >&2; exit 2", "dpkg-deb .* failed:\ndisk full"),
        ("dpkg-deb", "exit 0", "mysql-server-core in sid has no usr/sbin/mysqld or lacks its loader"),
        (
            "dpkg-deb",
            f'{UNPACK}\necho exit 127 >> "$3"/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2',
            "--version failed",
        ),
    ],
)
def test_what_fails_is_told_and_leaves_nothing(
    debian: Debian, capsys: pytest.CaptureFixture[str], name: str, script: str, expected: str
) -> None:
    debian.has(name, script)
    assert get_mysql.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith("MySQL could not be fetched: ")
    with pytest.raises(get_mysql.FetchError, match=expected):
        get_mysql.fetch(debian.at)
    assert debian.left() == []
    assert get_mysql.server() is None


def test_a_system_that_is_not_debian_is_told(debian: Debian, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(get_mysql, "_KEYRING", Path("/nowhere/keyring.gpg"))
    with pytest.raises(get_mysql.FetchError, match="apt-get install debian-archive-keyring"):
        get_mysql.fetch(debian.at)
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(get_mysql.FetchError, match=r"no apt-get here.*install a MySQL server \(mysqld\)"):
        get_mysql.fetch(debian.at)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Types: deb\n# a snapshot\nURIs: http://mirror.test/debian/\nSuites: x\n",
            "http://mirror.test/debian",
        ),
        (
            "deb [arch=amd64 signed-by=/a] https://mirror.test/x/debian x main\n",
            "https://mirror.test/x/debian",
        ),
        (
            "deb http://archive.test/ubuntu x main\ndeb-src http://a.test/debian x\n",
            get_mysql.FALLBACK_MIRROR,
        ),
        ("# deb http://mirror.test/debian x main\n", get_mysql.FALLBACK_MIRROR),
        ("deb http://mirror.test/debian-security x\nURIs: http://b.test/debian", "http://b.test/debian"),
    ],
)
def test_the_mirror_is_the_systems_own(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "a.list").write_text(text)
    assert get_mysql.mirror([tmp_path / "a.list"]) == expected


def test_root_shares_it_with_whom_the_server_runs_as(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert get_mysql.folder() == Path("/somewhere/txstream/mysql")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert get_mysql.folder() == Path("/var/cache/txstream/mysql")
