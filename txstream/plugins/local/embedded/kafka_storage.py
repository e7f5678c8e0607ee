"""A Kafka node's directory: its cluster's id, its properties, its formatting.

Invariants:
- A directory `node-N` is either completely formatted or absent: it is formatted under another name, then
  renamed. Leftovers of a formatting that crashed are thrown away. A directory that holds data without its
  identity is refused, never formatted over.
- All nodes of a data directory have the same cluster id; any other is refused.
"""

from __future__ import annotations

import base64
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from txstream.core.errors import CorruptStateError, ServiceUnavailableError
from txstream.core.waits import wait_until
from txstream.plugins.local.embedded.files import java_properties, write_atomically
from txstream.plugins.local.embedded.process import ServerProcess
from txstream.settings import is_disk_full

_FORMAT_SECONDS = 60


def is_formatted(home: Path) -> bool:
    """Whether a node's directory has its identity. Without one Kafka does not start on it."""
    return (home / "meta.properties").is_file()


def formatted_nodes(kafka_home: Path) -> int:
    """The number of the highest node that has data below this directory; 0 if none has."""
    numbers = [meta.parent.name.removeprefix("node-") for meta in kafka_home.glob("node-*/meta.properties")]
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def write_properties(path: Path, properties: Mapping[str, str]) -> None:
    write_atomically(path, java_properties(properties))


def refuse_data_without_identity(home: Path) -> None:
    """Raise CorruptStateError for a directory that is neither empty nor formatted."""
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
    lock_path: Path,
) -> None:
    """Make `home` a formatted, empty node directory, or leave no trace of it.

    `properties(folder)` returns the node's properties for data in `folder`; `command(main, *arguments)` is
    the command that runs one of Kafka's Java classes. The formatting holds the lock on the node's data and
    ends with this process: whatever a later process finds unfinished belongs to nobody. Raises
    ServiceUnavailableError, with Kafka's own words, when it fails.
    """
    unfinished = home.with_name(f"{home.name}.formatting")
    config = home.with_name(f"{home.name}.formatting.properties")
    log = home.with_name(f"{home.name}.formatting.log")
    name = f"The formatting of Kafka's {home.name}"
    with ServerProcess(name, log, lock_path=lock_path) as formatting:
        formatting.wait_for_data()
        if unfinished.exists():
            shutil.rmtree(unfinished)
        unfinished.mkdir(parents=True)
        write_properties(config, properties(unfinished))
        arguments = ["format", "--cluster-id", cluster_id, "--config", str(config)]
        formatting.start(command("kafka.tools.StorageTool", *arguments))
        finished = wait_until(lambda: not formatting.alive(), _FORMAT_SECONDS)
    identity = unfinished / "meta.properties"
    complete = finished and is_formatted(unfinished) and _property(identity, "cluster.id") == cluster_id
    # On a full disk any of its files may have been cut short, and Kafka would never start on such a node.
    if not complete or is_disk_full(unfinished):
        how = "" if finished else f" within {_FORMAT_SECONDS} s"
        raise ServiceUnavailableError(f"Kafka could not format {home}{how}; {formatting.last_words()}")
    if home.exists():
        home.rmdir()  # known to be empty
    unfinished.rename(home)
    for left in (config, log):
        left.unlink(missing_ok=True)


def cluster_id_of(kafka_home: Path) -> str:
    """Return the cluster id of this data directory. If there is none, make one and keep it in `cluster-id`.

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
