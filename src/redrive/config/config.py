"""What a redrive.toml says, once it was read: every value checked, durations in microseconds."""

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
    """Where `redrive serve` listens, and whether it runs the workers of the file too."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    work: bool = False


class StoreOptions(msgspec.Struct, frozen=True):
    """Where the store of a file is.

    URLs are complete: variables are filled in, and files are found from the folder of the file. Only where the store of
    the file is not needed are variables that are not set left as they are written.
    """

    url: str
    namespace: str = DEFAULT_NAMESPACE
    name: str | None = None
    """What other stores call this one."""
    stores: Mapping[str, str] = {}
    """Other stores by name, each with its URL."""

    def __repr__(self) -> str:
        return f"StoreOptions(url={redact_url(self.url)!r}, namespace={self.namespace!r})"


class WorkerOptions(msgspec.Struct, frozen=True):
    """A worker that runs a command for each item of a queue."""

    queue: str
    run: CommandSpec
    concurrency: int = 1
    release_delay: int = 30 * SECOND
    """How long an item waits that the command gave back with exit code 75."""
    keep_result: int | None = None
    """How long what the command printed can be read as the result."""


class ExternalOptions(msgspec.Struct, frozen=True):
    """A queue whose items come from somewhere else: a command lists them, another one takes one of them."""

    list: CommandSpec
    claim: CommandSpec | None = None
    poll: int = MINUTE
    key: str = "id"
    """The key of a listed object that tells it from all others."""
    version: str | None = None
    """The key of a listed object that changes when the object is to be worked on again."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A whole file."""

    file: Path
    """Its absolute path."""
    store: StoreOptions
    queues: Mapping[str, Mapping[str, Any]] = {}
    """The settings of each queue, as they are written: those that are not there are not managed by the file."""
    captures: Mapping[str, Mapping[str, Any]] = {}
    """The settings that the file has for each capture queue. Each is among `queues` too."""
    workers: Mapping[str, WorkerOptions] = {}
    external: Mapping[str, ExternalOptions] = {}
    """Queues of the file that are external, by name."""
    server: ServerOptions = ServerOptions()
    lines: LineIndex
    text: str = ""
    """What it was read from."""
    owner: int | None = None
    """The user that it belonged to when it was read."""
    exposure: str | None = None
    """What let another user change it then: None, unless it was named, or confirmed."""
    needs_store: bool = True
    """Whether it was read for the store that it names, or is for another."""
    variables: tuple[str, ...] = ()
    """Variables that its URLs may take, beside those called REDRIVE_…"""

    def problem(self, path: KeyPath, problem: str) -> Problem:
        """Something that is wrong at a key, for `InvalidConfig`."""
        return Problem(self.lines.line_of(path), format_key_path(path), problem)

    def invalid(self, *problems: Problem) -> InvalidConfig:
        """The error with these problems."""
        return InvalidConfig(shown_file(self.file), tuple(sorted(problems)))

    def __repr__(self) -> str:
        return (
            f"Config(file={str(self.file)!r}, store={self.store!r}, queues={list(self.queues)}, "
            f"workers={list(self.workers)})"
        )
