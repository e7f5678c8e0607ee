"""The page's addresses: what each shows or does. All of it stands behind the `Guard`.

Invariants.
- An error is a sentence with its HTTP status, on a page and in JSON. A traceback goes to the server's log.
- Without `allow_operate` nothing is asked of a driver and no user's code is run.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from txstream.cli import remedies
from txstream.core.errors import ServiceUnavailableError, TopologyError, TxstreamError, UsageError
from txstream.core.names import validate_topology_id
from txstream.inspect import UnknownTopologyError
from txstream.plugins.web import added_pages, graph_views, state_views, views
from txstream.plugins.web.comparing import FAULTS
from txstream.plugins.web.guard import Guard, is_same, is_text, logged_in
from txstream.plugins.web.last_hour import last_hour
from txstream.plugins.web.live import MOST_PAGES, Live
from txstream.plugins.web.pages import Pages, address
from txstream.plugins.web.site import Site
from txstream.plugins.web.timeline import drawn

log = logging.getLogger(__name__)

Metrics = Callable[[], tuple[bytes, str]]
"""Returns what `GET /metrics` answers, and its content type."""

_STATIC = {
    "ui.css": "text/css",
    "ui.js": "text/javascript",
    "look.css": "text/css",
    "icon.svg": "image/svg+xml",
}
_MOST_FORM_BYTES = 64 * 1024

_COMPARED = ("target", "parameters", "topic", "records", "faults")

Form = Mapping[str, list[str]]

_COLUMNS = 36
_MOST_COLUMNS = 200


def make_app(
    site: Site,
    *,
    host: str = "127.0.0.1",
    token: str | None = None,
    allow_operate: bool = False,
    metrics: Metrics | None = None,
    open_metrics: bool = False,
) -> ASGIApp:
    """Return the page as an ASGI application for a server at `host`. With `open_metrics`, whoever reaches it
    reads the metrics without the token."""
    # A timeline repeats itself: with a thousand partitions it is 200 kB, 10 kB on the way.
    app = GZipMiddleware(App(site, token, allow_operate, metrics).starlette, compresslevel=5)
    return Guard(app, host=host, token=token, open_metrics=open_metrics)


class App:
    """The addresses over one site. Functions that are not `async` run in threads, since they wait."""

    def __init__(
        self, site: Site, token: str | None, allow_operate: bool, metrics: Metrics | None = None
    ) -> None:
        self.site = site
        self.live = Live(site.mark)
        self._token = token
        self._operate = allow_operate
        self._metrics = metrics
        self._pages = Pages(allow_operate=allow_operate)
        one = "/topologies/{id}"
        shown: dict[str, Callable[[Request], Response]] = {
            "/": self._topologies,
            "/errors": self._errors,
            one: self._topology,
            f"{one}/timeline": self._timeline,
            f"{one}/batches/{{txid:int}}": self._batch,
            f"{one}/source": partial(self._plain, "source", views.source),
            f"{one}/failures": self._failures,
            f"{one}/trust": partial(self._plain, "trust", views.trust),
            f"{one}/state": partial(self._plain, "state", state_views.state),
            f"{one}/state/{{table}}": self._table,
            f"{one}/graph": self._graph,
            f"{one}/graph.svg": self._graph_svg,
            f"{one}/ask/{{kind}}": self._question,
            f"{one}/also/{{name}}": self._also,
            "/compare": self._compare,
            "/compare/ask": self._compare_question,
            "/compare/{name}": self._comparison,
        }
        answered = {
            "/api/topologies": lambda _: views.topologies(site),
            f"/api{one}": lambda request: views.topology(site, _id(request)),
            f"/api{one}/batches": lambda request: views.batches(
                site, _id(request), _number(request, "before"), _number(request, "limit")
            ),
            f"/api{one}/batches/{{txid:int}}": lambda request: views.batch(
                site, _id(request), request.path_params["txid"]
            ),
            f"/api{one}/source": lambda request: views.source(site, _id(request)),
            f"/api{one}/failures": lambda request: views.failures(
                site, _id(request), _number(request, "before")
            ),
            f"/api{one}/trust": lambda request: views.trust(site, _id(request)),
            f"/api{one}/graph": lambda request: graph_views.edges(site, _id(request)),
            f"/api{one}/state": lambda request: state_views.state(site, _id(request)),
            f"/api{one}/state/{{table}}": lambda request: state_views.table(
                site, *_table_of(request), _number(request, "txid")
            ),
            f"/api{one}/hour": lambda request: last_hour(site, _id(request)),
            "/api/compare": lambda _: views.comparisons(site),
            "/api/compare/{name}": lambda request: views.comparison(site, request.path_params["name"]),
            "/api/overview": lambda _: views.overview(site),
        }
        done = {
            "/compare": self._compare_now,
            f"{one}/fsck": self._fsck,
            f"{one}/ask/{{kind}}": self._act,
            f"{one}/also/{{name}}/{{button}}": self._press,
            f"{one}/also/{{name}}/{{button}}/yes": self._confirmed,
            f"{one}/batches/{{txid:int}}/again": self._again,
            f"{one}/state/{{table}}/why": self._why,
        }
        routes = [Route(path, self._page(endpoint)) for path, endpoint in shown.items()]
        routes += [Route(path, _json(endpoint)) for path, endpoint in answered.items()]
        routes += [Route(path, self._form(endpoint), methods=["POST"]) for path, endpoint in done.items()]
        routes += [
            Route("/live", self._events),
            Route("/login", self._login),
            Route("/login", self._logged_in, methods=["POST"]),
            Route("/static/{name}", _static),
        ]
        if metrics is not None:
            routes.append(Route("/metrics", self._exposition))
        handlers: dict[Any, Any] = {HTTPException: self._refused, Exception: self._broken}
        self.starlette = Starlette(routes=routes, exception_handlers=handlers, lifespan=self._life)

    @contextlib.asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self.live.close()
        self.site.close()

    # --- pages ------------------------------------------------------------------------------------------

    def _topologies(self, request: Request) -> Response:
        rows = views.overview(self.site)
        return self._pages.show("topologies", rows=rows, live="", data="/api/overview")

    def _topology(self, request: Request) -> Response:
        topology_id = _id(request)
        found = self.site.standing(topology_id)
        row = views.standing_row(self.site, found)
        hour = None if row["kind"] == "tracked" or found.missing else last_hour(self.site, topology_id)
        also, problem = added_pages.also_or_why_not(self.site, topology_id)
        return self._one(
            "topology", topology_id, "", row=row, found=found, hour=hour, also=also, problem=problem
        )

    def _timeline(self, request: Request) -> Response:
        topology_id, before = _id(request), _number(request, "before")
        limit = min(_number(request, "limit") or _COLUMNS, _MOST_COLUMNS)
        found, around = views.timeline(self.site, topology_id, before, limit)
        return self._one(
            "timeline",
            topology_id,
            "timeline",
            batches=found,
            drawn=drawn(
                found,
                around.pop("earlier"),
                around["failing"],
                around.pop("ended_before"),
                around.pop("waiting"),
                datetime.now(UTC),
            ),
            limit=limit,
            live=topology_id if before is None else None,
            data=address(topology_id, "batches", api=True, before=before, limit=limit),
            **around,
        )

    def _batch(self, request: Request, **more: Any) -> Response:
        topology_id, txid = _id(request), int(request.path_params["txid"])
        found, tables, missing = views.batch_with(self.site, topology_id, txid)
        return self._one(
            "batch",
            topology_id,
            "timeline",
            txid=txid,
            batch=found,
            missing=missing,
            changes=state_views.changes(self.site, topology_id, txid, tables) if "tuples" in found else [],
            data=address(topology_id, "batches", str(txid), api=True),
            live=None if "tuples" in found else topology_id,
            **({"again": None} | more),
        )

    def _plain(self, view: str, read: Callable[[Site, str], Any], request: Request) -> Response:
        topology_id = _id(request)
        return self._one(view, topology_id, view, **{view: read(self.site, topology_id)})

    def _failures(self, request: Request) -> Response:
        topology_id, before = _id(request), _number(request, "before")
        found = views.failures(self.site, topology_id, before)
        data = address(topology_id, "failures", api=True, before=before)
        live = topology_id if before is None else None
        return self._one("failures", topology_id, "failures", failures=found, data=data, live=live)

    def _table(self, request: Request, **more: Any) -> Response:
        topology_id, name, key, place = _table_of(request)
        txid = _number(request, "txid")
        found = state_views.table(self.site, topology_id, name, key, place, txid)
        data = address(topology_id, "state", name, api=True, key=key, place=place, txid=txid)
        return self._one(
            "table", topology_id, "state", table=found, data=data, live=None, **({"why": None} | more)
        )

    def _graph(self, request: Request) -> Response:
        topology_id = _id(request)
        problem, text = None, ""
        if self._operate:
            try:
                graph_views.graph(self.site, topology_id)
                text = self.site.code_of(topology_id).describe()
            except UsageError as error:
                problem = str(error)
        else:
            problem = "the drawing runs the topology's code, which needs --allow-operate"
        found = graph_views.edges(self.site, topology_id)
        return self._one("graph", topology_id, "graph", graph=found, problem=problem, text=text)

    def _graph_svg(self, request: Request) -> Response:
        self._require_operate()
        return Response(graph_views.graph(self.site, _id(request)), media_type="image/svg+xml")

    def _errors(self, request: Request) -> Response:
        return self._pages.show("errors", parts=remedies.parts())

    def _compare(self, request: Request) -> Response:
        found = views.comparisons(self.site)
        return self._pages.show("compare", found=found, faults=FAULTS, live="", data="/api/compare")

    def _comparison(self, request: Request) -> Response:
        name = str(request.path_params["name"])
        found = views.comparison(self.site, name)
        return self._pages.show("comparison", found=found, data=f"/api/compare/{name}")

    def _one(self, view: str, topology_id: str, tab: str, **values: Any) -> Response:
        """Show a view of one topology. Its JSON has the same address below /api, unless `data` says else."""
        shown = {"data": address(topology_id, *filter(None, [tab]), api=True), "live": topology_id} | values
        tracked = self.site.is_tracked(topology_id)
        return self._pages.show(view, id=topology_id, tab=tab, tracked=tracked, **shown)

    # --- what is done -----------------------------------------------------------------------------------

    def _question(self, request: Request) -> Response:
        self._require_operate()
        topology_id, kind = _id(request), _kind(request)
        self.site.standing(topology_id)
        components = request.query_params.getlist("component")
        question = views.ACTIONS[kind].format(id=topology_id)
        return self._one(
            "question", topology_id, "", kind=kind, question=question, components=components, live=None,
            data=None,
        )  # fmt: skip

    def _compare_question(self, request: Request) -> Response:
        self._require_operate()
        asked = {name: request.query_params.getlist(name) for name in _COMPARED}
        words = self.site.comparing.words_of(asked)
        return self._pages.show("compare_question", words=words, asked=asked)

    def _compare_now(self, request: Request, form: Form) -> Response:
        self._require_operate()
        self.site.comparing.start(
            self.site.comparing.words_of({name: form.get(name, []) for name in _COMPARED})
        )
        return RedirectResponse("/compare", 303)

    def _also(self, request: Request, **more: Any) -> Response:
        page = added_pages.also(self.site, _id(request), request.path_params["name"])
        given = {
            "page": page,
            "told": page.told,
            "question": None,
            "pressed": None,
            "data": None,
            "live": None,
        }
        return self._one("also", _id(request), "", **(given | more))

    def _press(self, request: Request, form: Form) -> Response:
        """Do what only looks; ask before all else."""
        name, pressed = str(request.path_params["name"]), str(request.path_params["button"])
        button = added_pages.button(self.site, _id(request), name, pressed)
        if button.asked is None:
            return self._also(request, told=button.done(_client(request)))
        self._require_operate()
        return self._also(request, pressed=pressed, question=button.asked())

    def _confirmed(self, request: Request, form: Form) -> Response:
        self._require_operate()
        name, pressed = str(request.path_params["name"]), str(request.path_params["button"])
        told = added_pages.button(self.site, _id(request), name, pressed).done(_client(request))
        return self._one("done", _id(request), "", done=" ".join(told.words), live=None, data=None)

    def _act(self, request: Request, form: Form) -> Response:
        self._require_operate()
        topology_id, kind = _id(request), _kind(request)
        done = views.act(self.site, topology_id, kind, _client(request), form.get("component", []))
        return self._one("done", topology_id, "", done=done, live=None, data=None)

    def _fsck(self, request: Request, form: Form) -> Response:
        views.check(self.site, _id(request))
        return RedirectResponse(address(_id(request), "trust"), 303)

    def _again(self, request: Request, form: Form) -> Response:
        self._require_operate()
        found = state_views.again(self.site, _id(request), int(request.path_params["txid"]))
        return self._batch(request, again=found)

    def _why(self, request: Request, form: Form) -> Response:
        self._require_operate()
        topology_id, name, key, _ = _table_of(request)
        return self._table(request, why=state_views.why(self.site, topology_id, name, key))

    def _require_operate(self) -> None:
        if not self._operate:
            raise HTTPException(403, "this page only looks; start it with --allow-operate to do this")

    # --- the rest ---------------------------------------------------------------------------------------

    async def _events(self, request: Request) -> Response:
        if self.live.open_pages >= MOST_PAGES:
            return JSONResponse({"error": f"{MOST_PAGES} pages are open; this one is not live"}, 503)
        events = self.live.events(request.query_params.get("id") or None)

        async def closing() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(events):
                async for event in events:
                    yield event

        return StreamingResponse(closing(), media_type="text/event-stream")

    def _exposition(self, request: Request) -> Response:
        assert self._metrics is not None
        content, kind = self._metrics()
        return Response(content, media_type=kind)

    def _login(self, request: Request) -> Response:
        return self._pages.show("login", next=_next(request.query_params.get("next")), wrong=False)

    async def _logged_in(self, request: Request) -> Response:
        form = await _form_of(request)
        following, given = _next(form.get("next", [""])[0]), form.get("token", [""])[0]
        if self._token is None or not is_same(given.strip(), self._token):
            return self._pages.show("login", next=following, wrong=True, status=401)
        return logged_in(request, following, self._token)

    def _page(self, show: Callable[[Request], Response]) -> Callable[[Request], Response]:
        def shown(request: Request) -> Response:
            try:
                return show(request)
            except TxstreamError as error:
                return self._wrong(request, error)

        return shown

    def _form(self, do: Callable[[Request, Form], Response]) -> Any:
        async def done(request: Request) -> Response:
            form = await _form_of(request)
            try:
                return await run_in_threadpool(do, request, form)
            except TxstreamError as error:
                return await run_in_threadpool(self._wrong, request, error)

        return done

    def _wrong(self, request: Request, error: TxstreamError) -> Response:
        topology_id = request.path_params.get("id")
        shown = {"live": topology_id or "", "tracked": topology_id and self.site.is_tracked(topology_id)}
        known = None
        if topology_id and isinstance(error, ServiceUnavailableError):
            with contextlib.suppress(TxstreamError):
                known = views.standing_row(self.site, self.site.standing(topology_id))
        return self._pages.show(
            "wrong", id=topology_id, words=str(error), known=known, remedy=remedies.of_error(error),
            data=None, status=status_of(error), **shown,
        )  # fmt: skip

    def _refused(self, request: Request, error: HTTPException) -> Response:
        # Starlette writes its own in capitals; an unexpected error names a class.
        told = error.detail if error.status_code >= 500 else error.detail.lower()
        words = error.detail if error.status_code == 403 else f"{request.url.path}: {told}"
        if request.url.path.startswith("/api/"):
            return JSONResponse({"error": words}, error.status_code)
        return self._pages.show("wrong", words=words, known=None, remedy=None, status=error.status_code)

    def _broken(self, request: Request, error: Exception) -> Response:
        log.error("%s: unexpected %s", request.url.path, type(error).__name__, exc_info=error)
        words = f"unexpected {type(error).__name__}; the output of `txstream ui` has the traceback"
        return self._refused(request, HTTPException(500, words))


def status_of(error: TxstreamError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in views.STATUS_OF if isinstance(error, kind)), 500)


def _json(read: Callable[[Request], Any]) -> Callable[[Request], Response]:
    def answered(request: Request) -> Response:
        try:
            return JSONResponse(read(request))
        except TxstreamError as error:
            return JSONResponse({"error": str(error)}, status_of(error))

    return answered


def _static(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in _STATIC:
        raise HTTPException(404, "there is no such file")
    package = "txstream.plugins.notebook" if name == "look.css" else "txstream.plugins.web"
    content = files(package).joinpath(name).read_bytes()
    headers = {"cache-control": "no-cache"}
    return Response(content, media_type=_STATIC[name], headers=headers)


async def _form_of(request: Request) -> Form:
    """Return the fields of a form as a browser sends them by default."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_FORM_BYTES:
            raise HTTPException(413, "the form is too large")
    form = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    if not all(map(is_text, (text for values in form.values() for text in values))):
        raise HTTPException(400, "the form has characters that no text has")
    return form


def _id(request: Request) -> str:
    topology_id = str(request.path_params["id"])
    try:
        return validate_topology_id(topology_id)
    except TopologyError as error:  # so there is none
        raise UnknownTopologyError(topology_id, str(error)) from error


def _client(request: Request) -> str:
    """Return who asks, for those who want to know later."""
    return f"page from {'an unknown address' if request.client is None else request.client.host}"


def _kind(request: Request) -> str:
    kind = str(request.path_params["kind"])
    if kind not in views.ACTIONS:
        raise HTTPException(404, "nothing of this name can be asked")
    return kind


def _number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18 and int(text) >= 1):
        raise UsageError(f"{name} is {text!r}; it must be a whole number of at least 1")
    return int(text)


def _table_of(request: Request) -> tuple[str, str, list[str], str | None]:
    query = request.query_params
    return _id(request), str(request.path_params["table"]), query.getlist("key"), query.get("place") or None


def _next(text: str | None) -> str:
    """Return a place on this server, whatever was asked for."""
    is_here = text is not None and text.startswith("/") and not text.startswith(("//", "/\\"))
    return text if is_here and text is not None else "/"
