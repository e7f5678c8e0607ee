"""For readers of topics that a topology fills at least once: each record once.

Works with any consumer of kafka-python, and needs nothing else of txstream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["Once", "once"]

_TOPOLOGY, _TXID, _REWIND = "txstream-topology", "txstream-txid", "txstream-rewind"


class Once:
    """Tells new records from those that come again. Make it with `once`.

    Invariant. A partition has all its records of a txid before the first of a later one. So a record of a
    smaller txid than the last one is not new, nor is one of the last txid whose key was there. Only the keys
    of each partition's last txid are remembered, whatever its length.
    """

    def __init__(
        self,
        consumer: Any,
        by: Callable[[Any], Any],
        seen: Iterable[tuple[str, int, str, int, Iterable[Any]]],
        on_rewind: Callable[[Any], object],
    ) -> None:
        self._consumer = consumer
        self._by = by
        self._on_rewind = on_rewind
        self._seen = {(topic, part, of): (txid, set(keys)) for topic, part, of, txid, keys in seen}

    def __iter__(self) -> Iterator[Any]:
        """Yield the consumer's records that are new."""
        return filter(self.is_new, self._consumer)

    def poll(self, *arguments: Any, **named: Any) -> dict[Any, list[Any]]:
        """Return what the consumer's `poll` returns, without what is not new."""
        found = {}
        for place, records in self._consumer.poll(*arguments, **named).items():
            if new := [record for record in records if self.is_new(record)]:
                found[place] = new
        return found

    def is_new(self, record: Any) -> bool:
        """Whether a record is there for the first time. Call it once for each, in the order of its partition.
        A record without txstream's headers is always new, and one that only tells of a rewind never is."""
        headers = dict(record.headers)
        if _TXID not in headers:
            return True
        place = record.topic, record.partition, headers.get(_TOPOLOGY, b"").decode()
        tells = _REWIND in headers and record.key == _REWIND.encode()
        txid, key = int(headers[_TXID]), record.key if tells else self._by(record)
        last, keys = self._seen.get(place, (0, set()))
        if txid < last or (txid == last and key in keys):
            return False
        if txid > last:
            last, keys = self._seen[place] = txid, set()
        keys.add(key)
        if tells:
            self._on_rewind(record)
        return not tells

    @property
    def seen(self) -> list[tuple[str, int, str, int, list[Any]]]:
        """What is remembered: for each partition and topology its last txid and the keys of that. Store it in
        the transaction that stores what you made of the records and their offsets, and give it back to `once`
        when you go on from there."""
        return [(*place, txid, [*keys]) for place, (txid, keys) in self._seen.items()]


def once(
    consumer: Any,
    *,
    by: Callable[[Any], Any] = lambda record: record.key,
    seen: Iterable[tuple[str, int, str, int, Iterable[Any]]] = (),
    on_rewind: Callable[[Any], object] = lambda _: None,
) -> Once:
    """Return the consumer's records, each once: `for record in once(KafkaConsumer("per-user", ...))`.

    `by` tells the records of one txid apart: by their keys, which suffices for a table's changes; for a
    `KafkaSinkBolt` it may be `lambda record: (record.key, record.value)`, if no two tuples of a batch are
    alike. `seen` is what an earlier run remembered (`Once.seen`). Without it, and behind the offset of that
    run, the records of one txid may come again. A topology that was deleted and begun afresh counts its txids
    from 1: begin with nothing seen, too. `on_rewind` gets what tells of a rewind, a record in each partition
    of a `KafkaSinkBolt`'s topic: what came there since the txid in its header `txstream-rewind` was undone.
    """
    return Once(consumer, by, seen, on_rewind)
