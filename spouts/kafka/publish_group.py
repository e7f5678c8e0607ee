"""Tells the places of committed batches to a consumer group, for lag exporters and Kafka's own tools.

Invariants. The group is only written; what a batch reads never depends on it. Only places of committed
batches are written; when Kafka is slow, only the newest of them. A failure delays the figures alone:
it is logged once and tried again. A group with members belongs to somebody else, and is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import kafka.errors as kafka_errors
from kafka import KafkaAdminClient, TopicPartition
from kafka.structs import OffsetAndMetadata

from txstream.core.backoff import Backoff
from txstream.core.errors import UsageError
from txstream.spouts.kafka.client import keep_credentials_out_of_logs
from txstream.spouts.kafka.protocol import reason_of

log = logging.getLogger(__name__)

_ERRORS = (kafka_errors.KafkaError, OSError, ValueError)
_ASK_SECONDS = 5.0
_BACKOFF = Backoff(first_seconds=0.5, longest_seconds=30.0)


class PublishGroup:
    """Publishes to `group` from a thread of its own, which begins with the first `put`. `options` are
    kafka-python's connection options."""

    def __init__(self, bootstrap: str, options: Mapping[str, Any], group: str, *, client_id: str) -> None:
        if str(options.get("security_protocol", "")).startswith("SASL"):
            keep_credentials_out_of_logs()
        self._group = group
        self._options = {
            "client_id": client_id,
            "request_timeout_ms": int(_ASK_SECONDS * 1000),
            "bootstrap_timeout_ms": int(_ASK_SECONDS * 1000),
            **{name: value for name, value in options.items() if name in KafkaAdminClient.DEFAULT_CONFIG},
            "bootstrap_servers": [server.strip() for server in bootstrap.split(",")],
        }
        self._changed = threading.Condition()
        self._places: Mapping[str, int] | None = None
        self._is_closed = False
        self._is_told = False
        self._admin: Any = None
        self._thread = threading.Thread(target=self._main, name=f"txstream-group-{group}", daemon=True)

    def refuse_members(self) -> None:
        """Raise UsageError if the group has members. If Kafka does not say, nothing is refused yet."""
        try:
            admin = KafkaAdminClient(**self._options)
            try:
                found = admin.describe_groups([self._group]).get(self._group, {})
            finally:
                admin.close()
        except _ERRORS as error:
            log.info("consumer group %r could not be looked at: %s", self._group, reason_of(error))
            return
        members = found.get("members") or ()
        if members:
            named = ", ".join(sorted({str(one.get("client_id")) for one in members}))
            raise UsageError(
                f"publish_group={self._group!r}: this consumer group has {len(members)} members ({named}), "
                "which store their own places in it; name a group that nobody reads with"
            )

    def put(self, places: Mapping[str, int]) -> None:
        """Have these places published soon: the next offset by "topic/number". Does not block."""
        with self._changed:
            self._places = places
            self._changed.notify()
            if self._thread.ident is None and not self._is_closed:
                self._thread.start()

    def close(self) -> None:
        """Publish what was put last, if Kafka answers at once, and end."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if self._thread.ident is not None:
            self._thread.join(2 * _ASK_SECONDS)

    def _main(self) -> None:
        failures = 0
        while (places := self._next()) is not None:
            try:
                self._publish(places)
            except _ERRORS as error:
                failures += 1
                self._failed(places, error)
                with self._changed:
                    if self._is_closed:
                        break
                    self._changed.wait_for(lambda: self._is_closed, _BACKOFF.after(failures))
            else:
                failures = 0
                if self._is_told:
                    self._is_told = False
                    log.warning("consumer group %r has the committed places again", self._group)
        self._hang_up()

    def _next(self) -> Mapping[str, int] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._places is not None or self._is_closed)
            places, self._places = self._places, None
            return places

    def _publish(self, places: Mapping[str, int]) -> None:
        if self._admin is None:
            self._admin = KafkaAdminClient(**self._options)
        offsets = {}
        for name, offset in places.items():
            topic, _, number = name.rpartition("/")
            offsets[TopicPartition(topic, int(number))] = OffsetAndMetadata(offset, "txstream", -1)
        for answer in self._admin.alter_group_offsets(self._group, offsets).values():
            if answer is not kafka_errors.NoError and not isinstance(answer, kafka_errors.NoError):
                raise answer if isinstance(answer, Exception) else answer()

    def _failed(self, places: Mapping[str, int], error: Exception) -> None:
        self._hang_up()
        with self._changed:
            if self._places is None:
                self._places = places
        if not self._is_told:
            self._is_told = True
            log.warning(
                "the committed places cannot be published to consumer group %r, which delays only its "
                "figures: %s", self._group, reason_of(error),
            )  # fmt: skip

    def _hang_up(self) -> None:
        admin, self._admin = self._admin, None
        if admin is not None:
            try:
                admin.close()
            except _ERRORS as error:
                log.info("a connection to Kafka could not be closed: %s", reason_of(error))
