"""A client for schema registries with Confluent's interface, and the header that records have with one.

Invariants:

- A registry never gives an id to another schema, so what was fetched once is kept as long as the process: a
  replay reads each record by the schema that it was written with, even if the registry is away by then.
- A 404 without the registry's own error code is another server's, such as a proxy's: the registry is away.
  What the registry itself does not have is asked for again for a while, because a replica may be behind.
- Passwords stand in no message: addresses are shown without user and password.

The header is a zero byte and the schema's id in four bytes, the highest first.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from txstream.core.errors import ServiceUnavailableError, TxstreamError, UsageError
from txstream.core.waiting import BACKOFF

if TYPE_CHECKING:
    from txstream.api.spouts import SpoutContext

HEADER_BYTES = 5
REGISTRY, REGISTRY_CA = "schema_registry", "schema_registry_ca"
_BUSY = (408, 429)
_REFUSED = (401, 403, 407)
_NO_PATH = 404
_UNFIT = (409, 422)
"""A schema that a registry does not take: the subject's earlier ones do not allow it, or it is none."""
_NOT_FOUND = (40401, 40402, 40403)
"""What a registry itself answers with 404: it has no such subject, version, or schema."""
_UNKNOWN_SECONDS = 10.0


class UnknownSchemaError(TxstreamError):
    """The registry says that it does not have a schema. A good record may have been written by it, so this
    ends the run and makes no dead letter."""


class UnresolvableError(Exception):
    """What was written by one schema cannot be read as another; the message names the field and both types.
    `row` is the first value that it is about."""

    def __init__(self, reason: str, row: int = 0) -> None:
        super().__init__(reason)
        self.row = row


@dataclass(frozen=True)
class RegisteredSchema:
    """`kind` is "AVRO", "PROTOBUF" or "JSON". `references` are the schemas that it needs, each with the name
    under which it is imported, after those that it needs itself."""

    id: int
    kind: str
    text: str
    references: tuple[tuple[str, str], ...] = ()

    @cached_property
    def fingerprint(self) -> str:
        """A short hash of what decoding depends on: the same for texts that differ in blanks only."""
        texts = [self.text, *(text for _, text in self.references)]
        content = json.dumps([self.kind, *map(_compact, texts), [name for name, _ in self.references]])
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def registry_of(
    address: str | None, context: SpoutContext, component: str, said: str = "Decode"
) -> SchemaRegistry:
    """Return this process's client of a registry: the one at `address`, by default the run's. Raises
    UsageError if there is none."""
    found = address or context.addresses.get(REGISTRY)
    if not found:
        raise UsageError(
            f"no schema registry for {component}; give --schema-registry URL, set TXSTREAM_SCHEMA_REGISTRY, "
            f"write {said}(..., schema_registry=URL), or wire_format='plain' if records have no schema ids"
        )
    return _client(
        found,
        context.addresses.get(REGISTRY_CA),
        context.connect_timeout_seconds,
        context.fetch_timeout_seconds,
    )


@lru_cache(maxsize=16)
def _client(url: str, ca_file: str | None, connect_seconds: float, read_seconds: float) -> SchemaRegistry:
    return SchemaRegistry(url, ca_file, connect_seconds, read_seconds)


