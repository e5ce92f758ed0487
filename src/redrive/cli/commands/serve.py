"""`redrive serve`: the HTTP server of a store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from redrive import __version__
from redrive.cli.common_options import command, log_json_option, seconds_option
from redrive.cli.error_output import INTERRUPTED
from redrive.cli.store_target import StoreTarget, find_target, project_config, project_file
from redrive.config.config import ServerOptions
from redrive.errors import InvalidInput
from redrive.model.limits import MIB
from redrive.store import Durability
from redrive.telemetry import events

if TYPE_CHECKING:
    from redrive.broker.async_broker import AsyncBroker
    from redrive.config import Config
    from redrive.config.runtime import ConfigRuntime
    from redrive.server.asgi import Server

CLOSING_SECONDS = 1.0
"""Seconds that a server waits for its stores if it stops immediately."""

_USUAL = ServerOptions()
_log = events.logger("redrive.server")


@command(short_help="Serve queues over HTTP.")
@click.option(
    "--host",
    metavar="ADDRESS",
    help=f"Address to listen on, {_USUAL.host} by default. Any other needs tokens or --allow-anyone.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), metavar="PORT", help=f"{_USUAL.port} by default; 0 takes a free one."
)
@click.option(
    "--work/--no-work",
    default=None,
    help="Run the workers of redrive.toml in this process too, or do not, regardless of the file.",
)
@click.option(
    "--namespace",
    "namespaces",
    multiple=True,
    metavar="NAME",
    help="Namespace to open at the start; can be repeated. Others are opened when they are first used.",
)
@click.option(
    "--max-dead",
    type=click.IntRange(0),
    metavar="N",
    help="Report health as degraded if a namespace has more dead letters.",
)
@click.option(
    "--allow-anyone",
    is_flag=True,
    help="Listen where others can connect although there is no token: every client has all rights.",
)
@click.option(
    "--hostname",
    "hostnames",
    multiple=True,
    metavar="NAME",
    help="Without tokens: a host name that requests may use, in addition to addresses and localhost.",
)
@click.option(
    "--max-body",
    type=click.IntRange(1, 1024),
    default=32,
    show_default=True,
    metavar="MIB",
    help="Size of the largest request.",
)
@seconds_option("--max-wait", "60s", "Longest time that a long poll, such as a lease, may wait.")
@seconds_option("--shutdown-timeout", "30s", "Time for calls to finish after the first SIGTERM or Ctrl-C.")
@log_json_option
def serve(**options: Any) -> None:
    """Serve the queues of a store over HTTP, until it is stopped.

    Without options it serves the file redrive.db in the working directory, on http://127.0.0.1:7272, to programs on
    this machine. --url names another store: redrive --url postgresql://… serve. The file redrive.toml in the working
    directory or above it is applied to this store, and again when it is edited, even if the store comes from --url.

    Ctrl-C or SIGTERM: gives out no more leases, answers waiting clients, and finishes running calls. A second one stops
    the server immediately.
    """
    events.configure()
    try:
        import redrive.server.http_server  # noqa: F401
    except ImportError as error:
        raise InvalidInput(f"a server needs uvicorn and httptools: pip install 'redrive[server]' ({error})") from error
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        finished = runner.run(_serve(find_target(), options))
        if not finished:
            sys.stdout.flush()
            os._exit(INTERRUPTED)  # without waiting for threads that are inside a store


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _serve(place: StoreTarget, options: dict[str, Any]) -> bool:
    """Open the store, listen, print the address, and serve. Return whether all calls were finished at the end."""
    from redrive.server.authentication import TokenAuthenticator
    from redrive.server.http_server import HttpRunner, listen, may_bind

    if place.is_server:
        raise InvalidInput(f"{place.shown} is a server already; name a store with --url")
    config = _config(place)
    host, port = _where(config, options)
    app = _application(place, host, options)
    running: ConfigRuntime | None = None
    finished = True
    try:
        namespaces = tuple(dict.fromkeys(options["namespaces"] or (place.namespace,)))
        opened = [await app.brokers.at(namespace) for namespace in namespaces]
        has_tokens = isinstance(app.access, TokenAuthenticator) and await app.access.has_tokens()
        may_bind(host, has_tokens=has_tokens, allow_anyone=options["allow_anyone"])
        listener = listen(host, port)
        running = await _started(config, opened[0], place, options)
        durability = await opened[0].durability()
        address = _address(host, listener)
        file = None if running is None or config is None else config.file
        click.echo(_first_screen(place, namespaces, address, durability, has_tokens, file))
        _log.info(
            "server_started",
            address=address,
            store=opened[0].core.store.name,
            namespaces=namespaces,
            durability=durability.level,
            tokens=has_tokens,
        )
        stopping = None if running is None else running.request_stop
        finished = await HttpRunner(app, listener, options["shutdown_timeout"], stopping=stopping).run_until_stopped()
        return finished
    finally:
        if running is not None:
            await _stop(running, at_once=not finished)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if finished else CLOSING_SECONDS):
                await app.close()


async def _stop(running: ConfigRuntime, *, at_once: bool) -> None:
    """Let the workers of the file and their commands finish; or end them if a signal arrives during that time."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, running.stop_now)
    if at_once:
        running.stop_now()
    await asyncio.to_thread(running.stop)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)  # the rest may be ended by the default handlers


