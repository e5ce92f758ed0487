"""Import of an app or another program by `module:attribute`, with an error that names the problem; and detection of
changed source files (`--reload`)."""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import pkgutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from redrive.errors import InvalidInput
from redrive.model.text import suggest
from redrive.task.app import App
from redrive.telemetry import events
from redrive.worker.program import WorkerProgram


def load_app(spec: str, url: str | None = None) -> App:
    """Import the module and return the app in it, as `load_program` does."""
    found = load_program(spec, url)
    if not isinstance(found, App):
        raise InvalidInput(f"{spec} is {type(found).__name__}, not an App")
    return found


def load_program(spec: str, url: str | None = None) -> App | WorkerProgram:
    """Import the module and return the app or program in it. Modules in the working directory count.

    url: the store of an app, instead of the one that it names. Ignored for a program, which has its store already.

    Raises InvalidInput if the module or the attribute does not exist, or is not an app or program. Other exceptions of
    the module propagate, with a traceback that starts in the module. Makes stdout line-buffered, so that output is in
    the log immediately, even if the process dies right afterwards.
    """
    name, colon, attribute = spec.partition(":")
    if not (name and colon and attribute):
        raise InvalidInput(f"{spec!r} does not name an app; write module:attribute, as in jobs:app")
    if name.endswith(".py") or "/" in name:
        dotted = name.removesuffix(".py").strip("./").replace("/", ".")
        raise InvalidInput(f"{name} is a file; name the module, as in {dotted}:{attribute}")
    if name == "__main__":
        raise InvalidInput(
            f"{spec} is another program in each process; put the app into a separate module, as in jobs:{attribute}"
        )
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        with events.defer_to_app_logging():
            module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            error.__traceback__ = _beyond_import(error.__traceback__)
            raise  # a module that this one imports is missing
        raise InvalidInput(_no_module(name, error.name)) from None
    except Exception as error:
        error.__traceback__ = _beyond_import(error.__traceback__)
        raise
    found: object = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidInput(_no_attribute(name, attribute, vars(module)))
        found = getattr(found, part)
    if not isinstance(found, App | WorkerProgram):
        raise InvalidInput(
            f"{spec} is {type(found).__name__}, not an App, a LoopGroup or a DeadLetterQueue"
            f"{_programs(vars(module))}; loops run in a group, as in LoopGroup([loop])"
        )
    if isinstance(found, App) and url is not None:
        found._url = url  # before anything has opened it
    return found


def _no_module(name: str, missing: str) -> str:
    part = "" if missing == name else f" ({missing} is missing)"
    alike = suggest(name, [found.name for found in pkgutil.iter_modules([os.getcwd()])], {})
    return f"there is no module {name}{part}{alike}; searched {os.getcwd()} and the rest of sys.path"


def _no_attribute(module: str, attribute: str, names: dict[str, object]) -> str:
    alike = suggest(attribute, [name for name in names if not name.startswith("_")], {})
    return f"module {module} has no {attribute}{_programs(names) or alike}"


def _programs(names: dict[str, object]) -> str:
    found = [
        f"{type(value).__name__} {name}" for name, value in names.items() if isinstance(value, App | WorkerProgram)
    ]
    return f"; it has {', '.join(sorted(found))}" if found else ""


def _beyond_import(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of the import machinery, which do not help to find the error."""
    while trace is not None and (
        trace.tb_frame.f_globals.get("__name__") in (__name__, importlib.__name__, contextlib.__name__)
        or trace.tb_frame.f_code.co_filename.startswith("<frozen importlib")
    ):
        trace = trace.tb_next
    return trace


_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
MAX_FILES = 20_000
"""Files that are checked at most: a folder with more is not that of a program."""


class SourceWatcher:
    """The Python files below a folder, except hidden ones and those of installed packages."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = dict(self._look())

    def changed(self) -> Path | None:
        """Return one file that was changed, added or removed since the last call, or None."""
        now = dict(self._look())
        before, self._seen = self._seen, now
        different = now.items() ^ before.items()
        return Path(min(path for path, _ in different)) if different else None

    def _look(self) -> Iterator[tuple[str, int]]:
        found = 0
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in _PASSED_OVER]
            for name in files:
                if not name.endswith(".py"):
                    continue
                path = os.path.join(folder, name)
                try:
                    yield path, os.stat(path).st_mtime_ns
                except OSError:  # removed since it was listed
                    continue
                found += 1
                if found == MAX_FILES:
                    return
