"""Fetch a MySQL server for the tests: Debian's package of it, unpacked into this account's cache folder.

Debian's stable releases have only MariaDB; MySQL is in the unstable one. To keep unstable packages out of the
system, apt works in folders of its own here, the packages are unpacked but never installed, and the server
runs with the libraries and the loader that came with it. `--where` prints the folder.

Nothing happens if the folder exists or the system has a MySQL. apt checks the archive's signature and every
package's digest.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

SUITE: Final = "sid"
PACKAGE: Final = "mysql-server-core"
NO_MYSQL: Final = "there is no MySQL here"
"""How the reason begins when tests on MySQL are skipped."""

FALLBACK_MIRROR: Final = "http://deb.debian.org/debian"
_KEYRING: Final = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
_SYSTEM_SOURCES: Final = Path("/etc/apt")
_NEEDED: Final = ("apt-get", "dpkg", "dpkg-deb")
_SECONDS: Final = 900.0
_LAST_CHARACTERS: Final = 2000


class FetchError(Exception):
    """MySQL could not be fetched. The message says why and what to do."""


def folder() -> Path:
    """Return the folder where the unpacked server is or will be.

    When this runs as root, the server runs as another user, who may not read root's home. The folder is then
    in the system's cache instead of the account's.
    """
    if os.geteuid() == 0:
        return Path("/var/cache/txstream/mysql")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "txstream" / "mysql"


def server() -> list[str] | None:
    """Return the command that starts the system's MySQL or the fetched one; None when there is neither."""
    system = shutil.which("mysqld", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    # MariaDB, too, has a program of this name.
    if system is not None and "mariadb" not in _run(system, "--no-defaults", "--version").lower():
        return [system]
    return command(folder())


def command(at: Path) -> list[str] | None:
    """Return the command that starts the server unpacked into `at`; None when there is none."""
    server = at / "usr" / "sbin" / "mysqld"
    loaders = sorted(at.glob("usr/lib/*/ld-linux-*.so.*"))
    if not server.is_file() or not loaders:
        return None
    libraries = loaders[0].parent
    return [str(loaders[0]), "--library-path", f"{libraries}:{libraries / 'mysql' / 'private'}", str(server)]


def mirror(sources: Iterable[Path]) -> str:
    """Return the Debian archive that this system installs from, which may be a local mirror."""
    for source in sources:
        for line in source.read_text(encoding="utf-8", errors="replace").splitlines():
            words = re.sub(r"\[.*?\]", "", line.partition("#")[0]).split()
            if words and words[0] in ("deb", "URIs:"):
                for word in words[1:]:
                    if re.fullmatch(r"https?://\S+/debian/?", word):
                        return word.rstrip("/")
    return FALLBACK_MIRROR


def fetch(at: Path) -> None:
    """Download and unpack the server into `at`, all or nothing. Raises FetchError."""
    for program in _NEEDED:
        if shutil.which(program) is None:
            raise FetchError(
                f"there is no {program} here, and it comes with Debian's packages; install a MySQL server "
                f"(mysqld) with this system's own tools instead"
            )
    if not _KEYRING.is_file():
        raise FetchError(f"there is no {_KEYRING}; type apt-get install debian-archive-keyring")
    try:
        at.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="mysql-", dir=at.parent) as scratch:
            made = Path(scratch)
            made.chmod(0o755)
            packages = _download(made / "apt")
            root = made / "root"
            root.mkdir()
            for package in packages:
                _run("dpkg-deb", "-x", str(package), str(root))
            start = command(root)
            if start is None:
                raise FetchError(f"Debian's {PACKAGE} in {SUITE} has no usr/sbin/mysqld or lacks its loader")
            _run(*start, "--no-defaults", "--version")
            # If two fetches run at once, the second finds the folder of the first, which is as good.
            if command(at) is None:
                root.rename(at)
    except OSError as error:
        raise FetchError(f"{at} cannot be made: {error}") from error


def _download(apt: Path) -> list[Path]:
    """Download the package and what it needs below `apt`. Returns the packages."""
    for part in ("cache/archives/partial", "lists/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()  # says that nothing is installed, so that all it needs is downloaded
    found = sorted([*_SYSTEM_SOURCES.glob("sources.list*"), *_SYSTEM_SOURCES.glob("sources.list.d/*")])
    archive = mirror(path for path in found if path.is_file())
    (apt / "sources.list").write_text(
        f"deb [signed-by={_KEYRING}] {archive} {SUITE} main\n", encoding="ascii"
    )
    architecture = _run("dpkg", "--print-architecture").strip()
    options = {
        "Dir::State": apt,
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": apt / "status",
        "Dir::Cache": apt / "cache",
        "Dir::Etc::sourcelist": apt / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::preferences": "/dev/null",
        "Dir::Etc::preferencesparts": "/dev/null",
        "APT::Architecture": architecture,
        "Acquire::Languages": "none",
        "Acquire::Retries": 2,
        # A mirror may be some days behind. apt still checks the signature.
        "Acquire::Check-Valid-Until": "false",
        "APT::Sandbox::User": "root",  # its usual user could not write into these folders
        "Debug::NoLocking": "true",
    }
    given = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
    _run("apt-get", *given, "-q", "update", "--error-on=any")
    _run("apt-get", *given, "-q", "install", "-y", "--no-install-recommends", "--download-only", PACKAGE)
    # Only scripts of the package need Perl, not the server.
    return [path for path in sorted(apt.glob("cache/archives/*.deb")) if not path.name.startswith("perl")]


def _run(*arguments: str) -> str:
    try:
        done = subprocess.run(
            arguments,
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"{Path(arguments[0]).name} took longer than {_SECONDS:g} s") from error
    if done.returncode:
        raise FetchError(f"{' '.join(arguments)} failed:\n{done.stdout[-_LAST_CHARACTERS:].strip()}")
    return done.stdout


def main(arguments: list[str]) -> int:
    at = folder()
    if arguments == ["--where"]:
        print(at)
        return 0
    if arguments:
        print("usage: get_mysql.py [--where]", file=sys.stderr)
        return 2
    try:
        if server() is not None:
            return 0
        print(f"fetching MySQL into {at}: a download of about 60 MB", flush=True)
        fetch(at)
    except FetchError as error:
        print(f"MySQL could not be fetched: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
