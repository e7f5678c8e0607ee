"""Asks one broker which brokers it knows, to tell when it is ready.

This uses kafka-python's protocol over a plain socket. Its clients would log every connection that a starting
server refuses to the user's standard error.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass

_SECONDS = 2.0


@dataclass(frozen=True)
class ClusterView:
    """What a broker says about its cluster: its id, and the ids of the brokers that serve clients."""

    cluster_id: str
    brokers: frozenset[int]


def cluster_view(host: str, port: int) -> ClusterView | None:
    """Return the broker's answer to a metadata request, or None if it gives none (yet)."""
    from kafka.errors import KafkaError
    from kafka.protocol.metadata import MetadataRequest
    from kafka.protocol.parser import KafkaProtocol

    request = MetadataRequest[7](topics=[], allow_auto_topic_creation=False)
    protocol = KafkaProtocol(client_id="txstream-embedded")
    protocol.send_request(request)
    try:
        with socket.create_connection((host, port), timeout=_SECONDS) as connection:
            connection.sendall(protocol.send_bytes())
            while data := connection.recv(1 << 16):
                for _, answer in protocol.receive_bytes(data):
                    brokers = frozenset(int(broker.node_id) for broker in answer.brokers)
                    return ClusterView(answer.cluster_id or "", brokers)
    except (OSError, KafkaError):
        return None
    return None
