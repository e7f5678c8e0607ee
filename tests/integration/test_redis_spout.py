"""`RedisStreamSpout` over a real Redis: groups, acknowledgements, what dead consumers leave, and refusals."""

from __future__ import annotations

import logging
import pickle
import time
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
import redis
from redis_server import PASSWORD, RedisServer
from support.kafka_topics import wait_until
from support.lists import each
from support.spouts import OpenSpout

from txstream.api.errors import (
    DataLostError,
    DecodeError,
    SchemaError,
    ServiceUnavailableError,
    TopologyError,
    UsageError,
)
from txstream.spouts.redis_streams import RedisStreamSpout
from txstream.testing.clock import ManualClock


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


def add(client: redis.Redis, stream: str, *values: object) -> list[str]:
    return [str(client.xadd(stream, {"n": str(value)})) for value in values]


def pending(client: redis.Redis, stream: str, group: str = "topology") -> int:
    return int(client.xpending(stream, group)["pending"])


def make(server: RedisServer, stream: str, output: str = "n bigint", **options: Any) -> RedisStreamSpout:
    spout = RedisStreamSpout(stream, output, url=server.url, **options)
    return spout if "clock" in options else pickle.loads(pickle.dumps(spout))  # as each task's is made


def test_an_entry_stands_in_redis_until_its_tree_is_complete(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    ids = add(client, unique, 1, 2, 3)
    spout = OpenSpout(make(redis_server, unique))
    assert spout.take() == [(ids[0], (1,)), (ids[1], (2,)), (ids[2], (3,))]
    spout.spout.ack(ids[1])
    assert pending(client, unique) == 3  # acks are sent with the next question
    assert spout.take() == []
    assert [entry["message_id"] for entry in client.xpending_range(unique, "topology", "-", "+", 9)] == [
        ids[0],
        ids[2],
    ]
    spout.spout.ack(ids[0])
    spout.spout.ack(ids[2])
    spout.close()
    assert pending(client, unique) == 0
    assert OpenSpout(make(redis_server, unique)).take() == []


def test_a_failed_entry_is_emitted_again_from_memory(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    first, second = add(client, unique, 1, 2)
    spout = OpenSpout(make(redis_server, unique))
    spout.take()
    client.xtrim(unique, maxlen=0)
    spout.spout.fail(first)
    assert spout.take() == [(first, (1,))]
    spout.spout.ack(first)
    spout.spout.fail(first)  # too late: it was acked
    assert spout.take() == []
    spout.spout.ack(second)
    spout.close()
    assert pending(client, unique) == 0


def test_fields_become_columns_by_name_and_the_id_too(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    entry = client.xadd(
        unique, {"amount": "12.30", "day": "2026-11-21", "paid": "true", "raw": b"\xff", "more": "x"}
    )
    output = "id string, amount decimal(10,2), day date, paid boolean, raw binary, absent int"
    ((_, values),) = OpenSpout(make(redis_server, unique, output, id_field="id")).take()
    assert values[:2] == (entry, Decimal("12.30"))
    assert (str(values[2]), *values[3:]) == ("2026-11-21", True, b"\xff", None)


@pytest.mark.parametrize(
    ("output", "fields", "reason"),
    [
        ("n bigint", {"n": "many"}, r"field 'n' is 'many', not bigint"),
        ("n bigint", {"n": b"\xff"}, r"field 'n' is '\\\\xff', not bigint"),
        ("n string", {"n": b"\xff"}, r"field 'n' is '\\\\xff', not string"),
        (
            pa.schema([pa.field("n", pa.int64(), nullable=False)]),
            {"m": "1"},
            r"field 'n' is missing, and the output declares it as not nullable",
        ),
    ],
)
def test_an_entry_that_does_not_fit_is_named_and_stays_pending(
    redis_server: RedisServer, client: redis.Redis, unique: str, output: Any, fields: Any, reason: str
) -> None:
    add(client, unique, 1)
    bad = str(client.xadd(unique, fields))
    spout = OpenSpout(make(redis_server, unique, output))
    with pytest.raises(
        DecodeError,
        match=f"entry {bad} of the stream '{unique}' at redis://127.*not fit the output: {reason}",
    ):
        spout.take()
    assert pending(client, unique) == 2


def test_an_entry_that_does_not_fit_may_be_skipped(
    redis_server: RedisServer, client: redis.Redis, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, bad, last = add(client, unique, 1, "many", 3)
    spout = OpenSpout(make(redis_server, unique, on_bad_entry="skip"))
    assert spout.take() == [(first, (1,)), (last, (3,))]
    assert f"entry {bad} of" in caplog.text
    assert pending(client, unique) == 2


def test_tasks_share_the_entries(redis_server: RedisServer, client: redis.Redis, unique: str) -> None:
    ids = add(client, unique, *range(10))
    tasks = [OpenSpout(make(redis_server, unique, read_count=2), task=task) for task in range(2)]
    found = [task.take(2) for task in tasks] + [task.take() for task in tasks]
    assert sorted(entry for part in found for entry, _ in part) == ids


def test_what_a_dead_process_had_comes_again_when_its_task_starts(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    ids = add(client, unique, *range(5))
    dead = OpenSpout(make(redis_server, unique, read_count=2))
    dead.take(3)
    dead.spout.ack(ids[0])
    dead.take(2)
    ids += add(client, unique, 5)
    alive = OpenSpout(make(redis_server, unique, read_count=2))
    assert [entry for entry, _ in alive.take()] == ids[1:]


def test_what_another_consumer_left_is_claimed_after_a_while(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    ids = add(client, unique, *range(5))
    OpenSpout(make(redis_server, unique), task=1).take()
    clock = ManualClock()
    alive = OpenSpout(make(redis_server, unique, claim_idle_seconds=0.001, read_count=2, clock=clock))
    found: list[str] = []

    def all_claimed() -> bool:
        clock.advance(1)
        found.extend(entry for entry, _ in alive.take())
        return len(found) == 5

    wait_until(all_claimed, "everything is claimed", 10)
    assert sorted(found) == ids
    assert alive.take() == []  # it does not claim its own entries from itself


def test_what_waits_in_a_live_task_is_touched_so_that_nobody_claims_it(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    add(client, unique, *range(5))
    slow = OpenSpout(make(redis_server, unique, claim_idle_seconds=4))
    ((first, _),) = slow.take(1)
    began = time.monotonic()

    def is_touched() -> bool:
        entries = client.xpending_range(unique, "topology", "-", "+", 9, consumername="source-0")
        assert len(entries) == 5
        age_ms = 1000 * (time.monotonic() - began)
        return all(int(entry["time_since_delivered"]) + 50 < age_ms for entry in entries)

    wait_until(is_touched, "all entries are touched", 10)
    slow.spout.ack(first)
    slow.close()


def test_two_live_tasks_process_no_entry_twice(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    """What waits in their buffers is older than the time after which others claim it."""
    ids = add(client, unique, *range(800))
    tasks = [OpenSpout(make(redis_server, unique, claim_idle_seconds=2), task=task) for task in range(2)]
    processed: Counter[str] = Counter()

    def process(most: int) -> bool:
        for task in tasks:
            for entry, _ in task.take(most):
                processed[entry] += 1
                task.spout.ack(entry)
        return len(processed) == len(ids)

    began = time.monotonic()
    wait_until(lambda: process(1) or time.monotonic() > began + 2.5, "what waits is old", 20)
    assert len(processed) < len(ids), "nothing waited"
    wait_until(lambda: process(100), "all entries are processed", 20)
    assert processed == Counter(ids)
    for task in tasks:
        task.close()
    assert pending(client, unique) == 0


def test_what_others_have_claimed_during_a_silence_is_not_processed_here(
    redis_server: RedisServer, client: redis.Redis, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    ids = add(client, unique, *range(5))
    clock = ManualClock()
    frozen = OpenSpout(make(redis_server, unique, clock=clock))
    assert [entry for entry, _ in frozen.take(1)] == ids[:1]
    client.xclaim(unique, "topology", "other", 0, list[Any](ids[:3]))
    clock.advance(31)
    assert [entry for entry, _ in frozen.take()] == ids[3:]
    assert frozen.spout._doubtful == {ids[0]}  # type: ignore[attr-defined]
    assert "others may have claimed what waits here" in caplog.text


def test_entries_that_were_trimmed_unread_are_lost_data(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    add(client, unique, 1, 2)
    client.xtrim(unique, maxlen=1, approximate=False)
    spout = OpenSpout(make(redis_server, unique, read_count=2))  # a new group begins at what is there
    (last, _), *_ = spout.take()
    add(client, unique, *range(9))
    client.xtrim(unique, maxlen=4, approximate=False)
    told = f"5 entries of the stream '{unique}' at .* behind {last} were trimmed before"
    with pytest.raises(DataLostError, match=told):
        spout.take()
    with pytest.raises(DataLostError, match=told):  # until somebody says that it may go on
        OpenSpout(make(redis_server, unique), task=1).take()


def test_entries_that_were_trimmed_unread_may_be_passed_over_and_are_counted_once(
    redis_server: RedisServer, client: redis.Redis, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    add(client, unique, 1)
    first = OpenSpout(make(redis_server, unique, on_data_loss="skip"))
    first.take()
    add(client, unique, *range(9))
    client.xtrim(unique, maxlen=4, approximate=False)
    found = [entry for entry, _ in first.take()]
    assert len(found) == 4
    assert caplog.text.count("5 entries of") == 1
    for entry in found:
        first.spout.ack(entry)
    first.close()
    ids = add(client, unique, 1, 2)
    client.xtrim(unique, maxlen=2, approximate=False)  # nothing that is new
    second = OpenSpout(make(redis_server, unique))
    assert [entry for entry, _ in second.take()][-2:] == ids
    client.xtrim(unique, maxlen=0)
    assert second.take() == []
    add(client, unique, 1)
    client.xtrim(unique, maxlen=0)
    with pytest.raises(DataLostError, match="1 entry of"):
        second.take()


@pytest.mark.parametrize("start", ["earliest", "latest"])
def test_what_was_trimmed_before_there_was_a_group_is_not_lost(
    redis_server: RedisServer, client: redis.Redis, unique: str, start: str
) -> None:
    add(client, unique, *range(5))
    client.xtrim(unique, maxlen=2, approximate=False)
    spout = OpenSpout(make(redis_server, unique, start=start))
    add(client, unique, 7)
    assert [values for _, values in spout.take()][-1:] == [(7,)]
    add(client, unique, 8, 9)
    client.xtrim(unique, maxlen=1, approximate=False)
    with pytest.raises(DataLostError, match="1 entry of"):
        spout.take()


@pytest.mark.parametrize(("start", "lost"), [("earliest", 4), ("latest", 2)])
def test_what_is_trimmed_before_the_groups_first_read_is_lost(
    redis_server: RedisServer, client: redis.Redis, unique: str, start: str, lost: int
) -> None:
    add(client, unique, *range(5))
    client.xtrim(unique, maxlen=2, approximate=False)
    spout = OpenSpout(make(redis_server, unique, start=start))
    add(client, unique, 7, 8, 9)
    client.xtrim(unique, maxlen=1, approximate=False)
    with pytest.raises(DataLostError, match=f"{lost} entries of"):
        spout.take()


def test_it_waits_while_entries_are_pending_that_it_does_not_have(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    ids = add(client, unique, *range(3))
    gone = OpenSpout(make(redis_server, unique), task=1)
    gone.take(2)
    gone.spout.ack(ids[0])
    clock = ManualClock()
    spout = OpenSpout(make(redis_server, unique, clock=clock))
    assert spout.take() == []
    told = (
        f"3 entries of the stream '{unique}' at redis://127.0.0.1:{redis_server.port}/0 pending with source-1"
    )
    assert spout.spout.waiting_for() == f"{told}; what is idle for 60 s is claimed"
    gone.spout.close()
    there: list[Any] = ids[1:]
    client.xclaim(unique, "topology", "source-1", 0, there, idle=60_000)  # they have been there for long
    clock.advance(61)
    assert [entry for entry, _ in spout.take()] == ids[1:]
    assert spout.spout.waiting_for() is None
    for entry in ids[1:]:
        spout.spout.ack(entry)
    assert spout.take() == []
    assert spout.spout.waiting_for() is None


def test_what_ended_after_the_spout_was_deactivated_is_acknowledged_at_close(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    (entry,) = add(client, unique, 1)
    spout = OpenSpout(make(redis_server, unique))
    spout.take()
    spout.spout.deactivate()
    spout.spout.ack(entry)
    assert pending(client, unique) == 1
    spout.spout.close()
    assert pending(client, unique) == 0


def test_a_deleted_entry_is_let_go(
    redis_server: RedisServer, client: redis.Redis, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = add(client, unique, 1, 2)
    OpenSpout(make(redis_server, unique)).take()
    client.xdel(unique, first)
    alive = OpenSpout(make(redis_server, unique))
    assert alive.take() == [(second, (2,))]
    assert f"entry {first} was deleted before it was processed" in caplog.text
    assert pending(client, unique) == 1


@pytest.mark.parametrize(("start", "expected"), [("earliest", [1, 2]), ("latest", []), ("first", [2])])
def test_where_a_new_group_begins(
    redis_server: RedisServer, client: redis.Redis, unique: str, start: str, expected: list[int]
) -> None:
    first, _ = add(client, unique, 1, 2)
    spout = OpenSpout(make(redis_server, unique, start=first if start == "first" else start))
    assert [values[0] for _, values in spout.take()] == expected
    add(client, unique, 3)
    # The group exists now, and goes on where it was.
    again = OpenSpout(make(redis_server, unique, start="latest"), task=1)
    assert [values[0] for _, values in again.take()] == [3]


def test_redis_may_be_away_for_a_while(
    own_redis: RedisServer, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    first, second, third = add(own_redis.client(), unique, 1, 2, 3)
    spout = OpenSpout(make(own_redis, unique, clock=clock))
    spout.take()
    own_redis.stop()
    spout.spout.ack(first)
    spout.spout.fail(second)
    assert spout.take() == [(second, (2,))]
    assert spout.take() == []
    assert str(spout.spout.waiting_for()).endswith("/0, which does not answer")
    clock.advance(60)
    assert spout.take() == []
    assert caplog.text.count("does not answer") == 1
    own_redis.start()
    (fourth,) = add(own_redis.client(), unique, 4)
    clock.advance(60)
    assert spout.take() == [(fourth, (4,))]
    assert "answers again" in caplog.text
    assert pending(own_redis.client(), unique) == 3
    assert {second, third, fourth} == {
        entry["message_id"] for entry in own_redis.client().xpending_range(unique, "topology", "-", "+", 9)
    }


def test_a_delivery_that_got_lost_on_the_way_is_found(own_redis: RedisServer, unique: str) -> None:
    """Redis has counted the entries as delivered, but the answer did not arrive."""
    clock = ManualClock()
    spout = OpenSpout(make(own_redis, unique, create_stream=True, clock=clock))
    spout.take()
    own_redis.stop()
    assert spout.take() == []
    own_redis.start()
    ids = add(own_redis.client(), unique, 1)
    own_redis.client().xreadgroup("topology", "source-0", {unique: ">"})
    clock.advance(60)
    assert [entry for entry, _ in spout.take()] == ids


def test_a_stream_that_is_deleted_meanwhile_is_lost_data(
    redis_server: RedisServer, client: redis.Redis, unique: str
) -> None:
    add(client, unique, 1)
    spout = OpenSpout(make(redis_server, unique))
    spout.take()
    client.delete(unique)
    with pytest.raises(DataLostError, match=f"the stream '{unique}' at .* or its group 'topology' is gone"):
        spout.take()


def test_what_is_not_there_is_named(redis_server: RedisServer, client: redis.Redis, unique: str) -> None:
    with pytest.raises(
        UsageError, match=f"there is no stream '{unique}' at redis://127.0.0.1:.*create_stream"
    ):
        OpenSpout(make(redis_server, unique))
    client.lpush(unique, "x")
    with pytest.raises(UsageError, match=f"the key '{unique}' at redis://.* is a list, not a stream"):
        OpenSpout(make(redis_server, unique))
    with pytest.raises(UsageError, match=r"no Redis address for the stream 'orders'; .*url='redis://"):
        OpenSpout(RedisStreamSpout("orders", "n int"))
    with pytest.raises(ServiceUnavailableError, match=r"no Redis answers at redis://127.0.0.1:1/0 \(Err"):
        OpenSpout(RedisStreamSpout("orders", "n int", url="redis://:secret@127.0.0.1:1/0"))
    with pytest.raises(UsageError, match=r"the address of Redis, http://host/0, cannot be understood"):
        OpenSpout(RedisStreamSpout("orders", "n int", url="http://:secret@host/0"))


def test_the_run_may_give_the_address(redis_server: RedisServer, client: redis.Redis, unique: str) -> None:
    add(client, unique, 1)
    spout = RedisStreamSpout(unique, "n int")
    assert len(OpenSpout(spout, addresses={"redis": redis_server.url}).take()) == 1


def test_a_wrong_password_is_refused_and_no_password_is_shown(
    own_redis: RedisServer, unique: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = own_redis.url.replace(PASSWORD, f"{PASSWORD}-not")
    with pytest.raises(
        ServiceUnavailableError, match=r"no Redis answers at redis://127.*invalid username-pass"
    ) as told:
        OpenSpout(RedisStreamSpout(unique, "n int", url=wrong))
    spout = OpenSpout(make(own_redis, unique, create_stream=True))
    own_redis.stop()
    spout.take()
    assert PASSWORD not in f"{told.value} {caplog.text} {spout.spout!r}"


@each(
    ("options", "error", "message"),
    [
        ({"stream": ""}, TopologyError, r"stream is ''"),
        (
            {"start": "begin"},
            TopologyError,
            r"start is 'begin'; it must be 'earliest', 'latest' or an",
        ),
        ({"on_bad_entry": "drop"}, TopologyError, r"on_bad_entry is 'drop'; it must be 'fail' or 'skip'"),
        ({"read_count": 0}, TopologyError, r"read_count is 0"),
        (
            {"output": "n array<int>"},
            SchemaError,
            r"field 'n' is array<int>, but the fields of a Redis",
        ),
        ({"id_field": "id"}, SchemaError, r"id_field is 'id'; it must be a string column of the output"),
    ],
)
def test_what_cannot_be_meant_is_refused(options: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        RedisStreamSpout(**{"stream": "orders", "output": "n int", **options})
