"""Reading a redrive.toml: found, parsed, and checked whole. All that is wrong with it is told at once."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from redrive.config.commands import read_worker
from redrive.config.config import DEFAULT_HOST, DEFAULT_PORT, FILE_NAME, Config, ServerOptions, StoreOptions
from redrive.config.lines import Lines
from redrive.config.problems import Problems, Table, described, shown_file
from redrive.config.queues import check_dead_queues, read_queue
from redrive.config.substitution import filled_in, mistake_in, variables_in
from redrive.errors import InvalidFile, Problem
from redrive.model.address import DEFAULT_NAMESPACE, DEFAULT_URL

FILE_VARIABLE = "REDRIVE_FILE"
"""Where the file is, instead of here or above."""
MAX_FILE_BYTES = 1_048_576
_KEYS = ("url", "namespace", "name", "stores", "queue", "worker", "server")
_ELSEWHERE = {"queues": "queue", "workers": "worker", "store": "stores", "project": "namespace"}
_SQLITE = "sqlite:///"
_AT_LINE = re.compile(r" \(at line (\d+), column \d+\)$")


def find_file() -> Path | None:
    """The file of this project: what REDRIVE_FILE names, else the nearest redrive.toml here or above."""
    named = os.environ.get(FILE_VARIABLE)
    if named:
        return Path(named).absolute()
    here = Path.cwd()
    return next((folder / FILE_NAME for folder in (here, *here.parents) if (folder / FILE_NAME).is_file()), None)


def load(path: Path | str, *, needs_store: bool = True) -> Config:
    """What a file says. Raises `InvalidFile` with all that is wrong with it.

    needs_store: whether the store is the one that the file names. Where it is another, variables in the URLs of the
    file need not be set.
    """
    file = Path(path).absolute()
    return parse(read_text(file), file, needs_store=needs_store)


def load_store(path: Path | str, *, needs_store: bool = True) -> StoreOptions:
    """Only where the store of a file is: for who looks at queues, and need not care what else is wrong with the file.

    needs_store: as of `load`; without it, the namespace is what is asked for.
    """
    file = Path(path).absolute()
    problems, document, _ = _parsed(read_text(file), file)
    options = _read_store(Table(problems, (), dict(document)), file.parent, needs_store)
    problems.raise_any()
    return options


def read_text(file: Path) -> str:
    """The text of a file. Raises `InvalidFile` where there is none."""
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise InvalidFile(shown_file(file), (Problem(1, "", f"is larger than {MAX_FILE_BYTES:,} bytes"),))
        return data.decode("utf-8-sig")
    except OSError as error:
        problem = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise InvalidFile(shown_file(file), (Problem(1, "", problem),)) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise InvalidFile(shown_file(file), (Problem(line, "", "is not UTF-8"),)) from None


def parse(text: str, file: Path, *, needs_store: bool = True) -> Config:
    """What the text of a file says, whose path is absolute. `needs_store` as of `load`."""
    problems, document, lines = _parsed(text, file)
    config = _read(document, file, problems, lines, text, needs_store)
    problems.raise_any()
    return config


def _parsed(text: str, file: Path) -> tuple[Problems, Mapping[str, Any], Lines]:
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InvalidFile(shown_file(file), (_syntax(text, error),)) from None
    lines = Lines(text)
    return Problems(file, lines), document, lines


def _syntax(text: str, error: Exception) -> Problem:
    at = _AT_LINE.search(str(error))
    line = int(at[1]) if at else text.count("\n") + 1
    problem = _AT_LINE.sub("", str(error)) or "is nested too deeply"
    return Problem(line, "", f"is not TOML: {problem}")


def _read(
    document: Mapping[str, Any], file: Path, problems: Problems, lines: Lines, text: str, needs_store: bool
) -> Config:
    top = Table(problems, (), dict(document))
    top.only(_KEYS, _ELSEWHERE)
    folder = str(file.parent)
    store = _read_store(top, file.parent, needs_store)
    hidden = _variables(top.values.get("url"), *top.under("stores").values.values())
    tables = top.tables("queue")
    read = {queue: read_queue(table, folder, hidden) for queue, table in tables.items()}
    queues = {queue: settings for queue, (settings, _) in read.items()}
    check_dead_queues(tables, queues, {*store.stores, *([store.name] if store.name else [])})
    workers = {each: read_worker(table, folder, hidden) for each, table in top.tables("worker").items()}
    return Config(
        file=file,
        store=store,
        queues=queues,
        workers={each: worker for each, worker in workers.items() if worker is not None},
        external={queue: external for queue, (_, external) in read.items() if external is not None},
        server=_server(top.under("server")),
        lines=lines,
        text=text,
        needs_store=needs_store,
    )


def _read_store(top: Table, folder: Path, needs_store: bool) -> StoreOptions:
    stores = top.under("stores")
    namespace, name = (_name(top, key) for key in ("namespace", "name"))
    if stores.values and "name" not in top.values:
        top.wrong("stores", 'needs a name beside it, by which those stores know this one: name = "main", say')
    for other in stores.values:
        stores.named(other, other)
        if other == name:
            stores.wrong(other, "is the name of this store itself; give the other one another name")
    return StoreOptions(
        url=_url(top, "url", folder, needs_store) or _from_folder(DEFAULT_URL, folder),
        namespace=namespace or DEFAULT_NAMESPACE,
        name=name,
        stores={other: _url(stores, other, folder, needs_store) or "" for other in stores.values},
    )


def _name(table: Table, key: str) -> str | None:
    return table.named(key, table.values[key]) if key in table.values else None


def _variables(*texts: Any) -> tuple[str, ...]:
    """The variables in these texts, which are secrets."""
    return tuple(dict.fromkeys(name for text in texts if isinstance(text, str) for name in variables_in(text)))


def _url(table: Table, key: str, folder: Path, needed: bool) -> str | None:
    """The URL under a key, complete, or as it is written where it is not needed and a variable of it is not set.

    Nothing of it is shown where it is wrong: it may have a password in it.
    """
    value = table.values.get(key)
    if value is None:
        return None
    if not isinstance(value, str) or "://" not in value:
        shown = described(value) if not isinstance(value, str) else "that text"
        table.wrong(key, f"is the URL of a store, as in {DEFAULT_URL} or postgresql://host/database, not {shown}")
        return None
    url, problem = filled_in(value, os.environ)
    if problem is not None and not needed and mistake_in(value) is None:
        return value
    if problem is not None:
        table.wrong(key, problem)
        return None
    return _from_folder(url, folder)


def _from_folder(url: str, folder: Path) -> str:
    """A URL whose file, where it names one, is found from anywhere."""
    path = unquote(url.removeprefix(_SQLITE))
    if not url.startswith(_SQLITE) or path.startswith("/") or not path:
        return url
    return _SQLITE + quote(str(folder / path))


def _server(table: Table) -> ServerOptions:
    table.only(("host", "port", "work"))
    return ServerOptions(
        table.text("host") or DEFAULT_HOST, table.count("port", DEFAULT_PORT, 0, 65_535), table.flag("work")
    )
