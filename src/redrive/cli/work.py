"""`redrive work`: a worker for the tasks of an app, or the workers of the file redrive.toml."""

from __future__ import annotations

import os
import sys
from typing import Any

import click

from redrive.cli.options import StoreCommand, given, log_json_option, seconds_option, was_given
from redrive.model.limits import MIB
from redrive.task.app import TOKEN_VARIABLE
from redrive.telemetry import events
from redrive.worker.frames import Orders
from redrive.worker.terminal import can_supervise, supervise, work_here

_FOR_APPS = (
    "queues",
    "concurrency",
    "processes",
    "reload",
    "view",
    "watchdog_timeout",
    "memory_limit",
    "max_items_per_child",
)
"""Options that only mean something for the tasks of an app."""
_FOR_FILES = {
    "namespace": "an app says its namespace itself, as in App(namespace='blue')",
    "file": "an app reads no file",
}
"""Options of every command that only mean something for the workers of a file, and why."""


@click.command(cls=StoreCommand, short_help="Run the tasks of an app, or the workers of redrive.toml.")
@click.argument("what", nargs=-1, metavar="[MODULE:APP | WORKER…]")
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
@seconds_option(
    "--shutdown-timeout",
    "30s",
    "How long what runs may take to finish after the first SIGTERM or Ctrl-C. The rest is given back.",
)
@seconds_option(
    "--watchdog-timeout", "30s", "A worker that gives no sign of life for so long is killed and started again."
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
@log_json_option
def work(what: tuple[str, ...], **options: Any) -> None:
    """Run the tasks of an app, or the workers of redrive.toml, until it is stopped.

    `redrive work jobs:app` imports the module jobs, from the working directory or from what is installed, and takes
    the App that is called app in it. `redrive work` runs all workers of the file redrive.toml, which run commands;
    `redrive work mailer` the one that is called mailer. The file is applied first, and again when it is edited.

    Ctrl-C or SIGTERM: takes no more items and finishes what runs. Once more: stops at once. Neither costs an item an
    attempt. SIGHUP starts the worker of an app anew, and reads the file again.

    The exit code is 0 after a stop or when idle, 1 if it had to be killed, 2 if an app could not begin, and 3 if
    something is wrong with the file. With --until-idle it is 7 where the token may not work on a queue, and 4 where
    there is no such queue.
    """
    if was_given("metrics_host") and options["metrics_port"] is None:
        raise click.UsageError("--metrics-host is for --metrics-port; leave it out, or give both")
    if any(":" in each for each in what):
        _work_app(what, options)
    else:
        _work_file(what, options)


def _work_file(workers: tuple[str, ...], options: dict[str, Any]) -> None:
    """Workers of the file have their own numbers, which stand there."""
    for name in _FOR_APPS:
        if was_given(name):
            option = "--queue" if name == "queues" else f"--{name.replace('_', '-')}"
            raise click.UsageError(
                f"{option} is for the tasks of an app: name one, as in redrive work jobs:app. What workers of "
                f"redrive.toml do stands in that file"
            )
    from redrive.cli.work_file import work_by_file

    events.configure()
    metrics = None if options["metrics_port"] is None else (options["metrics_host"], options["metrics_port"])
    sys.exit(
        work_by_file(
            workers or None,
            until_idle=options["until_idle"],
            shutdown_seconds=options["shutdown_timeout"],
            metrics=metrics,
        )
    )


def _work_app(what: tuple[str, ...], options: dict[str, Any]) -> None:
    """An app says itself where it runs, unless it is told a URL."""
    for name, why in _FOR_FILES.items():
        if given(name) is not None:
            raise click.UsageError(f"--{name} is for workers of redrive.toml: {why}")
    memory_limit, max_items = options["memory_limit"], options["max_items_per_child"]
    if not options["processes"] and (memory_limit or max_items):
        raise click.UsageError("--memory-limit and --max-items-per-child are for processes; give --processes too")
    events.configure()
    if token := given("token"):
        os.environ[TOKEN_VARIABLE] = token  # the worker and its processes open the store, not this one
    orders = Orders(
        app=_spec(what),
        queues=options["queues"],
        concurrency=options["concurrency"],
        processes=options["processes"],
        url=given("url"),
        until_idle=options["until_idle"],
        shutdown_timeout=options["shutdown_timeout"],
        metrics_port=options["metrics_port"],
        metrics_host=options["metrics_host"],
        memory_limit=None if memory_limit is None else memory_limit * MIB,
        max_items_per_child=max_items,
    )
    reload, view = options["reload"], options["view"]
    if can_supervise():
        sys.exit(supervise(orders, watchdog_seconds=options["watchdog_timeout"], reload=reload, view=view))
    if reload or view:
        raise click.UsageError("--reload and --view need a system that can fork, and this one cannot")
    work_here(orders)


def _spec(what: tuple[str, ...]) -> str:
    """The one app. Whether there is such an app is found out by the worker, which imports it."""
    if len(what) > 1:
        raise click.UsageError(f"name one app, or workers of the file, not {' and '.join(what)}")
    module, _, attribute = what[0].partition(":")
    if not (module and attribute):
        raise click.UsageError(f"{what[0]!r} does not name an app; write module:attribute, as in jobs:app")
    return what[0]
