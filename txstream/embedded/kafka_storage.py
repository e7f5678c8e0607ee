"""A Kafka node's directory: its cluster's id, its properties, its formatting.

Invariants:
- A directory `node-N` is either completely formatted or absent: it is formatted under another name and
  renamed. What a crash left of a formatting is thrown away; a directory that holds data without its
  identity is refused, never formatted over.
- All nodes of a data directory have one cluster id; another one is refused.
"""

from __future__ import annotations

import base64
import shutil
import subprocess
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from txstream.api.errors import CorruptStateError, ServiceUnavailableError
from txstream.embedded.files import write_atomically
from txstream.embedded.process import meaningful_line

_FORMAT_SECONDS = 60


def is_formatted(home: Path) -> bool:
    """Whether a node's directory has its identity, without which Kafka does not start on it."""
    return (home / "meta.properties").is_file()


def formatted_nodes(kafka_home: Path) -> int:
    """The highest node that has data below this directory; 0 when none has."""
    numbers = [meta.parent.name.removeprefix("node-") for meta in kafka_home.glob("node-*/meta.properties")]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    write_atomically(path, "".join(f"{key}={value}\n" for key, value in properties.items()))


def refuse_data_without_identity(home: Path) -> None:
    """Raises CorruptStateError for a directory that holds something and is not formatted."""
    if home.exists() and any(home.iterdir()) and not is_formatted(home):
        raise CorruptStateError(
            f"{home} holds Kafka data without meta.properties, which says whose they are; "
            "put that file back, or remove the directory to begin with an empty broker"
        )


def format_storage(
    home: Path,
    cluster_id: str,
    properties: Callable[[Path], Mapping[str, str]],
    command: Callable[..., list[str]],
) -> None:
    """Make `home` a formatted, empty node directory, or leave no trace of it.

    `properties(folder)` are the node's over data in `folder`; `command(main, *arguments)` runs a Java class
    of Kafka's. Raises ServiceUnavailableError with what Kafka said when it does not succeed.
    """
    unfinished = home.with_name(f"{home.name}.formatting")
    if unfinished.exists():
        shutil.rmtree(unfinished)  # of a formatting that was killed
    unfinished.mkdir(parents=True)
    config = home.with_name(f"{home.name}.formatting.properties")
    write_properties(config, properties(unfinished))
    try:
        done = subprocess.run(
            command("kafka.tools.StorageTool", "format", "--cluster-id", cluster_id, "--config", str(config)),
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_FORMAT_SECONDS,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except subprocess.TimeoutExpired as problem:
        raise ServiceUnavailableError(
            f"Kafka could not format {home} within {_FORMAT_SECONDS} s; try again on a quieter machine"
        ) from problem
    finally:
        config.unlink(missing_ok=True)
    if done.returncode != 0 or not is_formatted(unfinished):
        said = meaningful_line(done.stderr) or meaningful_line(done.stdout) or "nothing"
        raise ServiceUnavailableError(f"Kafka could not format {home}; it said: {said}")
    if home.exists():
        home.rmdir()  # known to be empty
    unfinished.rename(home)


def cluster_id_of(kafka_home: Path) -> str:
    """The cluster id of this data directory; made, and kept in `cluster-id`, when there is none.

    Raises CorruptStateError when the nodes' own records of it differ or are empty.
    """
    path = kafka_home / "cluster-id"
    ids = {}
    if path.is_file():
        ids[str(path)] = path.read_text(encoding="utf-8").strip()
    for meta in sorted(kafka_home.glob("node-*/meta.properties")):
        if not meta.parent.name.endswith(".formatting"):
            ids[str(meta)] = _property(meta, "cluster.id")
    if len(set(ids.values())) > 1:
        found = ", ".join(f"{identity or 'none'} in {place}" for place, identity in ids.items())
        raise CorruptStateError(
            f"{kafka_home} holds the data of more than one Kafka cluster: {found}; "
            "put back the directory as it was, or remove it to begin with an empty Kafka"
        )
    cluster_id = next(iter(ids.values()), "")
    if not cluster_id:
        if ids:
            raise CorruptStateError(
                f"{next(iter(ids))} names no Kafka cluster id; "
                f"put it back, or remove {kafka_home} to begin with an empty Kafka"
            )
        cluster_id = _new_cluster_id()
    if not path.is_file():
        write_atomically(path, cluster_id + "\n")
    return cluster_id


def _new_cluster_id() -> str:
    """A random id in Kafka's own form: 16 bytes in URL-safe base64, not starting with a dash."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        continue
    return text


def _property(path: Path, key: str) -> str:
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == key:
            return value.strip()
    return ""
