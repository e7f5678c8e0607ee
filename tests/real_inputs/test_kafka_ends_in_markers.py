"""Case 4: logs that end in a marker of a transaction, or hold only aborted records, are read to their end.

The third part of the case, a transaction that nobody ends, is in tests/integration/test_kafka_held_back.py.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from support.kafka_topics import Topics
from support.tables import read_rows

import txstream
from txstream.inspect.databases import open_zookeeper
from txstream.inspect.overview import look
from txstream.inspect.source import source_now
from txstream.plugins.local.embedded import Services
from txstream.plugins.local.local_runner import InProcessRunner


@pytest.mark.parametrize("commits", [True, False], ids=["committed", "aborted"])
def test_the_run_is_caught_up_and_nothing_lags(
    commits: bool, services: Services, unique: str, tmp_path: Path
) -> None:
    with Topics(services.kafka) as topics:
        topics.create(unique)
        with closing(topics.transactional_producer(f"{unique}-writer")) as producer:
            topics.transaction(producer, unique, [b"x"] * 10, commit=commits)
        assert topics.end(unique, 0) == 11
    source = txstream.KafkaSource(unique, kafka_columns=["value"])
    builder = txstream.TransactionalTopologyBuilder(unique, "lines", txstream.OpaqueSpout(source))
    state = txstream.SqlState(unique, key="value string", value="n bigint")
    store = txstream.SqlStateBolt(state, n=txstream.Count())
    builder.set_committer_bolt("store", store).fields_grouping("lines", "value")
    settings = txstream.Settings(
        zookeeper=services.zookeeper,
        kafka=services.kafka,
        database=f"sqlite:///{tmp_path}/state.db",
        data_dir=tmp_path,
    )
    report = txstream.start(
        builder.build(), settings=settings, until="caught-up", runner_factory=InProcessRunner
    ).wait()
    assert report.caught_up
    rows = {row["value"]: row["n"] for row in read_rows(settings.database_url(), unique)}
    assert rows == ({"x": 10} if commits else {})
    with open_zookeeper(settings) as zookeeper:
        assert source_now(settings, look(zookeeper, unique)).lag_records == 0
