"""The files that guards are in, and the lines that several guards change."""

PROTOCOL = "txstream/state/commit_protocol.py"
FENCE = "txstream/state/sql/fence.py"
WRITER = "txstream/state/sql/writer.py"
RECOVERY = "txstream/engine/start/recovery.py"
COMMIT = "txstream/engine/commit/committer.py"
COORDINATOR = "txstream/coordinator.py"
PROGRESS = "txstream/zookeeper/progress.py"
FENCED = "txstream/zookeeper/fenced_tree.py"
POSTGRESQL = "txstream/state/sql/postgresql.py"
MYSQL = "txstream/state/sql/mysql.py"
SERVER = "txstream/state/sql/server_timeouts.py"
SQLITE = "txstream/state/sql/sqlite.py"

RAISE = "            here.raise_fence(attempt.attempt, may_be_equal=False)\n"
RAISE_IN_COMMIT = "    " + RAISE
HOLD = "            if self.life.is_fenced:\n                here.hold_fence(attempt.attempt)\n"
