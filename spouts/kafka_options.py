"""Which of kafka-python's options a user may set, and which would break what a source promises."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from txstream.api.errors import TopologyError

PASSED_THROUGH = frozenset(
    {
        "api_version",
        "client_dns_lookup",
        "client_id",
        "connections_max_idle_ms",
        "fetch_max_bytes",
        "max_partition_fetch_bytes",
        "proxy_url",
        "receive_message_max_bytes",
        "reconnect_backoff_max_ms",
        "reconnect_backoff_ms",
        "request_timeout_ms",
        "sasl_kerberos_domain_name",
        "sasl_kerberos_name",
        "sasl_kerberos_service_name",
        "sasl_mechanism",
        "sasl_oauth_token_provider",
        "sasl_plain_password",
        "sasl_plain_username",
        "security_protocol",
        "socket_options",
        "ssl_cafile",
        "ssl_certfile",
        "ssl_check_hostname",
        "ssl_crlfile",
        "ssl_keyfile",
        "ssl_password",
    }
)

_POSITIONS = "txstream keeps the positions itself, with the results; leave it out"
OWNED: Mapping[str, str] = {
    "auto_commit_interval_ms": _POSITIONS,
    "auto_offset_reset": "lost data must not be passed over silently; use starting_offsets= and "
    "on_data_loss=",
    "bootstrap_servers": "use bootstrap=, or the run's Kafka address",
    "check_crcs": "checksums are always checked; leave it out",
    "enable_auto_commit": _POSITIONS,
    "group_id": _POSITIONS,
    "group_instance_id": _POSITIONS,
    "isolation_level": "use isolation_level= of KafkaSource",
    "key_deserializer": "use key_format=",
    "max_poll_records": "use max_records_per_partition= of KafkaSource",
    "ssl_context": "it cannot be sent to executors; use ssl_cafile, ssl_certfile, ssl_keyfile and "
    "ssl_password",
    "value_deserializer": "use value_format=",
}


def check_client_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as given. Raises TopologyError for one that txstream owns or that nobody knows; messages
    never show a value."""
    for name in options:
        if name in OWNED:
            raise TopologyError(f"client_options cannot set {name!r}: {OWNED[name]}")
        if name not in PASSED_THROUGH:
            close = difflib.get_close_matches(str(name), PASSED_THROUGH, 1)
            hint = (
                f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(PASSED_THROUGH))}"
            )
            raise TopologyError(f"client_options has no option {name!r}; {hint}")
    return dict(options)
