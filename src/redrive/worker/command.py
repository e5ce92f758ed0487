"""`redrive work module:app`: a worker in the terminal or a service."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import click

from redrive.errors import InvalidInput
from redrive.model.duration import SECOND, parse_duration
from redrive.model.limits import MIB
from redrive.telemetry import events
from redrive.worker.frames import Orders
from redrive.worker.hosted import serving_metrics, worker_of
from redrive.worker.loading import load_app


def _seconds(context: click.Context, parameter: click.Parameter, value: str) -> float:
    try:
        return parse_duration(value, "duration") / SECOND
    except InvalidInput as error:
        raise click.BadParameter(str(error)) from error


def _spec(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """Whether there is such an app is found out by the worker, which imports it."""
    module, _, attribute = value.partition(":")
    if not (module and attribute):
        raise click.BadParameter(f"{value!r} does not name an app; write module:attribute, as in jobs:app")
    return value


@click.command(short_help="Run the tasks of an app.")
@click.argument("app", callback=_spec, metavar="MODULE:APP")
@click.option(
    "--queue",
    "-q",
    "queues",
    multiple=True,
    metavar="NAME",
    help="A queue to work on; more than one may be given. Default: all that the app declares.",
)
@click.option(
    "--concurrency",
    "-c",
    type=click.IntRange(1, 10_000),
    default=8,
    show_default=True,
    metavar="N",
    help="How many functions run at once in threads, and how many coroutines.",
)
@click.option(
    "--processes",
    "-p",
    type=click.IntRange(0, 1_000),
    default=0,
    metavar="N",
    help="Run items in so many processes instead of threads: what kills its process harms no other item.",
)
@click.option("--url", metavar="URL", help="The store, instead of the one that the app names.")
@click.option(
    "--until-idle",
    is_flag=True,
    help="End when nothing can be run now. What waits for its time or its next try stays where it is.",
)
@click.option(
    "--reload",
    is_flag=True,
    help="For development: start again when a Python file below the working directory changes.",
)
@click.option("--view", is_flag=True, help="Show what runs, live, below the log.")
@click.option(
    "--shutdown-timeout",
    callback=_seconds,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="How long what runs may take to finish after the first SIGTERM or Ctrl-C. The rest is given back.",
)
@click.option(
    "--watchdog-timeout",
    callback=_seconds,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="A worker that gives no sign of life for so long is killed and started again.",
)
@click.option(
    "--memory-limit",
    type=click.IntRange(16),
    metavar="MIB",
    help="With --processes: memory that each of them can have; beyond it, a handler gets MemoryError.",
)
@click.option(
    "--max-items-per-child",
    type=click.IntRange(1),
    metavar="N",
    help="With --processes: replace each of them after so many items.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65_535),
    metavar="PORT",
    help="Show metrics for Prometheus at /metrics on this port; 0 takes a free one.",
)
@click.option("--metrics-host", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="The address to show them on. The default is seen from this machine only.")  # fmt: skip
@click.option(
    "--log-json",
    is_flag=True,
    help="Write the log as JSON, an object on each line; as with the variable REDRIVE_LOG_JSON=1.",
)
def work(
    app: str,
    queues: tuple[str, ...],
    concurrency: int,
    processes: int,
    url: str | None,
    until_idle: bool,
    reload: bool,
    view: bool,
    shutdown_timeout: float,
    watchdog_timeout: float,
    memory_limit: int | None,
    max_items_per_child: int | None,
    metrics_port: int | None,
    metrics_host: str,
    log_json: bool,
) -> None:
    """Run the tasks of an app, until it is stopped.

    `redrive work jobs:app` imports the module jobs, from the working directory or from what is installed, and takes
    the App that is called app in it.

    Ctrl-C or SIGTERM: takes no more items and finishes what runs. Once more: stops at once. Neither costs an item an
    attempt. SIGHUP starts the worker anew.

    The exit code is 0 after a stop or when idle, 1 if it had to be killed, 2 if it could not begin.
    """
    if not processes and (memory_limit or max_items_per_child):
        raise click.UsageError("--memory-limit and --max-items-per-child are for processes; give --processes too")
    if log_json:
        os.environ[events.JSON_VARIABLE] = "1"  # for the worker, and its processes
    events.configure()
    orders = Orders(
        app=app,
        queues=queues,
        concurrency=concurrency,
        processes=processes,
        url=url,
        until_idle=until_idle,
        shutdown_timeout=shutdown_timeout,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        memory_limit=None if memory_limit is None else memory_limit * MIB,
        max_items_per_child=max_items_per_child,
    )
    if not hasattr(os, "fork"):
        if reload or view:
            raise click.UsageError("--reload and --view need a system that can fork, and this one cannot")
        _work_here(orders)
        return
    sys.exit(_supervise(orders, watchdog_timeout, reload, view))


def _supervise(orders: Orders, watchdog_seconds: float, reload: bool, view: bool) -> int:
    from redrive.worker.reload import Sources
    from redrive.worker.supervisor import Supervisor

    sources = Sources(Path.cwd()) if reload else None
    if not view:
        return Supervisor(orders, watchdog_seconds=watchdog_seconds, sources=sources).run()
    from redrive.worker.view import LiveView

    with LiveView(f"redrive work {orders.app}") as live:
        return Supervisor(orders, watchdog_seconds=watchdog_seconds, sources=sources, view=live).run()


def _work_here(orders: Orders) -> None:
    """Without a supervisor, in this process."""
    with load_app(orders.app, orders.url) as app:
        worker = worker_of(app, orders, None)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: worker.stop())
        with serving_metrics(app, orders):
            worker.run(until_idle=orders.until_idle)
