"""`redrive config`: is the file right, what does it say, and who manages which queue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from redrive.broker import managed
from redrive.cli.connection import chosen, opened, project_config, project_file
from redrive.cli.options import StoreCommand, as_json, give
from redrive.cli.printing import print_json, say, table
from redrive.cli.trust import trust
from redrive.config import Config
from redrive.config.checking import unfit_programs
from redrive.config.problems import shown_file
from redrive.model.duration import format_duration
from redrive.model.shown import several
from redrive.model.url import redact_url


@click.group()
def config() -> None:
    """The file redrive.toml: is it right, what does it say, which queues does it manage."""


config.add_command(trust)


@config.command(cls=StoreCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """See whether the file can be used, without a look at any store.

    All that is wrong is printed, with file, line and key, and the exit code is 3. Commands that are not there on this
    machine are wrong too.
    """
    found = _load(file)
    problems = unfit_programs(found, found.workers)
    if problems:
        raise found.invalid(*problems)
    external = f", {len(found.external)} of them external" if found.external else ""
    counts = f"{several(len(found.queues), 'queue')}{external}, {several(len(found.workers), 'worker')}"
    if as_json():
        print_json({"file": str(found.file), "queues": len(found.queues), "workers": len(found.workers)})
    else:
        say(f"{shown_file(found.file)} is right: {counts}")


@config.command(cls=StoreCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path))
def show(file: Path | None) -> None:
    """Print what the file says, with variables filled in where they are set, and passwords left out."""
    found = _load(file, needs_store=False)
    if as_json():
        print_json(_form(found))
        return
    say(f"file       {found.file}")
    say(f"url        {redact_url(found.store.url)}")
    say(f"namespace  {found.store.namespace}")
    for name, url in found.store.stores.items():
        say(f"store      {name}: {redact_url(url)}")
    say()
    rows = [(name, key, _shown(value)) for name, settings in found.queues.items() for key, value in settings.items()]
    rows += [(name, "(nothing set)", "") for name, settings in found.queues.items() if not settings]
    table({"queue": "~", "setting": "<", "value": "~"}, rows)
    if found.workers:
        say()
        columns = {"worker": "~", "queue": "~", "concurrency": ">", "timeout": ">", "run": "~"}
        table(columns, [_worker_row(found, name) for name in found.workers], least=("timeout", "concurrency"))


@config.command(cls=StoreCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path))
def apply(file: Path | None) -> None:
    """Set in the store what the file says, once. `redrive work` and `redrive serve` do so by themselves.

    Queues that are missing are created. Either all of the file is applied or nothing.
    """
    from redrive.config.applying import apply as apply_file

    if file is not None:
        give("file", str(file))  # it names the store too
    found = _load(file, needs_store=chosen().said_by == str(project_file()))
    with opened(create=True) as broker:
        applied = apply_file(broker, found)
    if as_json():
        print_json(applied)
        return
    for what in ("created", "updated", "released"):
        if names := getattr(applied, what):
            say(f"{what:<9}{', '.join(names)}")
    if applied.is_nothing:
        say("everything is as the file says")


@config.command(cls=StoreCommand)
@click.argument("queue")
def release(queue: str) -> None:
    """Let a queue be managed by no file any more: for a file that is gone for good.

    A file that still has the queue manages it again as soon as it is applied.
    """
    with opened() as broker:
        was_managed = broker._run(managed.release(queue))
    if as_json():
        print_json({"queue": queue, "released": was_managed})
    else:
        say(f"queue '{queue}' is managed by no file" + (" any more" if was_managed else "; nothing was to be done"))


def _load(file: Path | None, *, needs_store: bool = True) -> Config:
    path = file or project_file()
    if path is None:
        raise click.UsageError("there is no redrive.toml here or above; name the file, or write one")
    return project_config(path, needs_store=needs_store)


def _worker_row(found: Config, name: str) -> tuple[object, ...]:
    worker = found.workers[name]
    timeout = "" if worker.run.timeout is None else format_duration(worker.run.timeout)
    return name, worker.queue, worker.concurrency, timeout, " ".join(worker.run.words)


def _shown(value: Any) -> str:
    match value:
        case dict():
            return ", ".join(f"{key} = {_shown(each)}" for key, each in value.items())
        case list():
            return f"[{', '.join(map(_shown, value))}]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _form(found: Config) -> dict[str, Any]:
    return {
        "file": str(found.file),
        "url": redact_url(found.store.url),
        "namespace": found.store.namespace,
        "name": found.store.name,
        "stores": {name: redact_url(url) for name, url in found.store.stores.items()},
        "queues": found.queues,
        "external": {
            name: {
                "list": each.list.words,
                "take": each.take and each.take.words,
                "poll": format_duration(each.poll),
                "key": each.key,
                "version": each.version,
            }
            for name, each in found.external.items()
        },
        "workers": {
            name: {
                "queue": each.queue,
                "run": each.run.words,
                "concurrency": each.concurrency,
                "timeout": None if each.run.timeout is None else format_duration(each.run.timeout),
            }
            for name, each in found.workers.items()
        },
        "server": {"host": found.server.host, "port": found.server.port, "work": found.server.work},
    }
