"""`RedisStreamSpout`: a Redis stream, shared by a consumer group, as a source of tracked tuples.

Invariants:

- An entry is acknowledged to Redis (XACK) when its tree is complete, never before. Until then it stays in the
  group's list of pending entries, under the name of this task, whatever happens to this process.
- `_pending` holds entries that were read and not acknowledged. If Redis delivers one of them again, it is
  not read again. A thread touches them, so that they are never idle for long enough to be claimed, however
  long they wait here. After a silence, of this process or of Redis, others may have claimed them: then what
  waits is forgotten, and what is still ours is read again. Only the spout's own thread changes `_pending`.
- One request asks for everything in one transaction, so that its numbers are of one moment.
- The task waits for something as long as any entry of the group is pending but those that it has itself.
- Passwords never appear in `repr`, in messages or in logs: an address is shown as host, port and database.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import pyarrow as pa

from txstream.api.bolts import OutputFieldsDeclarer
from txstream.api.errors import (
    DataLostError,
    DecodeError,
    ServiceUnavailableError,
    TopologyError,
    UsageError,
)
from txstream.api.spouts import SpoutContext
from txstream.api.tracked import MessageId, Spout, SpoutCollector
from txstream.spouts.kafka_arguments import one_of
from txstream.spouts.redis_values import BadEntryError, Entry, EntryReader
from txstream.wording import counted

if TYPE_CHECKING:
    import redis
    from redis.client import Pipeline

    Question = Callable[[Pipeline], object]

log = logging.getLogger(__name__)

_STARTS = {"earliest": "0", "latest": "$"}
_ENTRY_ID = re.compile(r"[0-9]+(-[0-9]+)?")
_MANY_ACKS = 1000
_MANY_TOUCHES = 1000
_RETRY_SECONDS = 2.0
_SILENT_SECONDS = 2.0  # other spouts wait in the meantime: all share one thread
_NO_MORE_HISTORY = ">"
# Adds ARGV[2] lost entries to those that the group ARGV[1] has read; with ARGV[3], if those are just so many.
_COUNT_AS_READ = """
for _, group in ipairs(redis.call('XINFO', 'GROUPS', KEYS[1])) do
    local is = {}
    for place = 1, #group, 2 do is[group[place]] = group[place + 1] end
    local read, last = is['entries-read'], is['last-delivered-id']
    if is['name'] == ARGV[1] and read and (ARGV[3] == '' or tonumber(ARGV[3]) == read) then
        redis.call('XGROUP', 'SETID', KEYS[1], ARGV[1], last, 'ENTRIESREAD', read + ARGV[2])
    end
