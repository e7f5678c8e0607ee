"""The files that guards are in, and the lines that several guards change."""

from __future__ import annotations

from guards.patch import Patch

PROTOCOL = "txstream/state/commit_protocol.py"
FENCE = "txstream/state/sql/fence.py"
WRITER = "txstream/state/sql/writer.py"
APPEND_WRITER = "txstream/state/sql/append_writer.py"
RECOVERY = "txstream/engine/start/recovery.py"
COMMIT = "txstream/engine/commit/committer.py"
RETRIES = "txstream/engine/letters/retries.py"
COORDINATOR = "txstream/core/coordinator.py"
PROGRESS = "txstream/zookeeper/progress.py"
FENCED = "txstream/zookeeper/fenced_tree.py"
POSTGRESQL = "txstream/state/sql/postgresql.py"
MYSQL = "txstream/plugins/mysql/dialect.py"
SERVER = "txstream/state/sql/server_timeouts.py"
SQLITE = "txstream/plugins/local/sqlite.py"

RAISE = "            found = here.raise_and_look(attempt)\n"
LOOK = "            found = here.entries(Txid(attempt.txid - 1), attempt.txid)\n"
RAISE_IN_COMMIT = "    " + RAISE
HOLD = "            if self.life.is_fenced:\n                here.hold_fence(attempt.attempt)\n"

# What stores in memory run, and so the simulation and the conformance suite.
STORE = "txstream/plugins/proof/stores/backend.py"
MERGING = "txstream/plugins/proof/stores/merging.py"
FENCE_RULES = "txstream/state/fence_rules.py"
TAKEOVER = "txstream/engine/start/takeover.py"
TRANSACTION = "txstream/core/transaction.py"

# Instead of raising: a fence that is too high stays where it is.
RAISE_IF_LOWER = Patch(
    STORE,
    "if fence_rules.must_rise(row, life.topology, attempt, may_be_equal=may_be_equal):",
    "if row.attempt < attempt:",
)

# A driver that changes tables at its start would find the fence below its attempt and refuse to lead.
NO_FENCE_AT_START = (
    Patch(PROTOCOL, "            here.raise_fence(attempt, may_be_equal=True)\n", "            pass\n"),
    Patch(PROTOCOL, "return self.store.migrate(self.life, attempt, unfinished=unfinished)", "return []"),
    Patch(PROTOCOL, "        self.store.keep_identity(self.life, attempt, identity)\n", "        pass\n"),
)

# A beginning whose answer was lost is taken for done, so the fence may be below the tasks.
TAKE_LOST_BEGINS_FOR_DONE = Patch(
    COMMIT,
    "            # Whether or not it has begun, this attempt cannot begin again.\n"
    "            self._outcome(self._states[at], one.attempt, lost=False)\n",
    "            self._outcome(self._states[at], one.attempt, lost=False)\n"
    "            if isinstance(error, AnswerLostError):\n"
    "                return\n",
)

# After the advance of a start nobody looks at the ledgers again.
ADVANCE_AND_GO_ON = Patch(
    RECOVERY,
    "                store.advance(txid, attempt, None if semantics is Semantics.TRANSACTIONAL else metas)\n",
    "                store.advance(txid, attempt, None if semantics is Semantics.TRANSACTIONAL else metas)\n"
    "                return Resume(store.load())\n",
)
