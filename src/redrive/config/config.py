"""The contents of a redrive.toml after it was read: every value checked, durations in microseconds."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from redrive.config.line_numbers import KeyPath, LineIndex, format_key_path
from redrive.config.table_reader import shown_file
from redrive.errors import InvalidConfig, Problem
from redrive.model.duration import MINUTE, SECOND
from redrive.model.limits import DEFAULT_NAMESPACE
from redrive.model.url import redact_url
from redrive.worker.command_process import CommandSpec

FILE_NAME = "redrive.toml"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 7272


class ServerOptions(msgspec.Struct, frozen=True):
    """The address of `redrive serve`, and whether it runs the workers of the file too."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    work: bool = False


class StoreOptions(msgspec.Struct, frozen=True):
    """The location of the store of a file.

    URLs are complete: variables are expanded, and paths are relative to the folder of the file. Unset variables are
    left as written only if the store of the file is not needed.
    """

    url: str
    namespace: str = DEFAULT_NAMESPACE
    name: str | None = None
    """The name of this store in other stores."""
    stores: Mapping[str, str] = {}
    """Other stores by name, each with its URL."""
    written: Mapping[KeyPath, str] = {}
    """The URLs that take variables, as the file has them, by key."""

    @property
    def addresses(self) -> dict[KeyPath, str]:
        """All URLs by key, to be confirmed or shown: variables are not expanded."""
        return {("url",): self.url, **{("stores", name): url for name, url in self.stores.items()}, **self.written}

    def __repr__(self) -> str:
        shown = redact_url(self.written.get(("url",), self.url))
        return f"StoreOptions(url={shown!r}, namespace={self.namespace!r})"


class WorkerOptions(msgspec.Struct, frozen=True):
    """A worker that runs a command for each item of a queue."""

    queue: str
    run: CommandSpec
    concurrency: int = 1
    release_delay: int = 30 * SECOND
    """Microseconds until an item is eligible again after the command exited with 75."""
    keep_result: int | None = None
    """Microseconds for which the output of the command can be read as the result. None: it is not kept."""


class ExternalOptions(msgspec.Struct, frozen=True):
    """An external queue: one command lists the objects of another system, another command claims one of them."""

    list: CommandSpec
    claim: CommandSpec | None = None
    poll: int = MINUTE
    key: str = "id"
    """The key of a listed object that identifies it."""
    version: str | None = None
    """The key of a listed object whose value changes when the object is to be processed again."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a whole file."""

    file: Path
    """Its absolute path."""
    store: StoreOptions
    queues: Mapping[str, Mapping[str, Any]] = {}
    """The settings of each queue as written. The file manages only the settings that it has."""
    captures: Mapping[str, Mapping[str, Any]] = {}
    """The settings that the file has for each capture queue. Each of these queues is in `queues` too."""
    workers: Mapping[str, WorkerOptions] = {}
    external: Mapping[str, ExternalOptions] = {}
    """The external queues of the file, by name."""
    server: ServerOptions = ServerOptions()
    lines: LineIndex
    text: str = ""
    """The text that it was read from."""
    owner: int | None = None
    """The owner of the file when it was read."""
    exposure: str | None = None
    """The reason why another user could change it then. Always None unless the file was named or confirmed."""
    needs_store: bool = True
    """True if it was read for the store that it names, not for another one."""
    variables: tuple[str, ...] = ()
    """Variables that its URLs may use in addition to those called REDRIVE_…"""

    def problem(self, path: KeyPath, problem: str) -> Problem:
        """Return a problem at a key, for `InvalidConfig`."""
        return Problem(self.lines.line_of(path), format_key_path(path), problem)

    def invalid(self, *problems: Problem) -> InvalidConfig:
        """Return the error with these problems."""
        return InvalidConfig(shown_file(self.file), tuple(sorted(problems)))

    def __repr__(self) -> str:
        return (
            f"Config(file={str(self.file)!r}, store={self.store!r}, queues={list(self.queues)}, "
            f"workers={list(self.workers)})"
        )
