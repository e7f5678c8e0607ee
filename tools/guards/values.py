"""Guards of the value rules (5.1)."""

from __future__ import annotations

from guards import proofs, sources
from guards.guard import Guard

VALUE_RULES = (
    Guard(
        "5.1",
        "opaque, same txid: value = prev + delta",
        sources.WRITER,
        "changes[name] = case((same_batch, again), else_=merged[name])",
        "changes[name] = merged[name]",
        proofs.PROMISE.format("a-share-counts-once"),
    ),
    Guard(
        "5.1",
        "opaque, same txid: prev stays",
        sources.WRITER,
        "changes[prev.name] = case((same_batch, prev), else_=columns[name])",
        "changes[prev.name] = columns[name]",
        proofs.PROMISE.format("a-share-counts-once"),
    ),
    Guard(
        "5.1",
        "when a row's txid changes, every prev is set, even for a value that stays the same",
        sources.WRITER,
        "changes[prev.name] = case((same_batch, prev), else_=columns[name])",
        "changes[prev.name] = case((same_batch, prev), (columns[name] == merged[name], prev), "
        "else_=columns[name])",
        proofs.PROMISE.format("several-columns-are-one-row"),
    ),
    Guard(
        "5.1",
        "transactional, same txid: the row is skipped",
        sources.WRITER,
        "changes[name] = case((same_batch, columns[name]), else_=merged[name])",
        "changes[name] = merged[name]",
        proofs.PROMISE.format("a-share-counts-once"),
    ),
    Guard(
        "5.1",
        "a row with a newer txid is refused",
        sources.WRITER,
        "return changes, columns[TXID_COLUMN] <= excluded[TXID_COLUMN]",
        "return changes, None",
        proofs.PROMISE.format("regression-is-refused"),
    ),
    Guard(
        "5.1",
        "a key has only one delta in an attempt",
        "txstream/state/values.py",
        "    _refuse_twice(spec, deltas)\n",
        "",
        proofs.PROMISE.format("keys-come-once-and-whole"),
    ),
    Guard(
        "5.1",
        "a row whose value returns to zero stays",
        sources.WRITER,
        "            if written != chunk.num_rows:\n",
        "            value = self._table.c[self.spec.state.value_names[0]]\n"
        "            connection.execute(delete(self._table).where(value == 0))\n"
        "            if written != chunk.num_rows:\n",
        proofs.PROMISE.format("opaque-rules"),
    ),
)
