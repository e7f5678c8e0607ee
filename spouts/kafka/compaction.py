"""Topics whose records disappear though nobody deletes them: a transactional spout is warned about them."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from kafka.protocol.admin import DescribeConfigsRequest

from txstream.spouts.kafka.client import KafkaClient
from txstream.spouts.kafka.protocol import reason_of

log = logging.getLogger(__name__)

_TOPIC = 2  # Kafka's number for this kind of resource
_POLICY = "cleanup.policy"
WHAT_FOLLOWS = (
    "with a transactional spout, compaction may take records from a batch before its replay: then a run with "
    "several databases ends (InputChangedError), and one with a single database counts what is left. Use "
    "OpaqueSpout, or keep records longer than an outage lasts (min.compaction.lag.ms)"
)


def compacted(client: KafkaClient, topics: Collection[str], seconds: float) -> list[str]:
    """Return which of the topics have a `cleanup.policy` with "compact", as far as a broker tells."""
    if not topics:
        return []
    request = DescribeConfigsRequest(
        resources=[(_TOPIC, name, [_POLICY]) for name in sorted(topics)],
        include_synonyms=False,
        min_version=0,
    )
    deadline = time.monotonic() + seconds
    for node in client.nodes():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            break
        answer = client.ask({node: [request]}, remaining)[node]
        if not isinstance(answer, Exception):
            return [
                one.resource_name
                for one in answer[0].results
                if any(found.name == _POLICY and "compact" in (found.value or "") for found in one.configs)
            ]
        log.debug("broker %d did not tell how topics are cleaned: %s", node, reason_of(answer))
    return []


def warn_of_compaction(client: KafkaClient, topics: Collection[str], seconds: float) -> None:
    """Say once which of the topics are compacted, and what that means."""
    found = compacted(client, topics, seconds)
    if found:
        log.warning("Kafka compacts %s: %s", ", ".join(map(repr, found)), WHAT_FOLLOWS)
