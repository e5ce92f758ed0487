"""The store of a command: from the option, else the environment, else redrive.toml, else the file redrive.db here."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from redrive.cli.common_options import as_json, get_option, set_option
from redrive.errors import InvalidInput, QueueNotFound, RedriveError
from redrive.model.limits import DEFAULT_NAMESPACE, DEFAULT_URL
from redrive.model.text import suggest

if TYPE_CHECKING:
    from redrive.broker.async_broker import AsyncBroker
    from redrive.broker.broker import Broker
    from redrive.config import Config


class StoreTarget(msgspec.Struct, frozen=True):
    """A store or server, and the source of its URL."""

    url: str
    namespace: str
    source: str
    """`--url`, `REDRIVE_URL`, the path of the file, or `default`."""
    token: str | None = None
    name: str | None = None
    stores: Mapping[str, str] = {}

    @property
    def shown(self) -> str:
        """Its URL without passwords, for printing."""
        from redrive.model.url import redact_url

        return redact_url(self.url)

    def __repr__(self) -> str:
        return f"StoreTarget(url={self.shown!r}, namespace={self.namespace!r}, source={self.source!r})"

    @property
    def names(self) -> dict[str, Any]:
        """The arguments of `connect` about other stores."""
        return {"store_name": self.name, "stores": self.stores} if self.name else {}

    @property
    def is_server(self) -> bool:
        """True if it is a Redrive server, not a store."""
        return self.url.startswith(("http://", "https://"))

    @property
    def is_memory(self) -> bool:
        """True if it is in memory and ends with this process."""
        return self.url.startswith("memory:")

    @property
    def is_sqlite(self) -> bool:
        """True if it is a SQLite file."""
        return self.url.startswith("sqlite:")


def find_target(environment: Mapping[str, str] = os.environ, *, ask: bool = True) -> StoreTarget:
    """Return the store or server of this command. A token, or a password of the environment, may be sent there.

    Such a secret is sent only to an address given by option or variable, or confirmed by the user for the file.
    ask: whether to ask the user and to print the name of the file; a completion does neither.
    """
    named = _first((get_option("url"), "--url"), (environment.get("REDRIVE_URL"), "REDRIVE_URL"))
    namespace = get_option("namespace") or environment.get("REDRIVE_NAMESPACE")
    token = get_option("token") or environment.get("REDRIVE_TOKEN") or None
    file = project_file(announce=ask)
    if named is not None:
        return StoreTarget(named[0], namespace or _namespace_of(file), named[1], token)
    if file is None:
        return StoreTarget(DEFAULT_URL, namespace or DEFAULT_NAMESPACE, "default", token)
    from redrive.cli.commands.config import check_secrets
    from redrive.config import load_store

    store = load_store(file, variables=get_option("allow_variable") or ())
    check_secrets(file, store, environment, has_token=token is not None, ask=ask)
    return StoreTarget(store.url, namespace or store.namespace, str(file), token, store.name, store.stores)


def _first(*choices: tuple[str | None, str]) -> tuple[str, str] | None:
    return next(((value, by) for value, by in choices if value), None)


def project_file(*, announce: bool = True) -> Path | None:
    """Return the redrive.toml that was named, or the nearest one. None if there is none.

    announce: whether to print its path, once, if it is in a folder above.
    """
    from redrive.config import find_file

    if get_option("config"):
        return Path(get_option("config")).absolute()
    found = find_file()
    if found is not None and found.parent in Path.cwd().parents and announce and not _is_for_programs():
        if not get_option("announced_file"):
            from redrive.cli.output import escape_line

            click.echo(f"redrive: using {escape_line(str(found))}", err=True)
        set_option("announced_file", str(found))
    return found


def project_config(path: Path, *, needs_store: bool) -> Config:
    """Load a file, with the variables that were allowed."""
    from redrive.config import load

    return load(path, needs_store=needs_store, variables=get_option("allow_variable") or ())


def _is_for_programs() -> bool:
    """Return whether the output or the log is JSON, for a program."""
    from redrive.telemetry.events import JSON_VARIABLE

    return as_json() or os.environ.get(JSON_VARIABLE, "0") not in ("", "0")


def _namespace_of(file: Path | None) -> str:
    """Return the namespace that a file names. Its other keys are not needed, and its variables may be unset."""
    if file is None:
        return DEFAULT_NAMESPACE
    from redrive.config import load_store

    return load_store(file, needs_store=False).namespace


@contextmanager
def open_target(*, create: bool = False, namespace: str | None = None) -> Iterator[Broker]:
    """Open a broker on the store of this command.

    A missing store is created only with `create`. Without maintenance: a command ends too soon for it.
    """
    with open_place(find_target(), create=create, namespace=namespace) as broker:
        try:
            yield broker
        except QueueNotFound as error:
            with suppress(RedriveError):  # the first error is the one to report
                if meant := suggest(error.queue, [queue.name for queue in broker.list_queues()], {}):
                    error.add_note(meant)
            raise


def open_place(
    place: StoreTarget, *, create: bool = False, maintenance: bool = False, namespace: str | None = None
) -> Broker:
    """Open a broker on this store; the caller closes it."""
    from redrive.connect import connect

    return connect(place.url, maintenance=maintenance, **_options(place, create, namespace))


def finish_moves(broker: Broker) -> None:
    """Deliver the items that this command sent to another store, as far as possible now; other programs do the rest.

    A server does so automatically, and so does every program that has the store open for longer than a command.
    """
    if find_target().stores:
        broker.run_maintenance()


def open_place_async(place: StoreTarget, *, namespace: str | None = None) -> AsyncBroker:
    """Open a broker for an event loop, without maintenance."""
    from redrive.connect import connect_async

    return connect_async(place.url, maintenance=False, **_options(place, False, namespace))


def _options(place: StoreTarget, create: bool, namespace: str | None) -> dict[str, Any]:
    options = {"namespace": namespace or place.namespace}
    if place.is_server:
        return {**options, "token": place.token}
    if get_option("token"):
        raise InvalidInput(f"--token is for a server, and {place.shown} is a store; omit it")
    return {**options, **place.names, "create_if_missing": create or place.is_memory}
