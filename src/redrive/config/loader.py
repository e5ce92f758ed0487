"""Reading a redrive.toml: the file is parsed and checked as a whole, and all its problems are reported together."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from redrive.config.config import DEFAULT_HOST, DEFAULT_PORT, Config, ServerOptions, StoreOptions
from redrive.config.line_numbers import KeyPath, LineIndex
from redrive.config.ownership import find_exposure
from redrive.config.queue_tables import check_dead_queues, read_common_settings, read_queue
from redrive.config.table_reader import (
    Problems,
    Table,
    described,
    expand_variables,
    find_syntax_error,
    not_for_addresses,
    shown_file,
    variables_in,
)
from redrive.config.worker_tables import read_worker
from redrive.errors import InvalidConfig, Problem
from redrive.model.limits import DEFAULT_NAMESPACE, DEFAULT_URL
from redrive.model.sqlite_url import absolute_sqlite_url

MAX_FILE_BYTES = 1_048_576
_KEYS = ("url", "namespace", "name", "stores", "queue", "breakers", "capture", "worker", "server")
_FOREIGN_NAMES = {"queues": "queue", "workers": "worker", "store": "stores", "project": "namespace"}
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


class ConfigText(msgspec.Struct, frozen=True):
    """The text of a file, with its owner and its exposure to other users when it was read."""

    text: str
    owner: int | None = None
    exposure: str | None = None


def load(path: Path | str, *, needs_store: bool = True, variables: Collection[str] = ()) -> Config:
    """Load a file. Raises `InvalidConfig` with all its problems. Its owner does not matter.

    needs_store: true if the store is the one that the file names. For another store, variables in the URLs of the
    file need not be set.
    variables: those that the URLs of the file may use in addition to those called `REDRIVE_…`.
    """
    file = Path(path).absolute()
    return parse(read_source(file), file, needs_store=needs_store, variables=variables)


def load_store(path: Path | str, *, needs_store: bool = True, variables: Collection[str] = ()) -> StoreOptions:
    """Load only the store of a file, for commands that read queues: other problems of the file do not matter to them.

    needs_store, variables: as in `load`; without the store, only the namespace is needed.
    """
    file = Path(path).absolute()
    problems, document, _ = _parsed(read_source(file).text, file)
    options = _read_store(Table(problems, (), dict(document)), file.parent, needs_store, variables)
    problems.raise_any()
    return options


def line_of(file: Path, path: KeyPath) -> int:
    """Return the line of a key in a file that was read before."""
    return LineIndex(read_source(file).text).line_of(path)


def read_source(file: Path) -> ConfigText:
    """Read the current file. Raises `InvalidConfig` if it does not exist or cannot be read."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
            owner = os.fstat(opened.fileno()).st_uid
        if len(data) > MAX_FILE_BYTES:
            raise InvalidConfig(shown_file(file), (Problem(1, "", f"is larger than {MAX_FILE_BYTES:,} bytes"),))
        return ConfigText(data.decode("utf-8-sig"), owner, find_exposure(file))
    except OSError as error:
        problem = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise InvalidConfig(shown_file(file), (Problem(1, "", problem),)) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidConfig(shown_file(file), (Problem(line, "", "is not UTF-8"),)) from None


def parse(source: ConfigText | str, file: Path, *, needs_store: bool = True, variables: Collection[str] = ()) -> Config:
    """Parse the text of a file, whose path is absolute. `needs_store` and `variables` are as in `load`."""
    source = ConfigText(source) if isinstance(source, str) else source
    problems, document, lines = _parsed(source.text, file)
    config = _read(document, file, problems, lines, source, needs_store, tuple(variables))
    problems.raise_any()
    return config


def _parsed(text: str, file: Path) -> tuple[Problems, Mapping[str, Any], LineIndex]:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidConfig(shown_file(file), (_syntax(text, error),)) from None
    lines = LineIndex(text)
    return Problems(file, lines), document, lines


def _syntax(text: str, error: Exception) -> Problem:
    at = _AT_LINE.search(str(error))
    line = int(at[1]) if at else text.count("\n") + 1
    problem = _AT_LINE.sub("", str(error)) or "is nested too deeply"
    return Problem(line, "", f"is not TOML: {problem}")


