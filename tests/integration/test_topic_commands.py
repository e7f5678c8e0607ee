"""`txstream topic` against a real broker."""

from __future__ import annotations

import subprocess
from collections import Counter
from itertools import islice

from kafka import KafkaConsumer
from support.runs import Launcher

from txstream.plugins.local.embedded import Services


def read(address: str, topic: str, records: int) -> list[tuple[int, bytes | None, bytes]]:
    """Return partition, key and value of so many records of a topic."""
    with KafkaConsumer(
        topic, bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    ) as consumer:
        return [(one.partition, one.key, one.value) for one in islice(consumer, records)]


def test_lines_of_a_file_go_round_robin_into_a_new_topic(
    launcher: Launcher, services: Services, unique: str
) -> None:
    made = launcher.run("topic", "create", unique, "--partitions", "3")
    assert (made.status, made.stdout) == (0, f"created topic {unique} with 3 partitions\n"), made.stderr
    (launcher.directory / "lines.txt").write_text("".join(f"line {number} é\n" for number in range(2_001)))
    produced = launcher.run("topic", "produce", unique, "lines.txt")
    assert (produced.status, produced.stdout) == (0, f"produced 2,001 records into topic {unique}\n")
    found = read(services.kafka, unique, 2_001)
    assert Counter(partition for partition, _, _ in found) == dict.fromkeys(range(3), 667)
    assert {value.decode() for _, _, value in found} == {f"line {number} é" for number in range(2_001)}

    again = launcher.run("topic", "create", unique)
    assert (again.status, again.stdout) == (2, "")
    assert f"topic {unique!r} exists already" in again.stderr


def test_json_lines_from_a_pipe_have_their_keys_up_to_the_bad_one(
    launcher: Launcher, services: Services, unique: str
) -> None:
    assert launcher.run("topic", "create", unique, "--json").json() == {"topic": unique, "partitions": 1}
    command = ["topic", "produce", unique, "-", "--format", "json", "--key", "user"]
    done = subprocess.run(
        launcher.command(*command),
        cwd=launcher.directory,
        env=launcher.variables(),
        input=b'{"user": "ann"}\n\n{"user": 7}\nuser\n',
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"line 4 of standard input is not JSON" in done.stderr
    assert b"the topic has 2 records of the lines before it" in done.stderr
    assert [(key, value) for _, key, value in read(services.kafka, unique, 2)] == [
        (b"ann", b'{"user": "ann"}'),
        (b"7", b'{"user": 7}'),
    ]


def test_producing_never_makes_a_topic(launcher: Launcher, unique: str) -> None:
    (launcher.directory / "lines.txt").write_text("a\n")
    refused = launcher.run("topic", "produce", unique, "lines.txt")
    assert (refused.status, refused.stdout) == (2, "")
    assert f"`txstream topic create {unique}`" in refused.stderr
    assert launcher.run("topic", "create", unique).status == 0