class SchemaRegistry:
    """One registry. Several threads may use it."""

    def __init__(
        self,
        url: str,
        ca_file: str | None = None,
        connect_seconds: float = 10.0,
        read_seconds: float = 10.0,
        *,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`url` may have user and password, `ca_file` certificates of authorities in PEM. Raises
        UsageError."""
        try:
            import urllib3
        except ImportError as error:
            raise UsageError(
                "a schema registry needs urllib3, which is not installed; type pip install "
                "'txstream[avro]' or 'txstream[protobuf]', where the workers run too"
            ) from error
        self._errors = urllib3.exceptions
        self._base, headers = _parsed(url)
        self.shown = f"the schema registry at {self._base}"
        self._pool = urllib3.PoolManager(
            headers={"Accept": "application/vnd.schemaregistry.v1+json, application/json", **headers},
            timeout=urllib3.Timeout(connect=connect_seconds, read=read_seconds),
            retries=False,  # the batch is tried again; a redirect must not get the password
            **_trusting(ca_file),
        )
        self._clock, self._pause = clock, pause
        self._missed: set[str] = set()  # what was asked for long enough; it is asked for once from now on
        self._lock = threading.Lock()
        self._schemas: dict[tuple[int, bool], RegisteredSchema] = {}
        self._ids: dict[tuple[str, str], int] = {}

    def schema(self, schema_id: int, *, serialized: bool = False, patient: bool = True) -> RegisteredSchema:
        """Return the schema with this id; `serialized` asks for Protobuf's descriptors in base64 instead of
        the text. Raises UnknownSchemaError if the registry does not have it for ten seconds (unless
        `patient`, if it does not have it now),
        ServiceUnavailableError if no answer can be had now, and UsageError if the registry refuses."""
        key = schema_id, serialized
        with self._lock:
            known = self._schemas.get(key)
        if known is None:
            suffix = "?format=serialized" if serialized else ""
            found = self._found(f"/schemas/ids/{schema_id}{suffix}", f"schema {schema_id}", patient=patient)
            references: dict[str, str] = {}
            self._add_references(found, suffix, references)
            known = RegisteredSchema(
                schema_id, found.get("schemaType") or "AVRO", found["schema"], tuple(references.items())
            )
            with self._lock:
                self._schemas[key] = known
        return known

    def register(self, subject: str, text: str, kind: str) -> int:
        """Return the id of a schema, which the subject has from now on, if it has not had it yet. Raises
        ServiceUnavailableError if no answer can be had now, and UsageError if the registry refuses it."""
        with self._lock:
            known = self._ids.get((subject, text))
        if known is None:
            body = {"schema": text, **({} if kind == "AVRO" else {"schemaType": kind})}
            path = f"/subjects/{quote(subject, safe='')}/versions"
            found = self._get(path, f"subject {subject!r}", method="POST", json=body)
            known = int(found["id"])
            with self._lock:
                self._ids[subject, text] = known
        return known

    def name_of(self, schema_id: int) -> str:
        """Return "schema 7 (orders-value, version 3)" for a message, as far as the registry tells now."""
        try:
            found = self._get(f"/schemas/ids/{schema_id}/versions", "")
            uses = [f"subject {one['subject']!r}, version {one['version']}" for one in found]
        except (UnknownSchemaError, ServiceUnavailableError, UsageError, KeyError, TypeError):
            uses = []
        return f"schema {schema_id} ({'; '.join(uses[:3]) or 'its subject is not known'})"

    def check(self, seconds: float) -> None:
        """Raise ServiceUnavailableError if the registry does not answer within so many seconds, UsageError
        if it refuses to."""
        try:
            self._get("/schemas/types", "", timeout=seconds)
        except UnknownSchemaError:
            return  # an answer all the same

    def _add_references(self, found: Any, suffix: str, known: dict[str, str]) -> None:
        for one in found.get("references") or ():
            if one["name"] in known:
                continue
            subject, version = quote(one["subject"], safe=""), one["version"]
            what = f"version {version} of subject {one['subject']!r}"
            inner = self._found(f"/subjects/{subject}/versions/{version}{suffix}", what)
            self._add_references(inner, suffix, known)
            known[one["name"]] = inner["schema"]

    def _found(self, path: str, what: str, *, patient: bool = True) -> Any:
        patience = 0.0 if path in self._missed or not patient else _UNKNOWN_SECONDS
        end, times = self._clock() + patience, 0
        while True:
            try:
                return self._get(path, what)
            except UnknownSchemaError as error:
                times += 1
                seconds = BACKOFF.after(times)
                if self._clock() + seconds > end:
                    self._missed.add(path)
                    raise UnknownSchemaError(
                        f"{error}, which was asked for it for {_UNKNOWN_SECONDS:g} s; check that this is the "
                        f"registry of the records' producers and that the schema was not deleted"
                    ) from error
                self._pause(seconds)

    def _get(self, path: str, what: str, *, method: str = "GET", **options: Any) -> Any:
        try:
            answer = self._pool.request(method, f"{self._base}{path}", **options)
        except self._errors.HTTPError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UsageError(
                    f"the certificate of {self.shown} is not trusted: {error}; name "
                    "the file of its authority's certificates in TXSTREAM_SCHEMA_REGISTRY_CA"
                ) from error
            raise ServiceUnavailableError(
                f"{self.shown} does not answer: {type(error).__name__}: {error}"
            ) from error
        status, body = answer.status, answer.data[:300].decode("utf-8", "replace")
        if status in _REFUSED:
            raise UsageError(
                f"{self.shown} refuses to answer (HTTP {status}); give user and "
                "password in its URL, https://USER:PASSWORD@HOST, best in TXSTREAM_SCHEMA_REGISTRY"
            )
        if status >= 500 or status in _BUSY:
            raise ServiceUnavailableError(f"{self.shown} cannot answer now (HTTP {status}: {body})")
        if status in _UNFIT:
            raise UsageError(f"{self.shown} refuses the schema for {what} (HTTP {status}: {body})")
        if status == 404:
            code = _error_code(answer.data)
            if code in _NOT_FOUND or (code == _NO_PATH and not what):
                raise UnknownSchemaError(f"{what} is not in {self.shown}")
            raise ServiceUnavailableError(
                f"{self._base}{path} is answered by no schema registry now (HTTP 404: {body!r}); if that "
                f"lasts, check the address, which includes the path of the registry's interface if it has one"
            )
        try:
            if status != 200:
                raise ValueError
            return json.loads(answer.data)
        except ValueError:
            if not what:
                raise UnknownSchemaError(body) from None
            raise UsageError(
                f"{self._base}{path} is no answer of a schema registry (HTTP {status}: {body!r}); check the "
                f"address, which includes the path of the registry's interface if it has one"
            ) from None


def _compact(text: str) -> str:
    """Return JSON in one spelling, and any other text without the blanks around it."""
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError:
        return text.strip()


def _error_code(data: bytes) -> object:
    """Return the error code of a registry's answer, None if it is another server's."""
    try:
        found = json.loads(data)
    except ValueError:
        return None
    return found.get("error_code") if isinstance(found, dict) else None


def _parsed(url: str) -> tuple[str, dict[str, str]]:
    """Return the address without user and password, and the header that has them."""
    wrong = UsageError(
        "the address of the schema registry is not a URL such as http://127.0.0.1:8081 or "
        "https://USER:PASSWORD@HOST; characters such as / and @ in a password are written as %2F and %40"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise wrong from None  # its text may have the password
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise wrong
    shown = f"[{host}]" if ":" in host else host
    base = f"{parts.scheme}://{shown}{'' if port is None else f':{port}'}{parts.path.rstrip('/')}"
    if parts.username is None:
        return base, {}
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return base, {"Authorization": f"Basic {base64.b64encode(login).decode()}"}


def _trusting(ca_file: str | None) -> dict[str, Any]:
    if ca_file is None:
        return {}
    try:
        return {"ssl_context": ssl.create_default_context(cafile=str(Path(ca_file)))}
    except (OSError, ssl.SSLError) as error:
        raise UsageError(
            f"schema_registry_ca {ca_file!r} cannot be read as certificates in PEM: {error}; drivers and "
            f"executors need it in the same place"
        ) from error
