"""Guards of the value rules (5.1)."""

from __future__ import annotations

from guards import proofs, sources
from guards.guard import Guard
from guards.hunt import TRANSACTIONAL, ZOMBIES, Hunt
from guards.patch import Patch
from txstream.plugins.proof.simulation.world import WrongResultError

VALUE_RULES = (
    Guard(
        "5.1",
        "opaque, same txid: value = prev + delta",
        sources.WRITER,
        "changes[name] = case((same_batch, again), else_=merged[name])",
        "changes[name] = merged[name]",
        proofs.SQLITE_KEEPS.format("commits"),
        promise="a-share-counts-once",
    ),
    Guard(
        "5.1",
        "opaque, same txid: prev stays",
        sources.WRITER,
        "changes[prev.name] = case((same_batch, prev), else_=columns[name])",
        "changes[prev.name] = columns[name]",
        proofs.SQLITE_KEEPS.format("commits"),
        promise="a-share-counts-once",
    ),
    Guard(
        "5.1",
        "when a row's txid changes, every prev is set, even for a value that stays the same",
        sources.WRITER,
        "changes[prev.name] = case((same_batch, prev), else_=columns[name])",
        "changes[prev.name] = case((same_batch, prev), (columns[name] == merged[name], prev), "
        "else_=columns[name])",
        proofs.SQLITE_KEEPS.format("values"),
        promise="several-columns-are-one-row",
        instead=(
            Patch(
                sources.MERGING,
                "                    return opaque.value, opaque.prev, opaque.txid\n",
                "                    prev = opaque.prev\n"
                "                    if stored is not None and stored[2] != txid and prev is not None:\n"
                "                        rows = zip(opaque.value, stored[0], stored[1] or (0,) * len(prev))\n"
                "                        prev = tuple(was if new == now else now for new, now, was in rows)\n"
                "                    return opaque.value, prev, opaque.txid\n",
            ),
        ),
    ),
    Guard(
        "5.1",
        "transactional, same txid: the row is skipped",
        sources.WRITER,
        "changes[name] = case((same_batch, columns[name]), else_=merged[name])",
        "changes[name] = merged[name]",
        proofs.SQLITE_KEEPS.format("commits"),
        promise="a-share-counts-once",
        promises=("transactional-rules", "transactional-replay-is-skipped"),
        mutant="ReplaysAddAgain",
        does="A transactional row ignores its txid, so a replay adds to it again.",
        hunts=(
            Hunt(WrongResultError, TRANSACTIONAL, 1, ZOMBIES),
            Hunt(WrongResultError, TRANSACTIONAL, 2),
        ),
        instead=(
            Patch(
                sources.MERGING,
                "        txid = attempt.txid\n",
                "        txid = attempt.txid\n"
                "        if stored is not None and stored[2] == txid:\n"
                "            stored = stored[0], stored[1], txid - 1\n",
            ),
        ),
    ),
    Guard(
        "5.1",
        "a row with a newer txid is refused",
        sources.WRITER,
        "return changes, columns[TXID_COLUMN] <= excluded[TXID_COLUMN]",
        "return changes, None",
        proofs.SQLITE_KEEPS.format("commits"),
        promise="regression-is-refused",
        instead=(
            Patch(
                sources.MERGING,
                "        txid = attempt.txid\n",
                "        txid = attempt.txid\n"
                "        if stored is not None and stored[2] is not None and stored[2] > txid:\n"
                "            stored = stored[0], stored[1], txid - 1\n",
            ),
        ),
    ),
    Guard(
        "5.1",
        "a key has only one delta in an attempt",
        "txstream/state/values.py",
        "    _refuse_twice(spec, deltas)\n",
        "",
        proofs.SQLITE_KEEPS.format("values"),
        promise="keys-come-once-and-whole",
    ),
    Guard(
        "5.1",
        "a row whose value returns to zero stays",
        sources.WRITER,
        "            self._prove(connection, attempt, chunk, written, may_lose)\n",
        "            value = self._table.c[self.spec.state.value_names[0]]\n"
        "            connection.execute(delete(self._table).where(value == 0))\n",
        proofs.SQLITE_KEEPS.format("values"),
        promise="opaque-rules",
    ),
)
