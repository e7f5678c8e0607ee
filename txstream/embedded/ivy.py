"""Fetching jars from a Maven repository with the Apache Ivy that PySpark ships."""

from __future__ import annotations

import os
import re
import threading
import time
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from txstream.api.errors import ServiceUnavailableError
from txstream.embedded.java import Java, spark_jars
from txstream.embedded.process import ServerProcess

MAVEN_CENTRAL = "https://repo1.maven.org/maven2/"
REPOSITORY_VARIABLE = "TXSTREAM_MAVEN_REPOSITORY"
REMEDIES = (
    "set KAFKA_HOME to an unpacked Apache Kafka 4, or use a Kafka that already runs with --kafka host:port"
)

_STALLED_SECONDS = 60.0
_POLL_SECONDS = 0.1
_CONNECT_SECONDS = 10
_READ_SECONDS = 30

# Checksum files are not asked for: what is fetched for use is checked against our own SHA-256 list.
_SETTINGS = """\
<ivysettings>
  <settings defaultResolver="maven"/>
  <caches defaultCacheDir={cache}/>
  <timeout-constraints>
    <timeout-constraint name="patience" connectionTimeout="{connect_ms}" readTimeout="{read_ms}"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="maven" m2compatible="true" usepoms="{poms}" useMavenMetadata="false" checksums=""
             timeoutConstraint="patience" root={root}/>
  </resolvers>
</ivysettings>
"""
_MODULE = """\
<ivy-module version="2.0">
  <info organisation="txstream" module="embedded"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
{dependencies}
  </dependencies>
</ivy-module>
"""


def maven_repository(environment: Mapping[str, str] = os.environ, home: Path | None = None) -> str:
    """The URL to fetch from, ending in a slash, first found wins: TXSTREAM_MAVEN_REPOSITORY, the mirror of
    `central` in the user's Maven settings (`~/.m2/settings.xml`), Maven Central.

    Credentials of Maven's `<servers>` are not used. Raises ServiceUnavailableError for an unreadable file.
    """
    url = environment.get(REPOSITORY_VARIABLE, "").strip()
    if not url:
        url = _mirror_of_central((home or Path.home()) / ".m2" / "settings.xml") or MAVEN_CENTRAL
    return url.rstrip("/") + "/"


def _mirror_of_central(settings: Path) -> str | None:
    if not settings.is_file():
        return None
    try:
        root = ET.parse(settings).getroot()  # noqa: S314 - the user's own Maven settings
    except (ET.ParseError, OSError) as problem:
        raise ServiceUnavailableError(
            f"{settings} cannot be read ({problem}); mend it or set {REPOSITORY_VARIABLE}"
        ) from problem
    for mirror in root.iterfind("{*}mirrors/{*}mirror"):
        of, url = (mirror.findtext(f"{{*}}{name}", "").strip() for name in ("mirrorOf", "url"))
        blocked = mirror.findtext("{*}blocked", "").strip() == "true"
        if url and not blocked and _is_for_central([part.strip() for part in of.split(",")]):
            return url
    return None


def _is_for_central(patterns: Sequence[str]) -> bool:
    if "!central" in patterns:
        return False
    return any(pattern in ("central", "*", "external:*") for pattern in patterns)


def proxy_options(environment: Mapping[str, str] = os.environ) -> list[str]:
    """JVM flags for what `http_proxy`, `https_proxy` and `no_proxy` say; Java itself reads none of them.

    A proxy that wants a password is left out: on a command line everyone could read it.
    """
    options = []
    for scheme in ("http", "https"):
        name = f"{scheme}_proxy"
        proxy = urllib.parse.urlsplit(environment.get(name) or environment.get(name.upper()) or "")
        if proxy.hostname and not proxy.password:
            options.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            options.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    exceptions = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    if options and exceptions:
        hosts = [host.strip() for host in exceptions.split(",") if host.strip()]
        patterns = [f"*{host}" if host.startswith(".") else host for host in hosts]
        options.append("-Dhttp.nonProxyHosts=" + "|".join(["localhost", "127.*", "[::1]", *patterns]))
    return options


