"""Rounds: records come while faults strike; then the table must hold exactly what was sent."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import sqlalchemy as sa
from kafka import KafkaProducer
from support.kafka_topics import Topics, wait_until
from support.tables import read_counts
from support.texts import count_words, make_lines

from chaos.faults import WINDOW_SECONDS, Fault, draw
from chaos.site import Site
from txstream import Settings, inspect
from txstream.inspect.ledgers import failed_attempts

LINES = 2_000
HELD_BACK = 200
"""How many of a round's lines are sent when its faults are over."""
PARTITIONS = 4
DEADLINE_SECONDS = 180.0
SEMANTICS = ("opaque", "transactional")
_TICK_SECONDS = 0.05


class InexactRoundError(AssertionError):
    """A round did not end with exact totals in time."""


@dataclass(frozen=True)
class Round:
    """`replays` are attempts that failed, `recoveries` the seconds from each fault to the next commit,
    `pause` is the longest time without one."""

    number: int
    semantics: str
    faults: tuple[Fault, ...]
    seconds: float
    batches: int
    replays: int
    recoveries: tuple[float, ...]
    pause: float

    def __str__(self) -> str:
        return (
            f"round {self.number}, {self.semantics}: exact after {self.seconds} s, {self.batches} batches, "
            f"{self.replays} replays, {self.pause} s without a commit; {', '.join(map(str, self.faults))}"
        )


@dataclass
class Counting:
    """A topology over all of its rounds: what was sent to it, and its last txid."""

    name: str
    truth: Counter[str] = field(default_factory=Counter)
    txid: int = 0


