"""Who may ask the page: checked before anything else looks at a request.

Invariants.
- The name in `Host` is one of this server's own, or an address: no other site's name may lead here.
- What no server, text or id can be (a malformed `Host`, NUL, half a character) is refused before it is used.
- What changes anything comes from a page of this server (`Origin`); another site's page reads nothing.
- With a token, only the login page and the static files are answered without it, and the metrics where every
  user of the machine may read them: those of a page on loopback whose token was made for operating it. An
  address with the token gives the browser a cookie and leads to the same address without it.
- Every answer forbids the browser to load or run anything that is not from here.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
from urllib.parse import quote, urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE = "txstream_ui"
LEAST_TOKEN = 16
"""A shorter token could be guessed."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]*)(?::([0-9]{1,5}))?")
_SAFE = ("GET", "HEAD")
_OPEN = ("/login", "/static/")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}


class Guard:
    """Refuses requests that may not be answered, and adds the headers to every answer."""

    def __init__(
        self, app: ASGIApp, *, host: str, token: str | None = None, open_metrics: bool = False
    ) -> None:
        self._app = app
        self._open = (*_OPEN, "/metrics") if open_metrics else _OPEN
        self._names = {host, "localhost", socket.gethostname(), socket.getfqdn()}
        self._names = {name.lower().strip("[]") for name in self._names}
        self._any_address = not is_loopback(host)
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._refusal(Request(scope))
        await (refused or self._app)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        called = _HOST.fullmatch(host)
        if called is None:
            return _words(request, 400, "the Host header is malformed")
        if not self._is_mine(called[1]):
            return _words(request, 421, f"this server is not called {host!r}")
        query = request.query_params.multi_items()
        if not all(map(is_text, [request.scope["path"], *(text for pair in query for text in pair)])):
            return _words(request, 400, "the address has characters that no text has")
        origin = request.headers.get("origin")
        is_safe = request.method in _SAFE
        if (origin is None and not is_safe) or (origin is not None and origin.partition("://")[2] != host):
            return _words(request, 403, "this did not come from a page of this server")
        site, mode = (request.headers.get(f"sec-fetch-{name}") for name in ("site", "mode"))
        if site in ("cross-site", "same-site") and mode != "navigate":
            return _words(request, 403, "another site may not load this")
        given = request.query_params.get("token")
        if self._token is not None and given is not None and is_safe and is_same(given, self._token):
            return logged_in(request, _without_token(request), self._token)
        if self._token is None or request.url.path.startswith(self._open) or self._is_known(request):
            return None
        if request.url.path.startswith("/api/") or not is_safe or "text/html" not in _accepted(request):
            return _words(request, 401, "the token is missing or wrong: Authorization: Bearer TOKEN")
        return RedirectResponse(f"/login?next={quote(_without_token(request), safe='')}", 303)

    def _is_mine(self, name: str) -> bool:
        name = name.lower().strip("[]")
        return name in self._names or (_is_address(name) and (self._any_address or is_loopback(name)))

    def _is_known(self, request: Request) -> bool:
        assert self._token is not None
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and is_same(given.strip(), self._token):
            return True
        return is_same(request.cookies.get(cookie_name(request), ""), cookie_of(self._token))


def logged_in(request: Request, following: str, token: str) -> Response:
    """Return the answer to a browser that has given the token: a cookie, and where to go on."""
    answer = RedirectResponse(following, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(
        cookie_name(request), cookie_of(token), httponly=True, samesite="strict", secure=secure, path="/"
    )
    return answer


def cookie_name(request: Request) -> str:
    """Return the cookie's name: browsers give the cookies of all ports of a machine to each of them."""
    called = _HOST.fullmatch(request.headers.get("host", ""))
    return COOKIE if called is None or called[2] is None else f"{COOKIE}_{called[2]}"


def is_text(text: str) -> bool:
    """Whether a text can be stored and sent: no NUL, no half of a surrogate pair."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def is_same(given: str, expected: str) -> bool:
    """Compare secrets in a time that tells nothing."""
    return hmac.compare_digest(given.encode("utf-8", "surrogatepass"), expected.encode())


def cookie_of(token: str) -> str:
    """Return what a browser keeps: it proves the token, and is not the token."""
    return hmac.new(token.encode(), b"txstream ui", hashlib.sha256).hexdigest()


def is_loopback(host: str) -> bool:
    """Whether a server at this host or address is reached from this machine alone."""
    name = host.strip("[]")
    return name == "localhost" or (_is_address(name) and ipaddress.ip_address(name).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_token(request: Request) -> str:
    """Return the address that was asked for, on this server and without the token."""
    query = urlencode([pair for pair in request.query_params.multi_items() if pair[0] != "token"])
    return quote("/" + request.scope["path"].lstrip("/\\")) + (f"?{query}" if query else "")


def _accepted(request: Request) -> str:
    return request.headers.get("accept", "")


def _words(request: Request, status: int, words: str) -> Response:
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": words}, status)
    return PlainTextResponse(f"{words}\n", status)
