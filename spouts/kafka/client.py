"""A small synchronous Kafka client over kafka-python's connections: topics, offsets and fetches, one answer
each.

Why not `KafkaConsumer`: its `end_offsets` waits half a minute for a topic that does not exist and fails for
all partitions when one is missing; it creates topics by asking for them; it keeps what it has prefetched for
a range that is no longer wanted. Here every request is explicit, goes to one broker, and has a deadline.

Invariants:

- One thread at a time. Nothing runs between calls: the caller that waits for an answer drives the event loop.
- Every call returns within its deadline. The failure of one broker or one partition is an error of that
  broker or partition and does not affect the others.
- Asking for a topic never creates it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

import kafka.errors as kafka_errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.metadata import MetadataRequest

from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.settings.addresses import unresolved
from txstream.spouts.kafka.options import check_files
from txstream.spouts.kafka.protocol import (
    EpochEnd,
    Leader,
    OffsetQuery,
    Partition,
    PartitionError,
    TopicInfo,
    epoch_ends_request,
    epoch_of_batch,
    list_offsets_request,
    metadata_request,
    one_batch_request,
    partition_error,
    reason_of,
)

_NO_ID = UUID(int=0)
_RECEIVED_BYTES = 256 * 1024
_ERRORS = (kafka_errors.KafkaError, OSError)
_REFUSALS = (
    kafka_errors.SaslAuthenticationFailedError,
    kafka_errors.UnsupportedSaslMechanismError,
    kafka_errors.AuthorizationError,
)


class _Socket(socket.socket):
    """Receives all that is there. kafka-python asks for 4 kB at a time: large ranges take 17 % more CPU."""

    def __repr__(self) -> str:
        # Each wait for an answer makes a KeyError of it. A socket's own asks the system for both addresses.
        return f"<socket {self.fileno()}>"

    def recv(self, size: int, flags: int = 0) -> bytes:
        return super().recv(max(size, _RECEIVED_BYTES), flags)


class _Connections(KafkaConnectionManager):  # type: ignore[misc]
    async def _build_transport(self, *args: Any, **options: Any) -> Any:
        transport = await super()._build_transport(*args, **options)
        given = getattr(transport, "_sock", None)
        if type(given) is socket.socket:  # not TLS
            transport._sock = _Socket(given.family, given.type, given.proto, given.detach())
            transport._sock.setblocking(False)
        return transport


class KafkaClient:
    """Connections to one cluster. `options` are kafka-python's connection options."""

    def __init__(self, bootstrap: str, options: Mapping[str, Any], *, client_id: str) -> None:
        check_files(options)
        self.bootstrap = bootstrap
        config: dict[str, Any] = {
            "client_id": client_id,
            "reconnect_backoff_max_ms": 1000,
            "receive_message_max_bytes": 256 * 1024 * 1024,
            "slow_task_threshold_secs": 0,
            **options,
            "bootstrap_servers": [server.strip() for server in bootstrap.split(",")],
        }
        self._logs_in = str(config.get("security_protocol", "")).startswith("SASL")
        if self._logs_in:
            keep_credentials_out_of_logs()
        self._net = NetworkSelector(**config)
        try:
            self._manager = _Connections(self._net, **config)
        except (ValueError, TypeError) as error:
            self._net.close()
            raise UsageError(
                f"cannot use the Kafka address {bootstrap!r} with these client options: {error}; "
                f"an address is HOST:PORT or several separated by commas"
            ) from error
        self._failed_at: dict[int, float] = {}
        self._asked: tuple[Mapping[Partition, Leader], Sequence[OffsetQuery]] = ({}, ())
        self._questions: dict[int, list[Any]] = {}

    def connect(self, timeout_seconds: float) -> None:
        """Find the cluster. Raises ServiceUnavailableError when no broker answers within the deadline, and at
        once when a broker refuses our credentials or no broker's name can be resolved."""
        by_proxy = any(value for name, value in self._manager.config.items() if "proxy" in name)
        hosts = [broker.host for broker in self._manager.cluster.bootstrap_brokers()]
        if not by_proxy and (why := unresolved(hosts)) is not None:
            raise ServiceUnavailableError(
                f"there is no Kafka at {self.bootstrap}: {why}; check the address (--kafka, TXSTREAM_KAFKA)"
            )
        deadline = time.monotonic() + timeout_seconds
        self._manager.config["request_timeout_ms"] = timeout_seconds * 1000
        reason = ""
        try:
            answering, reason = self._knock(deadline)
            with self._search_only_at(answering):
                self._manager.bootstrap(max(1.0, (deadline - time.monotonic()) * 1000))
        except (*_ERRORS, ValueError) as error:
            if isinstance(error, _REFUSALS):
                what = f"Kafka at {self.bootstrap} refuses the connection: {reason_of(error)}"
            else:
                why = reason or reason_of(error)
                if self._logs_in and "disconnected" in why:
                    # A broker that refuses a log-in answers and hangs up at once; its answer is rarely read.
                    why += "; hanging up is how brokers refuse a user name, a password or a mechanism"
                what = f"no Kafka broker answered at {self.bootstrap} within {timeout_seconds:g} s ({why})"
            raise ServiceUnavailableError(
                f"{what}; check that Kafka runs there, that the address is right (--kafka, TXSTREAM_KAFKA) "
                "and so are the client options"
            ) from error

    @contextlib.contextmanager
    def _search_only_at(self, node_id: str | None) -> Iterator[None]:
        """Make the search for the cluster use the address that answers. Otherwise it picks one at random, and
        stays with a silent one until its time is up."""
        cluster = self._manager.cluster
        addresses = cluster._bootstrap_brokers
        if node_id is not None:
            cluster._bootstrap_brokers = {node_id: addresses[node_id]}
        try:
            yield
        finally:
            cluster._bootstrap_brokers = addresses

    def _knock(self, deadline: float) -> tuple[str | None, str]:
        """Open the first connection ourselves: the search for the cluster tries until its time is up and does
        not say why it failed. Return the first address that answers (None if none does) and why the last one
        tried before it did not. A refusal is raised."""
        reason = ""
        brokers = list(self._manager.cluster.bootstrap_brokers())
        for position, broker in enumerate(brokers):
            # Each address gets its share of what is left: a frozen broker must not use up all the time.
            now = time.monotonic()
            share = max(0.001, (deadline - now) / (len(brokers) - position))
            connection = self._manager.get_connection(
                broker.node_id, timeout_ms=share * 1000, refresh_metadata_on_err=False
            )
            opened = connection.init_future
            self.drive(partial(getattr, opened, "is_done"), now + share)
            if opened.succeeded():
                return broker.node_id, reason
            if isinstance(opened.exception, _REFUSALS):
                raise opened.exception
            reason = (
                reason_of(opened.exception) if opened.is_done else "it takes connections but says nothing"
            )
        return None, reason

    def topics(self, names: Iterable[str] | None, timeout_seconds: float) -> dict[str, TopicInfo]:
        """Describe those of the topics that exist; names=None asks for all that the user may describe. Raises
        KafkaError when no broker answers."""
        request = names if names is None else [MetadataRequest.MetadataRequestTopic(name=n) for n in names]
        deadline = time.monotonic() + timeout_seconds
        nodes = self.nodes()
        error: Exception = kafka_errors.NodeNotReadyError("no broker is known")
        nodes.sort(key=lambda node: self._failed_at.get(node, 0.0))
        for node in nodes:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            # A frozen broker must leave time for the others.
            share = remaining if node == nodes[-1] else remaining / 2
            answer = self.ask({node: [metadata_request(request)]}, share)[node]
            if not isinstance(answer, Exception):
                return self._read_topics(answer[0])
            error = answer
        remaining = deadline - time.monotonic()
        if remaining > 0:  # all known brokers may have moved: start again from the given addresses
            self._manager.bootstrap(remaining * 1000)
        raise error

    def _read_topics(self, response: Any) -> dict[str, TopicInfo]:
        self._manager.cluster.update_metadata(response)
        found = {}
        for topic in response.topics:
            error = kafka_errors.for_code(topic.error_code)
            if error in (kafka_errors.UnknownTopicOrPartitionError, kafka_errors.UnknownTopicIdError):
                continue
            if error is not kafka_errors.NoError and error is not kafka_errors.LeaderNotAvailableError:
                found[topic.name] = TopicInfo(topic.name, "", refused=error.__name__.removesuffix("Error"))
                continue
            topic_id = "" if topic.topic_id in (None, _NO_ID) else str(topic.topic_id)
            leaders = {
                partition.partition_index: Leader(
                    partition.leader_id,
                    -1 if partition.leader_epoch is None else partition.leader_epoch,
                )
                for partition in topic.partitions
            }
            found[topic.name] = TopicInfo(topic.name, topic_id, leaders)
        return found

    def nodes(self) -> list[int]:
        """The brokers whose addresses are known."""
        return [broker.node_id for broker in self._manager.cluster.brokers()]

    def knows(self, node: int) -> bool:
        """Whether this broker's address is known."""
        return self._manager.cluster.broker_metadata(node) is not None

    def pause(self, seconds: float) -> None:
        self.drive(lambda: False, time.monotonic() + seconds)

    def alive(self, node: int, timeout_seconds: float) -> Exception | None:
        """Return None if this broker answers, otherwise why not."""
        answer = self.ask({node: [metadata_request([])]}, timeout_seconds)[node]
        return answer if isinstance(answer, Exception) else None

    def offsets(
        self,
        leaders: Mapping[Partition, Leader],
        specs: Sequence[OffsetQuery],
        timeout_seconds: float,
    ) -> tuple[dict[Partition, tuple[int, ...] | PartitionError], dict[int, Exception]]:
        """Return one offset per query, or an error, for each partition; and the brokers that did not answer,
        whose partitions are left out. One round: all questions are in flight at once."""
        answers = self.ask(self._questions_for(leaders, specs), timeout_seconds)
        # Keyed by plain pairs, which equal Partitions: making a Partition costs more than reading its answer.
        offsets: dict[tuple[str, int], tuple[int, ...] | PartitionError] = {}
        unanswered: dict[int, Exception] = {}
        for node, answer in answers.items():
            if isinstance(answer, Exception):
                unanswered[node] = answer
                continue
            for response in answer:
                for topic in response.topics:
                    name = topic.name
                    for data in topic.partitions:
                        key = name, data.partition_index
                        before = offsets.get(key, ())
                        if isinstance(before, PartitionError):
                            continue
                        error = partition_error(data.error_code) if data.error_code else None
                        offsets[key] = error if error is not None else (*before, data.offset)
        found = {partition: offsets[partition] for partition in leaders if partition in offsets}
        return found, unanswered

    def _questions_for(
        self, leaders: Mapping[Partition, Leader], specs: Sequence[OffsetQuery]
    ) -> dict[int, list[Any]]:
        """Each broker's questions. Kept, as plans ask the same ones over and over."""
        if (leaders, specs) != self._asked:
            by_node: dict[int, dict[str, list[Partition]]] = defaultdict(lambda: defaultdict(list))
            for partition, leader in leaders.items():
                by_node[leader.node][partition.topic].append(partition)
            self._questions = {
                node: [list_offsets_request(spec, topics, leaders) for spec in specs]
                for node, topics in by_node.items()
            }
            self._asked = (leaders, specs)
        return self._questions

    def log_end(
        self, partition: Partition, leader: Leader, timeout_seconds: float
    ) -> int | PartitionError | Exception:
        """The end of the leader's log, including what is not readable yet. Nothing can lie beyond it."""
        answers, unanswered = self.epoch_ends({partition: (leader, (leader.epoch,))}, timeout_seconds)
        if unanswered:
            return unanswered[leader.node]
        ends = answers[partition]
        return ends if isinstance(ends, PartitionError) else ends[leader.epoch].end

    def epoch_ends(
        self,
        questions: Mapping[Partition, tuple[Leader, Sequence[int]]],
        timeout_seconds: float,
    ) -> tuple[dict[Partition, dict[int, EpochEnd] | PartitionError], dict[int, Exception]]:
        """Return where each of these epochs ends, or an error, for each partition; and the brokers that did
        not answer, whose partitions are left out. One round: all questions are in flight at once."""
        asked: dict[int, list[dict[Partition, int]]] = defaultdict(list)
        for partition, (leader, epochs) in questions.items():
            requests = asked[leader.node]
            requests.extend({} for _ in epochs[len(requests) :])
            for request, epoch in zip(requests, epochs, strict=False):
                request[partition] = epoch
        wanted = {
            node: [epoch_ends_request((p, questions[p][0], e) for p, e in one.items()) for one in requests]
            for node, requests in asked.items()
        }
        answers: dict[Partition, dict[int, EpochEnd] | PartitionError] = {}
        unanswered: dict[int, Exception] = {}
        for node, answer in self.ask(wanted, timeout_seconds).items():
            if isinstance(answer, Exception):
                unanswered[node] = answer
                continue
            for request, response in zip(asked[node], answer, strict=True):
                for topic in response.topics:
                    for data in topic.partitions:
                        partition = Partition(topic.topic, data.partition)
                        error = partition_error(data.error_code)
                        ends = answers.setdefault(partition, {})
                        if error is not None:
                            answers[partition] = error
                        elif not isinstance(ends, PartitionError):
                            ends[request[partition]] = EpochEnd(data.leader_epoch, data.end_offset)
        return answers, unanswered

    def epoch_at(
        self, partition: Partition, leader: Leader, offset: int, timeout_seconds: float
    ) -> int | Exception | None:
        """The leader epoch in which the record at this offset was written, as its batch says; None if the log
        has no record there."""
        request = one_batch_request(partition, leader, offset)
        answer = self.ask({leader.node: [request]}, timeout_seconds)[leader.node]
        if isinstance(answer, Exception):
            return answer
        data = answer[0].responses[0].partitions[0]
        if data.error_code == kafka_errors.OffsetOutOfRangeError.errno:
            return None
        error = partition_error(data.error_code)
        if error is None and not data.records:  # a broker that throttles sends nothing: that shows no gap
            error = PartitionError("it sent no records", stale=False)
        return error or epoch_of_batch(data.records, offset)

    def newest_leader_epoch(self, partition: Partition, timeout_seconds: float) -> int | None:
        """The newest leader epoch of this partition that any broker knows; None unless all of them answer."""
        asked = [MetadataRequest.MetadataRequestTopic(name=partition.topic)]
        newest = -1
        questions = {node: [metadata_request(asked)] for node in self.nodes()}
        for answer in self.ask(questions, timeout_seconds).values():
            if isinstance(answer, Exception):
                return None
            for topic in answer[0].topics:
                for known in topic.partitions:
                    if known.partition_index == partition.number:
                        newest = max(newest, known.leader_epoch)
        return newest

    def send(self, node: int, request: Any, timeout_seconds: float) -> Any:
        """Return kafka-python's future for the answer; a failed one when the node cannot be asked."""
        try:
            return self._manager.send(request, node_id=node, request_timeout_ms=timeout_seconds * 1000)
        except _ERRORS as error:
            return Failed(error)

    def flush(self) -> None:
        """Write out what was sent, without waiting for answers. kafka-python writes only while it is driven,
        and needs two turns for it."""
        for _ in range(2):
            self._net.poll(timeout_ms=0)

    def hang_up(self, node: int) -> None:
        """Close the connection and fail all that waits on it for an answer. The next question reconnects."""
        self._manager.close(node)

    def drive(self, until: Callable[[], bool], deadline: float) -> bool:
        """Let answers come in until the condition holds. False when the deadline (monotonic) comes first."""
        while not until():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return False
            self._net.poll(timeout_ms=remaining * 1000)
        return True

    def ask(
        self, requests: Mapping[int, Sequence[Any]], timeout_seconds: float
    ) -> dict[int, list[Any] | Exception]:
        """Return each broker's answers to its requests, or its first error. All brokers are asked at once.

        A connection that was closed in the meantime (brokers close idle ones) is reopened once.
        """
        deadline = time.monotonic() + timeout_seconds
        answers = self._ask_once(requests, timeout_seconds, deadline)
        again = {
            node: requests[node]
            for node, answer in answers.items()
            if isinstance(answer, kafka_errors.KafkaConnectionError)
        }
        if again and time.monotonic() < deadline:
            answers.update(self._ask_once(again, timeout_seconds, deadline))
        return answers

    def _ask_once(
        self, requests: Mapping[int, Sequence[Any]], timeout_seconds: float, deadline: float
    ) -> dict[int, list[Any] | Exception]:
        self._await_backoff(requests, deadline)
        futures = {
            node: [self.send(node, request, max(0.05, deadline - time.monotonic())) for request in wanted]
            for node, wanted in requests.items()
        }
        self.drive(lambda: all(f.is_done for fs in futures.values() for f in fs), deadline + 0.05)
        answers: dict[int, list[Any] | Exception] = {}
        for node, pending in futures.items():
            error = next((f.exception for f in pending if f.is_done and f.exception is not None), None)
            if error is None and not all(f.is_done for f in pending):
                error = kafka_errors.KafkaTimeoutError(
                    f"broker {node} did not answer within {timeout_seconds:.1f} s"
                )
            if error is None:
                self._failed_at.pop(node, None)
                answers[node] = [f.value for f in pending]
            else:
                self._failed_at[node] = time.monotonic()
                answers[node] = error
        return answers

    def _await_backoff(self, nodes: Iterable[int], deadline: float) -> None:
        """Wait until kafka-python may reconnect, at most to the deadline: before that it refuses to send."""
        pauses = [self._manager.connection_delay(node) for node in nodes]
        if any(pauses):
            self.drive(lambda: False, min(deadline, time.monotonic() + max(pauses)))

    def close(self) -> None:
        self._manager.close()
        self._net.close()


class Failed:
    """A future that has failed already, for requests that could not be sent."""

    is_done = True
    value = None

    def __init__(self, exception: Exception) -> None:
        self.exception = exception


def keep_credentials_out_of_logs() -> None:
    """kafka-python logs whole requests at DEBUG, even those that carry passwords."""
    for name in ("kafka.net", "kafka.protocol"):
        logger = logging.getLogger(name)
        if logger.isEnabledFor(logging.DEBUG):
            logger.setLevel(logging.INFO)