class Rounds:
    """Plays rounds on a site: `turn` rounds of one semantics, then as many of the other one."""

    def __init__(self, site: Site, seed: int, turn: int = 1) -> None:
        self.site, self.seed, self.turn = site, seed, turn
        self._kafka, self._database = site.launcher.services.kafka, site.launcher.database
        self._settings = Settings(
            zookeeper=site.launcher.services.zookeeper,
            kafka=self._kafka,
            database=self._database,
            data_dir=site.folder,
        )
        self._countings = {one: Counting(f"chaos-{one}") for one in SEMANTICS}
        self._running: Counting | None = None
        with Topics(self._kafka) as topics:
            for one in self._countings.values():
                topics.create(one.name, replicas={n: [1 + n % 2] for n in range(PARTITIONS)})

    def play(self, number: int) -> Round:
        """Play one round. Raises InexactRoundError; a file in the site's folder then tells more."""
        semantics = SEMANTICS[number // self.turn % len(SEMANTICS)]
        counting = self._countings[semantics]
        if counting is not self._running:
            self.site.stop_drivers()
            self.site.start_drivers(counting.name, semantics)
            self._running = counting
        self._wait(lambda: any(driver.leads for driver in self.site.drivers), "a driver leads")
        faults = draw(self.seed, number)
        lines = make_lines(LINES, seed=self.seed + number)
        lines = [f"{line} r{number}.{at % 97}" for at, line in enumerate(lines)]  # new words
        counting.truth.update(count_words(lines))
        self.site.note(f"round {number}, {semantics}")
        begun = datetime.now(UTC)
        try:
            self._strike_all(faults, counting.name, lines)
            self._wait(lambda: self._counts(counting) == counting.truth, "the table is what was sent")
            self._wait(lambda: self._new_tuples(counting) == LINES, "the ledger is what was sent")
            batches = inspect.batches(counting.name, self._settings, since=begun)
            last = counting.txid + len(batches)
            assert [one.txid for one in batches] == list(range(counting.txid + 1, last + 1))
            counting.txid = last
        except Exception as error:
            raise InexactRoundError(self._tell(number, begun, faults, counting, error)) from error
        commits = [at for one in batches if (at := one.first.committed_at) is not None]
        moments = [begun + timedelta(seconds=fault.at) for fault in faults]
        return Round(
            number,
            semantics,
            tuple(faults),
            _seconds(begun, datetime.now(UTC)),
            len(batches),
            sum(len(failed_attempts(one.first)) for one in batches),
            tuple(min(_seconds(moment, at) for at in commits if at > moment) for moment in moments),
            max(_seconds(before, after) for before, after in pairwise([begun, *commits])),
        )

    def check(self) -> None:
        """Assert, when all is over, that nothing has changed any more. Raises InexactRoundError."""
        self.site.stop_drivers()
        for one in self._countings.values():
            if one.txid:
                checked = self.site.launcher.run("fsck", one.name)
                if checked.status or self._counts(one) != one.truth:
                    raise InexactRoundError(f"{one.name} after all rounds: {checked.stdout}")

    def _strike_all(self, faults: Sequence[Fault], topic: str, lines: Sequence[str]) -> None:
        """Strike at each fault's time and for its time; return when every server is back and all is sent."""
        finish, pause = threading.Event(), threading.Event()
        ahead, ends = list(faults), list[tuple[float, Callable[[], None]]]()
        begun = time.monotonic()
        with ThreadPoolExecutor(1, "feed") as pool:
            fed = pool.submit(feed, self._kafka, topic, lines, finish)
            try:
                while (now := time.monotonic() - begun) < WINDOW_SECONDS or ahead or ends:
                    if ahead and ahead[0].at <= now:
                        fault = ahead.pop(0)
                        ends.append((now + fault.seconds, self.site.strike(fault)))
                    for one in [one for one in ends if one[0] <= now]:
                        ends.remove(one)
                        one[1]()
                    self.site.tend()
                    pause.wait(_TICK_SECONDS)
                self._wait(self.site.is_whole, "every server is there again")
            finally:
                finish.set()
                for _, end in ends:
                    end()
            self._wait(fed.done, "all is sent")
            fed.result()

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        def met() -> bool:
            self.site.tend()
            return condition()

        wait_until(met, what, DEADLINE_SECONDS)

    def _counts(self, counting: Counting) -> Counter[str]:
        try:
            return Counter(read_counts(self._database, counting.name))
        except sa.exc.SQLAlchemyError:  # the table does not exist yet
            return Counter()

    def _new_tuples(self, counting: Counting) -> int:
        batches = inspect.batches(counting.name, self._settings)
        return sum(
            one.first.tuples for one in batches if one.txid > counting.txid and one.status == "committed"
        )

    def _tell(
        self, number: int, begun: datetime, faults: Sequence[Fault], counting: Counting, error: Exception
    ) -> str:
        truth, counts = counting.truth, self._counts(counting)
        what = f"round {number} of seed {self.seed} is not exact ({error!r})"
        words = sorted(word for word in truth | counts if truth[word] != counts[word])
        wrong = {word: {"sent": truth[word], "counted": counts[word]} for word in words}
        told = [what, f"begun {begun}", *map(str, faults), json.dumps(wrong, indent=1)]
        for command, *options in (["status"], ["batches", "--since", "10m", "--json"], ["fsck"]):
            outcome = self.site.launcher.run(command, counting.name, *options)
            told.append(f"$ txstream {command}\n{outcome.stdout}{outcome.stderr}")
        file = self.site.folder / f"round-{number}.txt"
        file.write_text("\n".join(told), encoding="utf-8")
        return f"{what}: {counts.total()} words of {truth.total()}; see {file} and {file.parent / 'logs'}"


def _seconds(begin: datetime, end: datetime) -> float:
    return round((end - begin).total_seconds(), 1)


def feed(bootstrap: str, topic: str, lines: Sequence[str], finish: threading.Event) -> None:
    """Send lines, most of them evenly while faults strike, the rest when `finish` is set. Return when each is
    in the log once."""
    milliseconds = int(DEADLINE_SECONDS * 1000)
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        linger_ms=5,
        delivery_timeout_ms=milliseconds,
        max_block_ms=milliseconds,
        request_timeout_ms=5_000,  # a frozen broker is asked again; the producer is idempotent
        reconnect_backoff_max_ms=500,
    )
    evenly = len(lines) - HELD_BACK
    begun = time.monotonic()
    sent = []
    for number, line in enumerate(lines):
        due = begun + number * WINDOW_SECONDS / evenly if number < evenly else math.inf
        finish.wait(min(max(0.0, due - time.monotonic()), DEADLINE_SECONDS))
        sent.append(producer.send(topic, line.encode(), partition=number % PARTITIONS))
    for one in sent:
        one.get(timeout=DEADLINE_SECONDS)
    producer.close()
