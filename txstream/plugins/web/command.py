"""`txstream ui`: the page, served until it is interrupted."""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txstream.cli.context import Cli, print_error
from txstream.cli.options import command
from txstream.core.errors import ServiceUnavailableError, UsageError
from txstream.plugins.monitoring import exposition_of_ledgers, require_client

if TYPE_CHECKING:
    from txstream.api.topology import Topology
    from txstream.settings import Settings

DEFAULT_PORT = 8765
_CLOSING_SECONDS = 2
_TOKEN_BYTES = 24


def register(app: typer.Typer) -> None:
    command(app, "ui", several_databases=True, state_databases=True)(ui)


def ui(
    cli: Cli,
    host: Annotated[
        str,
        typer.Option("--host", metavar="HOST", help="Where to listen; elsewhere needs a token."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="0 takes a free one.", min=0, max=65535)
    ] = DEFAULT_PORT,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", metavar="FILE", help="Who opens the page must know what is in it."),
    ] = None,
    allow_operate: Annotated[
        bool,
        typer.Option(
            "--allow-operate", help="Also pause, resume, stop, retry, swap, and run batches again, dry."
        ),
    ] = False,
    no_token: Annotated[
        bool,
        typer.Option(
            "--no-token",
            help="With --allow-operate: every user of this machine may do all that, and run code as you.",
        ),
    ] = False,
) -> None:
    """Show topologies in a browser. What they do now, every attempt, what is in the state.

    It reads ledgers and ZooKeeper, so it needs no driver and runs anywhere.
    """
    try:
        import uvicorn

        from txstream.plugins.web.app import make_app
        from txstream.plugins.web.guard import is_loopback
        from txstream.plugins.web.site import Site
    except ImportError as error:
        if (error.name or "").startswith("txstream"):
            raise
        raise UsageError(
            f"the page needs packages that are not installed ({error}); type pip install 'txstream[ui]'"
        ) from error
    token = None if token_file is None else read_token(token_file)
    if token is None and not is_loopback(host):
        raise UsageError(
            f"--host {host} can be reached from other machines: give a --token-file FILE, with a secret in it"
        )
    if token is not None and no_token:
        raise UsageError("--no-token and --token-file FILE contradict each other; leave one of the two out")
    settings = cli.resolve()
    settings.require_zookeeper()
    made = None
    if token is None and allow_operate and not no_token:
        token = made = secrets.token_hex(_TOKEN_BYTES)

    def code(topology_id: str) -> Topology:
        from txstream.cli.code import find_code, is_code_known

        if not is_code_known(settings, topology_id):
            raise UsageError(
                f"the code of topology {topology_id!r} is not known here; start `txstream ui` in the folder "
                "from which it was last run"
            )
        # It would say on the terminal, at every page, which code it has found.
        return find_code(Cli(settings, quiet=True), topology_id, None, None)[0]

    app = make_app(
        Site(settings, code=code),
        host=host,
        token=token,
        allow_operate=allow_operate,
        metrics=metrics_of(settings),
        open_metrics=made is not None,
    )
    with _listening(host, port) as listening:
        url = f"http://{_shown(host)}:{listening.getsockname()[1]}/" + (f"?token={made}" if made else "")
        if cli.as_json:
            cli.print_line({"url": url})
        else:
            cli.print(url)
        if allow_operate and token is None:
            print_error(
                "txstream: warning: --no-token: every user of this machine can pause, stop and retry "
                "topologies on this page, and have it run code as you"
            )
        asks = "" if token is None else "; it asks for the token" + (" in that address" if made else "")
        cli.say(f"Ctrl-C ends it{asks}")
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_CLOSING_SECONDS,
        )
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def metrics_of(settings: Settings) -> Callable[[], tuple[bytes, str]] | None:
    """Return what answers `GET /metrics`, with totals since now, or None without the extra `metrics`."""
    try:
        require_client()
    except UsageError:
        return None
    from txstream.plugins.monitoring.of_ledgers import CONTENT_TYPE, Totals

    totals: Totals = {}
    one_at_a_time = threading.Lock()  # requests are answered in threads

    def metrics() -> tuple[bytes, str]:
        with one_at_a_time:
            return exposition_of_ledgers(settings, totals), CONTENT_TYPE

    return metrics


def read_token(file: Path) -> str:
    """Return the secret in a file. Raises UsageError if there is none, or one that could be guessed."""
    from txstream.plugins.web.guard import LEAST_TOKEN

    try:
        token = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file} cannot be read: {error}") from error
    if len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable():
        raise UsageError(
            f"--token-file {file} must hold one line of at least {LEAST_TOKEN} ASCII characters; "
            f"`openssl rand -hex 16` makes such a token"
        )
    return token


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host.strip("[]"), port), family=family)
    except OSError as error:
        kind = ServiceUnavailableError if error.errno == errno.EADDRINUSE else UsageError
        raise kind(f"cannot listen at {host} port {port}: {error.strerror or error}") from error


def _shown(host: str) -> str:
    name = host.strip("[]")
    return f"[{name}]" if ":" in name else name