def _read(
    document: Mapping[str, Any],
    file: Path,
    problems: Problems,
    lines: LineIndex,
    source: ConfigText,
    needs_store: bool,
    variables: tuple[str, ...],
) -> Config:
    top = Table(problems, (), dict(document))
    top.check_keys(_KEYS, _FOREIGN_NAMES)
    folder = str(file.parent)
    store = _read_store(top, file.parent, needs_store, variables)
    hidden = _variables(top.values.get("url"), *top.subtable("stores").values.values())
    tables = top.tables("queue")
    common = read_common_settings(top)
    read = {queue: read_queue(table, folder, hidden, common) for queue, table in tables.items()}
    queues = {queue: settings for queue, (settings, _) in read.items()}
    captures: dict[str, dict[str, Any]] = {}
    if "capture" in top.values:
        from redrive.config.capture_tables import check_captures, read_captures  # imports tasks and workers

        captures = read_captures(top.subtable("capture"))
        check_captures(tables, captures, {queue: external for queue, (_, external) in read.items()})
    check_dead_queues(tables, queues, {*store.stores, *([store.name] if store.name else [])})
    workers = {each: read_worker(table, folder, hidden) for each, table in top.tables("worker").items()}
    return Config(
        file=file,
        store=store,
        queues={**queues, **{queue: common for queue in captures if queue not in queues}},
        captures=captures,
        workers={each: worker for each, worker in workers.items() if worker is not None},
        external={queue: external for queue, (_, external) in read.items() if external is not None},
        server=_server(top.subtable("server")),
        lines=lines,
        text=source.text,
        owner=source.owner,
        exposure=source.exposure,
        needs_store=needs_store,
        variables=variables,
    )


def _read_store(top: Table, folder: Path, needs_store: bool, variables: Collection[str]) -> StoreOptions:
    stores = top.subtable("stores")
    namespace, name = (_name(top, key) for key in ("namespace", "name"))
    if stores.values and "name" not in top.values:
        top.add_problem("stores", 'needs a name beside it, by which those stores know this one: name = "main", say')
    for other in stores.values:
        stores.named(other, other)
        if other == name:
            stores.add_problem(other, "is the name of this store itself; give the other one another name")
    texts: dict[KeyPath, Any] = {("url",): top.values.get("url")}
    texts |= {("stores", other): text for other, text in stores.values.items()}
    return StoreOptions(
        url=_url(top, "url", folder, needs_store, variables) or absolute_sqlite_url(DEFAULT_URL, folder),
        namespace=namespace or DEFAULT_NAMESPACE,
        name=name,
        stores={other: _url(stores, other, folder, needs_store, variables) or "" for other in stores.values},
        written={path: text for path, text in texts.items() if isinstance(text, str) and variables_in(text)},
    )


def _name(table: Table, key: str) -> str | None:
    return table.named(key, table.values[key]) if key in table.values else None


def _variables(*texts: Any) -> tuple[str, ...]:
    """Return the names of the variables in these texts; their values are secrets."""
    return tuple(dict.fromkeys(name for text in texts if isinstance(text, str) for name in variables_in(text)))


def _url(table: Table, key: str, folder: Path, needed: bool, variables: Collection[str]) -> str | None:
    """Return the complete URL under a key, or the URL as written if it is not needed and has an unset variable.

    A problem never shows a part of the URL: it may contain a password.
    """
    value = table.values.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or "://" not in value:
        shown = described(value) if not isinstance(value, str) else "that text"
        table.add_problem(key, f"is the URL of a store, as in {DEFAULT_URL} or postgresql://host/database, not {shown}")
        return None
    url, problem = expand_variables(value, os.environ)
    problem = find_syntax_error(value) or not_for_addresses(value, variables) or problem
    if problem is not None and not needed and find_syntax_error(value) is None:
        return value
    if problem is not None:
        table.add_problem(key, problem)
        return None
    return absolute_sqlite_url(url, folder)


def _server(table: Table) -> ServerOptions:
    table.check_keys(("host", "port", "work"))
    return ServerOptions(
        table.text("host") or DEFAULT_HOST, table.count("port", DEFAULT_PORT, 0, 65_535), table.flag("work")
    )