def _application(place: StoreTarget, host: str, options: dict[str, Any]) -> Server:
    from redrive.server.application import application
    from redrive.server.request_limits import Limits

    return application(
        place.url,
        limits=Limits(max_body_bytes=options["max_body"] * MIB, wait_seconds=options["max_wait"]),
        hosts=(*options["hostnames"], host),
        max_dead=options["max_dead"],
        **place.names,
    )


def _config(place: StoreTarget) -> Config | None:
    """Load the file of the project. As for `redrive work`, another way to name the store overrides only its `url`."""
    path = project_file()
    return None if path is None else project_config(path, needs_store=place.source == str(path))


def _where(config: Config | None, options: dict[str, Any]) -> tuple[str, int]:
    server = _USUAL if config is None else config.server
    return (
        server.host if options["host"] is None else options["host"],
        server.port if options["port"] is None else options["port"],
    )


async def _started(
    config: Config | None, broker: AsyncBroker, place: StoreTarget, options: dict[str, Any]
) -> ConfigRuntime | None:
    """Start the runtime of the file: its queues are created, and its workers run if that is wanted."""
    if config is None:
        if options["work"]:
            raise InvalidInput("--work runs the workers of redrive.toml, and there is none here or above; write one")
        return None
    if broker.core.store.namespace != place.namespace:
        if options["work"]:
            raise InvalidInput(
                f"--work runs the workers of {config.file}, which are for namespace '{place.namespace}'; serve that "
                f"one first: --namespace {place.namespace}"
            )
        return None
    from redrive.broker.broker import Broker
    from redrive.config.runtime import ConfigRuntime

    works = config.server.work if options["work"] is None else options["work"]
    running = ConfigRuntime(
        Broker(broker.core),
        config,
        workers=None if works else (),
        shutdown_timeout=options["shutdown_timeout"],
        metrics=works,
    )
    await asyncio.to_thread(running.start)
    return running


def _address(host: str, listener: socket.socket) -> str:
    name = f"[{host}]" if ":" in host else host or socket.gethostname()
    return f"http://{name}:{listener.getsockname()[1]}"


def _first_screen(
    place: StoreTarget,
    namespaces: tuple[str, ...],
    address: str,
    durability: Durability,
    has_tokens: bool,
    file: Path | None,
) -> str:
    who = (
        "every client with a token: Authorization: Bearer …"
        if has_tokens
        else "every client that can connect; to require tokens, create one on the store:\n"
        f"    redrive --url {place.shown} token create NAME --role admin"
    )
    which = ", ".join(namespaces)
    in_force = "" if file is None else f"\n  File: {file} is applied, and again after each edit."
    redrive = f"redrive --url {address}"
    return f"""\
redrive {__version__} serves {place.shown}, namespace {which}

  {address}
  An acknowledged call survives {durability.survives} ({durability.level} durability).
  Access: {who}{in_force}

Next, in another terminal:
{_path_to_set()}
  {redrive} queue create emails
  {redrive} queue push emails '{{"to": "ann@example.com"}}'
  {redrive} queue list

Calls: {address}/openapi.json   Health: {address}/health   Stop: Ctrl-C
"""


def _path_to_set() -> str:
    """Return a line that lets a shell find the command; empty if it already does."""
    if shutil.which("redrive") is not None:
        return ""
    return f'\n  export PATH="{Path(sys.executable).parent}:$PATH"'
