"""Which of kafka-python's options a user may set, and which would break what a source promises.

kafka-python ignores what it does not understand: with a misspelt security_protocol it connects in plain text.
Options that it would ignore are refused here.
"""

from __future__ import annotations

import difflib
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from txstream.core.errors import TopologyError, UsageError
from txstream.spouts.kafka.arguments import one_of

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
    "auto_offset_reset": "lost data must not be passed over silently; use start= and on_data_loss=",
    "bootstrap_servers": "use bootstrap=, or the run's Kafka address",
    "check_crcs": "checksums are always checked; leave it out",
    "enable_auto_commit": _POSITIONS,
    "group_id": _POSITIONS,
    "group_instance_id": _POSITIONS,
    "isolation_level": "use isolation_level= of KafkaSource",
    "key_deserializer": "use key_format=",
    "max_poll_records": "use max_records_per_partition= of KafkaSource",
    "request_timeout_ms": "connecting and fetching have the run's deadlines, connect_timeout_seconds and "
    "fetch_timeout_seconds",
    "ssl_context": "it cannot be sent to executors; use ssl_cafile, ssl_certfile, ssl_keyfile and "
    "ssl_password",
    "value_deserializer": "use value_format=",
}


_SASL = ("SASL_PLAINTEXT", "SASL_SSL")
_TLS = ("SSL", "SASL_SSL")
_LOGIN = ("sasl_plain_username", "sasl_plain_password")
MECHANISMS: Mapping[str, tuple[str, ...]] = {
    "AWS_MSK_IAM": (),
    "GSSAPI": (),
    "OAUTHBEARER": ("sasl_oauth_token_provider",),
    "PLAIN": _LOGIN,
    "SCRAM-SHA-256": _LOGIN,
    "SCRAM-SHA-512": _LOGIN,
}
"""Each with the options that it needs."""
DNS_LOOKUPS = ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only")


def check_client_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as given. Raises TopologyError for an option that txstream owns, that is unknown, or
    that kafka-python would ignore. Messages never show a password."""
    for name in options:
        if name in OWNED:
            raise TopologyError(f"client cannot set {name!r}: {OWNED[name]}")
        if name not in PASSED_THROUGH:
            close = difflib.get_close_matches(str(name), PASSED_THROUGH, 1)
            hint = (
                f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(PASSED_THROUGH))}"
            )
            raise TopologyError(f"client has no option {name!r}; {hint}")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name.endswith(("_ms", "_bytes")) and (not isinstance(value, int) or value < 1):
            raise TopologyError(f"client: {name} is {value!r}; it must be a number of 1 or more")
    one_of("client: client_dns_lookup", given.get("client_dns_lookup", DNS_LOOKUPS[0]), *DNS_LOOKUPS)
    _check_security(given, options.get("security_protocol", "PLAINTEXT"))
    return dict(options)


def check_files(options: Mapping[str, Any]) -> None:
    """Raise UsageError for a file that cannot be read here; kafka-python's error would not name it."""
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_crlfile"):
        path = options.get(name)
        if path is None:
            continue
        try:
            with Path(path).open("rb"):
                continue
        except OSError as error:
            raise UsageError(
                f"client: {name} {str(path)!r} cannot be read on {socket.gethostname()}: "
                f"{str(error.strerror).lower()}; drivers and executors need it in the same place"
            ) from error


def _check_security(given: Mapping[str, Any], protocol: Any) -> None:
    one_of("client: security_protocol", protocol, "PLAINTEXT", *dict.fromkeys((*_TLS, *_SASL)))
    for prefix, protocols in (("sasl_", _SASL), ("ssl_", _TLS)):
        unused = sorted(name for name in given if name.startswith(prefix))
        if unused and protocol not in protocols:
            raise TopologyError(
                f"client: {', '.join(unused)} would not be used with security_protocol {protocol!r}; "
                f"set it to {' or '.join(map(repr, protocols))}, or leave them out"
            )
    unused = [name for name in ("ssl_keyfile", "ssl_password") if name in given]
    if unused and "ssl_certfile" not in given:
        raise TopologyError(
            f"client: {', '.join(unused)} would not be used without ssl_certfile, the certificate of "
            f"the client; add it, or leave them out"
        )
    if protocol in _SASL:
        mechanism = one_of("client: sasl_mechanism", given.get("sasl_mechanism"), *MECHANISMS)
        missing = [name for name in MECHANISMS[mechanism] if name not in given]
        if missing:
            raise TopologyError(f"client: sasl_mechanism {mechanism!r} needs {' and '.join(missing)}")
