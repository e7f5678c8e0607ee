"""A fake schema registry for tests: as much of Confluent's interface as readers and producers use.

A real one, Apicurio's, is the fixture `own_registry`. The fake shows what that cannot: a login, TLS, statuses
of trouble, and which paths were asked for."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import urllib3


def register(url: str, subject: str, schema: str, kind: str = "AVRO") -> int:
    """Register a schema, as a producer does, and return its id."""
    body = {"schema": schema, "schemaType": kind}
    answer = urllib3.request("POST", f"{url}/subjects/{subject}/versions", json=body)
    assert answer.status == 200, answer.data
    return int(answer.json()["id"])


class FakeRegistry:
    """Answers on loopback from `start` to `stop`; it can start again at the same port. `requests` are the
    paths that were asked for. `status` is answered to everything while it is set, with `page` if that is set,
    as another server would. `login` is "user:password"."""

    def __init__(self, *, login: str | None = None, certificate: tuple[str, str] | None = None) -> None:
        self.requests: list[str] = []
        self.status: int | None = None
        self.page: bytes | None = None
        self.login = login
        self._certificate = certificate
        self._schemas: dict[int, dict[str, Any]] = {}
        self._subjects: dict[str, list[int]] = {}
        self._port = 0
        self._server: ThreadingHTTPServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self._certificate else ''}://127.0.0.1:{self._port}"

    def start(self) -> None:
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(lambda _: registry._get(self.path))

            def do_POST(self) -> None:
                self._answer(lambda body: registry._post(self.path, json.loads(body)))

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

            def _answer(self, answer: Callable[[bytes], tuple[int, Any]]) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                registry.requests.append(self.path)
                status, document = registry._refusal(self.headers) or answer(body)
                data = registry.page or json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

        self._server = Server(("127.0.0.1", self._port), Handler)
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*self._certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_port
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> FakeRegistry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(
        self,
        subject: str,
        schema: str,
        kind: str = "AVRO",
        *,
        references: Sequence[Mapping[str, Any]] = (),
        serialized: bytes | None = None,
    ) -> int:
        """Register a schema and return its id. `serialized` are a Protobuf file's descriptors."""
        found = {"schema": schema, "schemaType": kind, "references": list(references)}
        schema_id = next((one for one, known in self._schemas.items() if known["schema"] == schema), None)
        if schema_id is None:
            schema_id = len(self._schemas) + 1
            self._schemas[schema_id] = {**found, "serialized": serialized}
        self._subjects.setdefault(subject, []).append(schema_id)
        return schema_id

    def _refusal(self, headers: Any) -> tuple[int, Any] | None:
        if self.status is not None:
            return self.status, {"error_code": self.status, "message": "as the test wants"}
        if self.login is not None:
            sent = f"Basic {base64.b64encode(self.login.encode()).decode()}"
            if headers.get("Authorization") != sent:
                return 401, {"error_code": 401, "message": "Unauthorized"}
        return None

    def _get(self, path: str) -> tuple[int, Any]:
        parts = urlsplit(path)
        serialized = parse_qs(parts.query).get("format") == ["serialized"]
        match [unquote(part) for part in parts.path.strip("/").split("/")]:
            case ["schemas", "types"]:
                return 200, ["JSON", "PROTOBUF", "AVRO"]
            case ["schemas", "ids", number] if int(number) in self._schemas:
                return 200, self._shown(int(number), serialized)
            case ["schemas", "ids", number, "versions"] if int(number) in self._schemas:
                return 200, [
                    {"subject": subject, "version": ids.index(int(number)) + 1}
                    for subject, ids in self._subjects.items()
                    if int(number) in ids
                ]
            case ["subjects", subject, "versions", version] if subject in self._subjects:
                return 200, self._shown(self._subjects[subject][int(version) - 1], serialized)
        return 404, {"error_code": 40403, "message": "Schema not found"}

    def _shown(self, schema_id: int, serialized: bool) -> dict[str, Any]:
        known = self._schemas[schema_id]
        shown = {name: value for name, value in known.items() if name != "serialized" and value}
        if shown["schemaType"] == "AVRO":
            del shown["schemaType"]  # as Confluent's does
        if serialized and known["serialized"] is not None:
            shown["schema"] = base64.b64encode(known["serialized"]).decode()
        return shown

    def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, Any]:
        match [unquote(part) for part in path.strip("/").split("/")]:
            case ["subjects", subject, "versions"]:
                return 200, {"id": self.add(subject, body["schema"], body.get("schemaType", "AVRO"))}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}