end
"""


class RedisStreamSpout(Spout):
    """A Redis stream as a source of tracked tuples: `RedisStreamSpout("orders", "order_id string, n int")`.

    The tasks share the entries through a consumer group: each entry goes to one of them. Message ids are the
    ids of entries. An entry whose tree fails is emitted again from memory. If a process dies, the unfinished
    entries of its tasks come again when a task of the same name starts, or go to another task of the group
    after `claim_idle_seconds` idle. Needs Redis 6.2 or newer and `pip install 'txstream[redis]'`.

    stream: the stream's key. It must exist, unless `create_stream` makes an empty one.
    output: the columns, each from the field of that name: "order_id string, amount decimal(10,2)". Fields are
        text: numbers, `true`, `2026-11-21` or `2026-11-21T10:00:00Z`. A missing field is null, a field that
        is not declared is ignored.
    url: "redis://[[user]:password@]host:port/database", rediss:// or unix://; by default the run's address
        "redis".
    group: the consumer group, by default the topology's id; made if it is not there.
    start: where a new group begins: "earliest", "latest", or the id of the entry after which it begins.
    id_field: the column that gets the entry's id, which a DeduplicateBolt needs.
    consumer: the name in the group, followed by the task's number; by default the component's name. Two
        topologies in one group need different names.
    on_bad_entry: what to do with an entry that does not fit: "fail" ends the run with a DecodeError, and
        the entry stays pending; "skip" acknowledges it and logs a warning.
    on_data_loss: what to do when entries were trimmed from the stream before the group got them: "fail" ends
        the run with a DataLostError, "skip" logs how many and goes on behind the gap. Redis before 7.0 cannot
        tell.
    claim_idle_seconds: how long an entry must have been idle with another consumer before it is claimed. A
        task touches its entries more often than that, so they are claimed once its process is dead or does
        not run. Use the same time in all members of the group.
    read_count: how many entries are asked for at once.

    Raises TopologyError or SchemaError for invalid arguments.
    """

    def __init__(
        self,
        stream: str,
        output: str | pa.Schema,
        *,
        url: str | None = None,
        group: str | None = None,
        start: Literal["earliest", "latest"] | str = "earliest",
        id_field: str | None = None,
        consumer: str | None = None,
        on_bad_entry: Literal["fail", "skip"] = "fail",
        on_data_loss: Literal["fail", "skip"] = "fail",
        create_stream: bool = False,
        claim_idle_seconds: float = 60.0,
        read_count: int = 500,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not stream or not isinstance(stream, str):
            raise TopologyError(f"stream is {stream!r}; it must be the key of a Redis stream")
        if start not in _STARTS and not _ENTRY_ID.fullmatch(start):
            raise TopologyError(
                f"start is {start!r}; it must be 'earliest', 'latest' or an entry's id such as "
                f"'1526569495631-0'"
            )
        if claim_idle_seconds <= 0 or read_count < 1:
            raise TopologyError(
                f"claim_idle_seconds is {claim_idle_seconds} and read_count is {read_count}; both must be "
                f"more than 0"
            )
        self.stream = stream
        self.url = url
        self.group = group
        self.start = start
        self.consumer = consumer
        self.on_bad_entry = one_of("on_bad_entry", on_bad_entry, "fail", "skip")
        self.on_data_loss = one_of("on_data_loss", on_data_loss, "fail", "skip")
        self.create_stream = create_stream
        self.claim_idle_seconds = claim_idle_seconds
        self.read_count = read_count
        self._reader = EntryReader(output, id_field)
        self._clock = clock

    def __repr__(self) -> str:
        return f"RedisStreamSpout({self.stream!r})"

    def declare_output_fields(self, declarer: OutputFieldsDeclarer) -> None:
        declarer.declare(self._reader.schema)

    def open(self, context: SpoutContext, collector: SpoutCollector) -> None:
        """Connect and join the group. Raises ServiceUnavailableError when no Redis answers, UsageError when
        the key does not exist or is not a stream."""
        url = self.url or context.addresses.get("redis")
        if not url:
            raise UsageError(
                f"no Redis address for the stream {self.stream!r}; set TXSTREAM_REDIS, or write "
                f"RedisStreamSpout(..., url='redis://HOST:PORT/0')"
            )
        self._collector = collector
        self._group = self.group or context.topology_id
        self._name = f"{self.consumer or context.component}-{context.task_index}"
        self._where = f"the stream {self.stream!r} at {_shown(url)}"
        self._client = _connect(url, context)
        self._pending: dict[str, tuple[Any, ...]] = {}
        self._ready: deque[str] = deque()
        self._acked: list[str] = []
        # Entries that were delivered under this name before come first.
        self._history = "0"
        self._claim_from = "0-0"
        self._claim_at = self._clock()
        self._away_since: float | None = None
        self._left: str | None = None
        self._lost = 0
        self._touched_at = self._clock()
        self._doubtful: set[str] = set()
        self._closed = threading.Event()
        self._join_group(_shown(url))
        self._toucher = threading.Thread(target=self._touch, name=f"{self._name} touches", daemon=True)
        self._toucher.start()

    def next_tuple(self) -> None:
        if self._was_silent():
            self._look_what_is_ours()
        if not self._ready:
            had_history = self._history != _NO_MORE_HISTORY
            self._fetch()
            if had_history and self._history == _NO_MORE_HISTORY and not self._ready:
                self._fetch()  # there was no history: emitting nothing must mean that the stream has nothing
        while self._ready:
            entry_id = self._ready.popleft()
            if entry_id in self._pending:  # it may have been acked while it waited to be emitted again
                self._collector.emit(self._pending[entry_id], entry_id)
                return

    def waiting_for(self) -> str | None:
        if self._away_since is not None:
            return f"{self._where}, which does not answer"
        if self._history != _NO_MORE_HISTORY:
            return f"what {self._where} delivered to {self._name!r} before"
        return self._left

    def ack(self, message_id: MessageId) -> None:
        entry_id = str(message_id)
        if self._pending.pop(entry_id, None) is not None:
            self._acked.append(entry_id)
            if len(self._acked) % _MANY_ACKS == 0:  # in an outage, do not ask at every ack
                self._ask()

    def fail(self, message_id: MessageId) -> None:
        if message_id in self._pending:
            self._ready.appendleft(str(message_id))

    def deactivate(self) -> None:
        self._ask()

    def close(self) -> None:
        self._ask()
        self._closed.set()
        self._toucher.join(_SILENT_SECONDS)
        self._client.close()

    # --- Redis ----------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        """Read more: first this name's own history, then new entries and those that others have left idle."""
        now = self._clock()
        if self._away_since is not None and now < self._away_since + _RETRY_SECONDS:
            return
        counts: list[Question] = [
            lambda pipe: pipe.xinfo_stream(self.stream),
            lambda pipe: pipe.xinfo_groups(self.stream),
        ]
        is_new = self._history == _NO_MORE_HISTORY
        if is_new and self.on_data_loss == "fail":
            # Nothing may be delivered from behind a gap, or the next run would begin there.
            found = self._ask(*counts)
            if not found:
                return
            self._look_for_loss(*found)
        questions: list[Question] = [
            *counts,
            lambda pipe: pipe.xreadgroup(
                self._group, self._name, {self.stream: self._history}, count=self.read_count
            ),
        ]
        if is_new and now >= self._claim_at:
            idle_ms = int(self.claim_idle_seconds * 1000)
            questions.append(
                lambda pipe: pipe.xautoclaim(
                    self.stream, self._group, self._name, idle_ms, self._claim_from, self.read_count
                )
            )
        questions.append(lambda pipe: pipe.xpending(self.stream, self._group))
        answers = self._ask(*questions)
        if not answers:
            return
        stream, groups, read, *claims, pending = answers
        entries = read[0][1] if read else []
        if is_new:
            self._look_for_loss(stream, groups, is_emptied=not entries)
        if self._history != _NO_MORE_HISTORY:
            self._history = _text(entries[-1][0]) if entries else _NO_MORE_HISTORY
        self._take(entries)
        for cursor, claimed, *deleted in claims:
            self._claim_from = _text(cursor)
            if self._claim_from == "0-0":  # all pending entries have been looked at
                self._claim_at = now + self.claim_idle_seconds / 2
            if claimed:
                log.info("%s: %d entries are claimed from other consumers", self._where, len(claimed))
            self._take(claimed)
            if deleted and deleted[0]:
                self._tell_deleted(", ".join(map(_text, deleted[0])))
        self._look_for_others(pending)

    def _look_for_others(self, pending: Mapping[str, Any]) -> None:
        """Set `_left` if entries are pending that are not in this task's hands."""
        held = {_text(one["name"]): int(one["pending"]) for one in pending["consumers"] or ()}
        held[self._name] = held.get(self._name, 0) - len(self._pending) - len(self._acked)
        names = sorted(name for name, entries in held.items() if entries > 0)
        self._left = None
        if names:
            entries = counted(sum(held[name] for name in names), "entry", "entries")
            self._left = (
                f"{entries} of {self._where} pending with {', '.join(names)}; what is idle for "
                f"{self.claim_idle_seconds:g} s is claimed"
            )

    def _look_for_loss(
        self, stream: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], *, is_emptied: bool = False
    ) -> None:
        """Find out whether entries were trimmed that the group never got. If its last entry is no longer
        there, all that are left are new to it; so Redis' counts say how many are missing in between. The
        task that reads on behind the gap is the only one that sees it, unless the stream `is_emptied`."""
        group = next((one for one in groups if _text(one["name"]) == self._group), None)
        if group is None:  # the next question finds out
            return
        added, read, last = stream.get("entries-added"), group.get("entries-read"), group["last-delivered-id"]
        first = stream["first-entry"]
        if added is None or read is None:
            return
        if _order(first[0] if first else stream["last-generated-id"]) <= _order(last):
            return
        lost = int(added) - int(stream["length"]) - int(read) - self._lost
        if lost <= 0:
            return
        what = f"{counted(lost, 'entry', 'entries')} of {self._where} behind {_text(last)}"
        if self.on_data_loss == "fail":
            raise DataLostError(
                f"{what} were trimmed before the group {self._group!r} got them; keep more of the stream "
                f"(MAXLEN), and go on behind the gap with on_data_loss='skip'"
            )
        log.warning("%s were trimmed before the group %r got them; going on", what, self._group)
        import redis

        try:  # otherwise the next run would count them again
            only_if = str(read) if is_emptied else ""
            self._client.eval(_COUNT_AS_READ, 1, self.stream, self._group, lost, only_if)
        except redis.RedisError as error:
            self._lost += lost
            log.info("%s: the group's count stays as it is (%s)", self._where, error)

    def _touch(self) -> None:
        """The toucher's thread: claim what is pending here for ourselves, so that nobody else does. What
        another consumer may have by now is left alone: it would be taken from a live one."""
        import redis

        while not self._closed.wait(self.claim_idle_seconds / 4):
            if self._was_silent():
                continue
            began, doubtful = self._clock(), self._doubtful
            # What is acked stays pending in Redis until the next question.
            ids = [entry for entry in [*list(self._pending), *list(self._acked)] if entry not in doubtful]
            try:
                for start in range(0, len(ids), _MANY_TOUCHES):
                    some: list[Any] = list(ids[start : start + _MANY_TOUCHES])
                    self._client.xclaim(self.stream, self._group, self._name, 0, some, justid=True)
            except redis.RedisError as error:  # the spout's own thread finds out what it means
                log.info("%s: pending entries were not touched (%s)", self._where, error)
            else:
                self._touched_at = began

    def _was_silent(self) -> bool:
        """Whether others may have claimed what is pending here."""
        return self._clock() - self._touched_at > self.claim_idle_seconds / 2

    def _look_what_is_ours(self) -> None:
        """Forget what waits, and read again what is pending under our name."""
        for entry_id in self._ready:
            self._pending.pop(entry_id, None)
        if self._ready:
            log.warning("%s: others may have claimed what waits here; it is read again", self._where)
        self._ready.clear()
        self._doubtful = set(self._pending)
        self._history = "0"
        self._touched_at = self._clock()

    def _ask(self, *questions: Question) -> list[Any]:
        """Send the acknowledgements that are due, then the questions, and return the answers. Return nothing
        in an outage: the spout waits for its end."""
        import redis

        pipeline = self._client.pipeline(transaction=True)
        if self._acked:
            pipeline.xack(self.stream, self._group, *self._acked)
        for question in questions:
            question(pipeline)
        try:
            answers = list(pipeline.execute())
        except (redis.ConnectionError, redis.TimeoutError) as error:
            if isinstance(error, redis.AuthenticationError):
                raise ServiceUnavailableError(f"{self._where} refuses to be read: {error}") from error
            if self._away_since is None:
                log.warning("%s does not answer (%s); waiting for it", self._where, error)
            self._away_since = self._clock()
            # Entries whose delivery was lost on the way are found in the history.
            self._history = "0"
            return []
        except redis.ResponseError as error:
            if "NOGROUP" in str(error) or "no such key" in str(error):
                raise DataLostError(
                    f"{self._where} or its group {self._group!r} is gone, and with it what was pending; "
                    f"another run makes the group again, from start={self.start!r}"
                ) from error
            raise UsageError(f"{self._where} cannot be read: {error}") from error
        if self._away_since is not None:
            log.warning("%s answers again", self._where)
            self._away_since = None
        if self._acked:
            self._acked.clear()
            del answers[0]
        return answers

    def _take(self, found: Sequence[Any]) -> None:
        entries: list[Entry] = []
        for raw_id, fields in found:
            entry_id = _text(raw_id)
            if entry_id in self._pending:
                self._doubtful.discard(entry_id)
                continue
            if fields:
                entries.append((entry_id, fields))
            else:
                self._tell_deleted(entry_id)
                self._acked.append(entry_id)
        try:
            rows = self._reader.read(entries)
        except BadEntryError:
            entries, rows = self._sorted_out(entries)
        for (entry_id, _), row in zip(entries, rows, strict=True):
            self._pending[entry_id] = row
            self._ready.append(entry_id)

    def _tell_deleted(self, entry_ids: str) -> None:
        log.warning("%s: entry %s was deleted before it was processed", self._where, entry_ids)

    def _sorted_out(self, entries: list[Entry]) -> tuple[list[Entry], list[tuple[Any, ...]]]:
        """The entries that fit, with their rows. Raises DecodeError for the first that does not fit, unless
        such entries are skipped."""
        good: list[Entry] = []
        rows: list[tuple[Any, ...]] = []
        for entry in entries:
            try:
                rows += self._reader.read([entry])
                good.append(entry)
            except BadEntryError as bad:
                what = f"entry {entry[0]} of {self._where} does not fit the output: {bad}"
                if self.on_bad_entry == "fail":
                    raise DecodeError(f"{what}; correct the output, or use on_bad_entry='skip'") from bad
                log.warning("%s; it is skipped", what)
                self._acked.append(entry[0])
        return good, rows

    def _join_group(self, address: str) -> None:
        import redis

        try:
            kind = _text(self._client.type(self.stream))
            if kind == "none" and not self.create_stream:
                raise UsageError(
                    f"there is no stream {self.stream!r} at {address}; add an entry to it, or use "
                    f"RedisStreamSpout(..., create_stream=True)"
                )
            if kind not in ("none", "stream"):
                raise UsageError(f"the key {self.stream!r} at {address} is a {kind}, not a stream")
            start, read = self._beginning(kind)
            self._client.xgroup_create(
                self.stream, self._group, start, mkstream=self.create_stream, entries_read=read
            )
        except redis.ResponseError as error:
            if "BUSYGROUP" not in str(error):  # BUSYGROUP: the group exists
                raise UsageError(f"{self._where} cannot be read by group {self._group!r}: {error}") from error
        except redis.RedisError as error:
            raise ServiceUnavailableError(
                f"no Redis answers at {address} ({error}); check that it runs there, and its address and "
                f"password"
            ) from error

    def _beginning(self, kind: str) -> tuple[str, int | None]:
        """Return after which entry a new group begins, and how many entries were added up to there; None if
        that is not known."""
        start = _STARTS.get(self.start, self.start)
        if kind == "none" or start not in _STARTS.values():
            return start, None
        stream = self._client.xinfo_stream(self.stream)
        added = stream.get("entries-added")
        if added is None:  # a Redis before 7.0, which takes no such number
            return start, None
        if self.start == "latest":
            return _text(stream["last-generated-id"]), int(added)
        return start, int(added) - int(stream["length"])


def _connect(url: str, context: SpoutContext) -> redis.Redis:
    try:
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry
    except ImportError as error:
        raise UsageError(
            "RedisStreamSpout needs Redis' client, which is not installed; type pip install 'txstream[redis]'"
        ) from error
    try:
        return redis.Redis.from_url(
            url,
            protocol=2,
            retry=Retry(NoBackoff(), 0),
            socket_connect_timeout=min(_SILENT_SECONDS, context.connect_timeout_seconds),
            socket_timeout=min(_SILENT_SECONDS, context.fetch_timeout_seconds),
        )
    except ValueError as error:
        raise UsageError(
            f"the address of Redis, {_shown(url)}, cannot be understood; it looks like "
            f"redis://:password@host:6379/0, rediss://... or unix:///path"
        ) from error


def _shown(url: str) -> str:
    """The address without user, password and options."""
    try:
        parts = urlsplit(url)
        host = f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or ""
    except ValueError:
        return "a URL"
    return f"{parts.scheme}://{host}{parts.path}"


def _order(entry_id: bytes | str) -> tuple[int, ...]:
    """Return what sorts entries as Redis does."""
    return tuple(map(int, _text(entry_id).split("-")))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
