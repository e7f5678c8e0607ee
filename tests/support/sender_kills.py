"""Sends the changes of a table to a topic, exactly once, as a leader does, and dies at one step of it: the
sender alone, a process that starts in a fraction of a second.

    python sender_kills.py DATABASE BOOTSTRAP TOPOLOGY TABLE TOPIC BATCHES STEP
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from support.sink_kills import die_at
    from txstream.core.transaction import Txid
    from txstream.plugins.outbox.changes import change_record
    from txstream.plugins.outbox.sending import OutboxFollower, TableOutbox
    from txstream.spouts.kafka.transactional_topic import TransactionalTopic
    from txstream.state import open_database

    url, bootstrap, topology, table, topic, batches, step = sys.argv[1:]
    die_at(step)
    connect = partial(
        TransactionalTopic, topic, f"{topic}-txids", f"txstream-{topic}", "life", bootstrap, {}, 10.0
    )
    database = open_database(url)
    follower = OutboxFollower(
        topology,
        [TableOutbox(topology, table, topic, [database], connect, change_record, lambda _row: 0)],
        lambda: Txid(int(batches) + 1),
        dict,  # nothing is noted: the marker alone tells where to go on
        lambda _sent: None,
    )
    follower.send_committed()
    follower.disconnect()
    database.close()
