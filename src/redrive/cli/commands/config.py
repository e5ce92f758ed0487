"""`redrive config`: check, show, apply and trust redrive.toml, and release queues from it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from redrive.broker.flows import queues
from redrive.cli import bulk_change
from redrive.cli.common_options import StoreCommand, as_json, get_option, set_option
from redrive.cli.output import escape_line, print_json, print_line, table
from redrive.cli.store_target import find_target, open_target, project_config, project_file
from redrive.config import Config, StoreOptions, find_file, load_store
from redrive.config.line_numbers import KeyPath, format_key_path
from redrive.config.loader import line_of
from redrive.config.preflight import missing_programs
from redrive.config.table_reader import shown_file, variables_in
from redrive.config.trust import confirm_file, confirm_folder, load_trust, secret_for, withdraw
from redrive.errors import Problem, UntrustedFile
from redrive.model.duration import format_duration
from redrive.model.text import pluralize
from redrive.model.url import redact_url


@click.command(cls=StoreCommand)
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listing", is_flag=True, help="Print all confirmed files and folders.")
@click.option("--remove", is_flag=True, help="Withdraw the confirmation of this file or folder.")
def trust(path: Path | None, listing: bool, remove: bool) -> None:
    """Confirm a file: its addresses get a token, and the variables in them; other users may be able to change it.

    Without PATH it is the file that every command would use. Path, owner and addresses are kept in the configuration
    folder of this user; with another owner or address, a file has to be confirmed again. With the path of a folder,
    all files in it and below are used although other users can change them, but no secret is sent to their addresses.
    """
    if listing:
        _print()
        return
    chosen = Path(get_option("config")) if path is None and get_option("config") else path or find_file()
    if chosen is None:
        raise click.UsageError("there is no redrive.toml here or above; name the file, or a folder")
    chosen = chosen.absolute()
    if remove:
        _report(chosen, "no longer confirmed" if withdraw(chosen) else "not confirmed; nothing was to be done")
    elif chosen.is_dir():
        confirm_folder(chosen)
        _report(chosen, "confirmed: files in it and below are used, also if other users can change them")
    else:
        entry = confirm_file(chosen, tuple(load_store(chosen, needs_store=False).addresses.values()))
        _report(chosen, f"confirmed for {', '.join(entry.addresses)}")


def check_secrets(
    file: Path, store: StoreOptions, environment: Mapping[str, str] = os.environ, *, has_token: bool, ask: bool
) -> None:
    """Return if no secret would be sent to an address of a file, or the user has confirmed that.

    In a terminal the user is asked, if `ask` is true. Otherwise raises `UntrustedFile`.
    """
    urls: dict[KeyPath, str] = {("url",): store.url, **{("stores", name): url for name, url in store.stores.items()}}
    allowed = get_option("allow_variable") or ()
    for key, written in store.addresses.items():
        variables = [name for name in dict.fromkeys(variables_in(written)) if name not in allowed]
        is_main = key == ("url",)
        secret = secret_for(urls[key], environment, has_token=has_token and is_main, variables=variables)
        if secret is None or load_trust().lets_send(file, written):
            continue
        if ask and bulk_change.in_a_terminal():
            click.echo(f"{escape_line(str(file))} sends {secret} to {redact_url(written)}.", err=True)
            if click.confirm("Trust this file with that address from now on?", err=True):
                confirm_file(file, tuple(store.addresses.values()))
                continue
        once = "".join(f", allow it once with --allow-variable {name}" for name in variables[:1])
        problem = (
            f"is {redact_url(written)}, and {secret} would be sent there; confirm that with redrive config trust "
            f"{shlex.quote(str(file))}{once}, or give the address with --url or REDRIVE_URL"
        )
        raise UntrustedFile(shown_file(file), (Problem(line_of(file, key), format_key_path(key), problem),))


def _report(path: Path, what: str) -> None:
    if as_json():
        print_json({"path": str(path), "outcome": what})
    else:
        print_line(f"{path} is {what}")


def _print() -> None:
    found = load_trust()
    if as_json():
        print_json(found)
        return
    rows = [(each.path, "" if each.owner is None else each.owner, " ".join(each.addresses)) for each in found.files]
    rows += [(folder, "", "files in it and below") for folder in found.folders]
    table({"path": "~", "owner": ">", "confirmed for": "~"}, rows)


@click.group()
def config() -> None:
    """The file redrive.toml: check, show, apply and trust it, and release queues from it."""


config.add_command(trust)


@config.command(cls=StoreCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path))
def check(file: Path | None) -> None:
    """Check whether the file can be used, without opening any store.

    All problems are printed with file, line and key, and the exit code is 3. A command that does not exist on this
    machine is a problem too.
    """
    found = _load(file)
    problems = missing_programs(found, found.workers)
    if problems:
        raise found.invalid(*problems)
    special = {"external": found.external, "for capture": found.captures}
    kinds = [f"{len(queues)} of them {kind}" for kind, queues in special.items() if queues]
    counts = ", ".join([pluralize(len(found.queues), "queue"), *kinds, pluralize(len(found.workers), "worker")])
    if as_json():
        numbers = {name: len(getattr(found, name)) for name in ("queues", "captures", "workers")}
        print_json({"file": str(found.file), **numbers})
    else:
        print_line(f"{shown_file(found.file)} is valid: {counts}")


@config.command(cls=StoreCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path))
def show(file: Path | None) -> None:
    """Print the contents of the file without passwords. Variables are not expanded."""
    found = _load(file, needs_store=False)
    if as_json():
        print_json(_form(found))
        return
    print_line(f"file       {found.file}")
    main, *others = map(redact_url, found.store.addresses.values())
    print_line(f"url        {main}")
    print_line(f"namespace  {found.store.namespace}")
    for name, url in zip(found.store.stores, others, strict=True):
        print_line(f"store      {name}: {url}")
    print_line()
    _print_settings("queue", {name: each for name, each in found.queues.items() if each or name not in found.captures})
    if found.captures:
        print_line()
        _print_settings("capture", found.captures)
    if found.workers:
        print_line()
        columns = {"worker": "~", "queue": "~", "concurrency": ">", "timeout": ">", "run": "~"}
        table(columns, [_worker_row(found, name) for name in found.workers], least=("timeout", "concurrency"))


@config.command(cls=StoreCommand)
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--take-over", is_flag=True, help="Replace another file that manages some of its queues.")
def apply(file: Path | None, take_over: bool) -> None:
    """Apply the file to the store, once. `redrive work` and `redrive serve` do so automatically.

    Missing queues are created. Either the whole file is applied, or nothing of it. It is refused if another file
    manages one of its queues with other settings, unless it is to take over.
    """
    from redrive.config.apply import apply as apply_file

    if file is not None:
        set_option("config", str(file))  # it names the store too
    found = _load(file, needs_store=find_target().source == str(project_file()))
    with open_target(create=True) as broker:
        applied = apply_file(broker, found, take_over=take_over)
    changed = {what: getattr(applied, what) for what in ("created", "updated", "released")}
    if as_json():
        print_json(changed)
        return
    for what, names in changed.items():
        if names:
            print_line(f"{what:<9}{', '.join(names)}")
    if applied.is_empty:
        print_line("everything is as the file says")


@config.command(cls=StoreCommand)
@click.argument("queue")
def release(queue: str) -> None:
    """Release a queue from the file that manages it, if that file no longer exists.

    A file that still has the queue manages it again as soon as it is applied.
    """
    with open_target() as broker:
        was_managed = broker.run_flow(queues.release_queue(queue))
    if as_json():
        print_json({"queue": queue, "released": was_managed})
    else:
        print_line(f"queue '{queue}' is " + ("no longer managed by a file" if was_managed else "not managed by a file"))


def _load(file: Path | None, *, needs_store: bool = True) -> Config:
    path = file or project_file()
    if path is None:
        raise click.UsageError("there is no redrive.toml here or above; name the file, or write one")
    return project_config(path, needs_store=needs_store)


def _print_settings(heading: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    rows = [(name, key, _shown(value)) for name, settings in found.items() for key, value in settings.items()]
    rows += [(name, "(nothing set)", "") for name, settings in found.items() if not settings]
    table({heading: "~", "setting": "<", "value": "~"}, rows)


def _worker_row(found: Config, name: str) -> tuple[object, ...]:
    worker = found.workers[name]
    timeout = "" if worker.run.timeout is None else format_duration(worker.run.timeout)
    return name, worker.queue, worker.concurrency, timeout, " ".join(worker.run.argv)


def _shown(value: Any) -> str:
    match value:
        case dict():
            parts = {
                key: f"{{{_shown(each)}}}" if isinstance(each, dict) else _shown(each) for key, each in value.items()
            }
            return ", ".join(f"{key} = {part}" for key, part in parts.items()) or "none"
        case list():
            return f"[{', '.join(map(_shown, value))}]"
        case bool():
            return str(value).lower()
        case _:
            return str(value)


def _form(found: Config) -> dict[str, Any]:
    main, *others = map(redact_url, found.store.addresses.values())
    return {
        "file": str(found.file),
        "url": main,
        "namespace": found.store.namespace,
        "name": found.store.name,
        "stores": dict(zip(found.store.stores, others, strict=True)),
        "queues": found.queues,
        "captures": found.captures,
        "external": {
            name: {
                "list": each.list.argv,
                "claim": each.claim and each.claim.argv,
                "poll": format_duration(each.poll),
                "key": each.key,
                "version": each.version,
            }
            for name, each in found.external.items()
        },
        "workers": {
            name: {
                "queue": each.queue,
                "run": each.run.argv,
                "concurrency": each.concurrency,
                "timeout": None if each.run.timeout is None else format_duration(each.run.timeout),
            }
            for name, each in found.workers.items()
        },
        "server": {"host": found.server.host, "port": found.server.port, "work": found.server.work},
    }