def fetch(
    wanted: Sequence[tuple[str, str, str]],
    folder: Path,
    *,
    java: Java,
    repository: str,
    pattern: str = "[artifact]-[revision].[ext]",
    transitive: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Path:
    """Fetch the jars `wanted` (group, artifact, version) into `folder`/jars, named by Ivy's `pattern`.

    `on_bytes` is called now and then with the bytes got so far. Nothing outside of `folder` is written, and
    Ivy ends with this process. Raises ServiceUnavailableError naming the repository, the reason and the
    remedies when not all of them came.
    """
    cache, jars, log = folder / "ivy", folder / "jars", folder / "ivy.log"
    jars.mkdir(parents=True, exist_ok=True)
    settings, module = folder / "ivysettings.xml", folder / "ivy.xml"
    settings.write_text(
        _SETTINGS.format(
            cache=quoteattr(str(cache)),
            connect_ms=_CONNECT_SECONDS * 1000,
            read_ms=_READ_SECONDS * 1000,
            poms=str(transitive).lower(),
            root=quoteattr(repository),
        ),
        encoding="utf-8",
    )
    lines = [
        f"    <dependency org={quoteattr(group)} name={quoteattr(artifact)} rev={quoteattr(version)} "
        f'transitive="{str(transitive).lower()}" conf="default->default"/>'
        for group, artifact, version in wanted
    ]
    module.write_text(_MODULE.format(dependencies="\n".join(lines)), encoding="utf-8")
    ivy = spark_jars(["ivy-*.jar"])
    command = [str(java.path), *proxy_options(), f"-Divy.default.ivy.user.dir={folder}", "-cp", str(ivy[0])]
    command += ["org.apache.ivy.Main", "-settings", str(settings), "-ivy", str(module)]
    command += ["-types", "jar", "bundle", "-retrieve", str(jars / pattern)]
    with ServerProcess("Apache Ivy", log) as process:
        process.start(command)
        stalled = not _watch(process, cache, on_bytes)
    if not stalled and ":: retrieving ::" in process.log_since_start() and _is_complete(log):
        return jars
    raise ServiceUnavailableError(_failure(log.read_text(errors="replace"), repository, stalled=stalled))


def _watch(process: ServerProcess, cache: Path, on_bytes: Callable[[int], None]) -> bool:
    """Report the bytes got until Ivy ends. False when nothing came for so long that it never will."""
    pause = threading.Event()
    best, last_change = 0, time.monotonic()
    while process.alive():
        got = sum(_size(jar) for jar in cache.rglob("*.jar*"))
        if got > best:
            best, last_change = got, time.monotonic()
            on_bytes(got)
        if time.monotonic() - last_change > _STALLED_SECONDS:
            return False
        pause.wait(_POLL_SECONDS)
    return True


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0  # Ivy renamed it meanwhile


def _is_complete(log: Path) -> bool:
    text = log.read_text(errors="replace")
    return (
        "artifacts copied" in text
        and "UNRESOLVED DEPENDENCIES" not in text
        and "FAILED DOWNLOADS" not in text
    )


def _failure(log: str, repository: str, *, stalled: bool) -> str:
    refused = re.search(
        r"Server access error at url \S+ \((?:[\w.]+\.)?(\w+): ?(.*?)\)\s*$", log, re.MULTILINE
    )
    unknown = re.search(r"UnknownHost\w*: ?([\w.-]+)|Host ([\w.-]+) not found", log)
    missing = re.findall(r"::\s+(\S+#\S+;\S+?): not found", log)
    if unknown:
        reason = f"no network: the host {unknown.group(1) or unknown.group(2)} is unknown"
    elif refused:
        reason = f"no network, or the repository is down: {refused.group(2) or refused.group(1)}"
    elif stalled:
        reason = f"no network: nothing came for {_STALLED_SECONDS:.0f} s"
    elif missing:
        reason = f"the repository has no {', '.join(sorted(set(missing))[:3])}"
    else:
        lines = [line.strip() for line in log.splitlines() if line.strip()]
        reason = f"Apache Ivy said: {lines[-1][:300] if lines else 'nothing'}"
    return f"Kafka's jars could not be fetched from {repository} ({reason}): {REMEDIES}"
