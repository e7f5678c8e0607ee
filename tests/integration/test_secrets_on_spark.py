"""A run with secrets on a Spark cluster: none of them is on a command line of this machine, in a log, or in
what the run stores.

Command lines are read from /proc, those of all processes, as any user of the machine reads them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest
from postgres import PostgresServer
from support.runs import Launcher
from support.spark_standalone import SparkStandalone
from support.tables import read_counts
from support.texts import count_words, create_topic, make_lines, produce

from txstream.plugins.local.embedded import Services

SECRET = "h0rse/b@ttery"
MODULE = """
import os

from txstream import Count, KafkaSource, OpaqueSpout, SqlState, SqlStateBolt, TransactionalTopologyBuilder
from txstream.examples.word_count import SplitLine


def topology(password: str, topic: str, table: str):
    assert password == os.environ["MY_SECRET"]
    source = KafkaSource(topic, max_records_per_partition=500)
    builder = TransactionalTopologyBuilder("mine", "lines", OpaqueSpout(source), commit="executors")
    builder.set_bolt("words", SplitLine()).shuffle_grouping("lines")
    state = SqlState(table, key="word string", value="n bigint")
    builder.set_committer_bolt("store", SqlStateBolt(state, n=Count())).fields_grouping("words", "word")
    return builder.build()
"""
# What a run on a cluster consists of, by a word of its command line.
KINDS = {
    "driver": "mine:topology",
    "Spark's Java": "org.apache.spark.deploy.SparkSubmit",
    "executor": "org.apache.spark.executor.CoarseGrainedExecutorBackend",
    "Python on an executor": "daemon",
}
LINES = make_lines(4_000, seed=7)


def command_lines() -> dict[int, str]:
    found = {}
    for process in psutil.process_iter():
        try:
            found[process.pid] = " ".join(process.cmdline())
        except psutil.Error:
            continue  # it has ended
    return found


@pytest.mark.soak
@pytest.mark.parametrize("way", ["variable", "client's own file"])
def test_no_secret_can_be_read(
    launcher: Launcher,
    services: Services,
    cluster: SparkStandalone,
    postgres: PostgresServer,
    tmp_path: Path,
    unique: str,
    way: str,
) -> None:
    url = postgres.create_database(unique)
    postgres.create_account(unique, SECRET, owns=unique)
    create_topic(services.kafka, unique)
    produce(services.kafka, unique, LINES)
    (tmp_path / "mine.py").write_text(MODULE)
    if way == "variable":
        database = url.replace("postgres@", f"{unique}:${{MY_SECRET}}@")
    else:
        database = url.replace("postgres@", f"{unique}@") + f"&passfile={tmp_path / 'pgpass'}"
    (pgpass := tmp_path / "pgpass").write_text(f"*:*:*:*:{SECRET}\n")
    pgpass.chmod(0o600)
    arguments = [
        *("run", "mine:topology", "--id", unique, "-p", f"topic={unique}", "-p", f"table={unique}"),
        *("-p", "password=${MY_SECRET}", "--database", database),
        *("--master", cluster.url, "--spark-conf", "spark.executor.memory=512m"),
        *("--spark-conf", "spark.hadoop.fs.s3a.secret.key=${MY_SECRET}", "--until", "caught-up"),
        *("--zookeeper-auth", "digest", "--zookeeper-user", "me"),
    ]
    variables = {
        "TXSTREAM_ZOOKEEPER": f"{services.zookeeper}/{unique}",
        "TXSTREAM_ZOOKEEPER_PASSWORD": SECRET,
        "MY_SECRET": SECRET,
    }
    process = subprocess.Popen(
        launcher.command(*arguments),
        cwd=tmp_path,
        env=launcher.variables(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen: dict[str, str] = {}
    try:
        while True:
            for line in command_lines().values():
                assert SECRET not in line, line
                assert "h0rse%2Fb%40ttery" not in line, line
                seen |= {kind: line for kind, word in KINDS.items() if word in line}
            try:
                printed, _ = process.communicate(timeout=0.1)
                break
            except subprocess.TimeoutExpired:
                continue
    finally:
        process.kill()
    assert process.returncode == 0, printed
    assert seen.keys() == KINDS.keys(), "the run's processes were looked at"
    assert read_counts(url, unique) == count_words(LINES)
    written = [
        *(file for file in tmp_path.rglob("*") if file.is_file() and file != pgpass),
        *cluster.log_paths,
    ]
    assert any("spark" in file.name for file in written if tmp_path in file.parents), "Spark's log is there"
    for text in [printed, *(file.read_text(errors="replace") for file in written)]:
        assert "h0rse" not in text
