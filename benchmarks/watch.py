"""Looks into SQLite from outside: every apsw connection of the process, its statements, their VM steps."""

import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FULL = 2
SETTLED_SECONDS = 0.3
"""After that long a worker has opened what it works with."""
PATIENCE = 5_000


@dataclass(slots=True)
class Statements:
    """What ran since the last `clear`: texts, VM steps, and rows changed."""

    texts: list[str] = field(default_factory=list)
    vm_steps: int = 0
    rows: int = 0
    _changes: dict[int, int] = field(default_factory=dict)  # rows changed so far, by connection

    def clear(self) -> None:
        self.texts.clear()
        self.vm_steps = self.rows = 0

    def _ran(self, event: dict[str, Any]) -> None:
        self.texts.append(event["sql"])
        self.vm_steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        connection, changes = id(event["connection"]), event["total_changes"]
        self.rows += changes - self._changes.get(connection, 0)
        self._changes[connection] = changes


@contextmanager
def statements() -> Iterator[Statements]:
    """Traces the connections that are opened inside the block. Tracing costs time: never take a time in here."""
    import apsw

    seen = Statements()

    def hook(connection: Any) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, seen._ran, id=seen)

    apsw.connection_hooks.append(hook)
    try:
        yield seen
    finally:
        apsw.connection_hooks.remove(hook)


@contextmanager
def connections() -> Iterator["weakref.WeakSet[Any]"]:
    """The connections that are opened inside the block, to read their settings back."""
    import apsw

    opened: weakref.WeakSet[Any] = weakref.WeakSet()
    apsw.connection_hooks.append(opened.add)
    try:
        yield opened
    finally:
        apsw.connection_hooks.remove(opened.add)


def require_full_sync(opened: "weakref.WeakSet[Any]") -> int:
    """PRAGMA synchronous as read back on every open connection: the rule that the peers are held to."""
    import apsw

    values = set()
    for connection in list(opened):
        try:
            values.add(connection.pragma("synchronous"))
        except apsw.ConnectionClosedError:
            continue
    if values != {FULL}:
        raise RuntimeError(f"measured with synchronous={values}, not FULL")
    return FULL


def note_sync(folder: Path, prefix: str) -> None:
    """From now on, writes down `synchronous` as read back on the connections of this process, once it has some."""
    import apsw

    opened: weakref.WeakSet[Any] = weakref.WeakSet()

    def read_back() -> None:
        time.sleep(SETTLED_SECONDS)
        values = {value for connection in list(opened) if (value := _patiently(connection)) is not None}
        (folder / f"{prefix}{os.getpid()}").write_text(",".join(sorted(map(str, values))))

    def hook(connection: Any) -> None:
        if not opened:
            threading.Thread(target=read_back, daemon=True).start()
        opened.add(connection)

    apsw.connection_hooks.append(hook)


def _patiently(connection: Any) -> Any:
    """The pragma of a connection that another thread uses all the time; None if it was closed."""
    import apsw

    for _ in range(PATIENCE):
        try:
            return connection.pragma("synchronous")
        except apsw.ThreadingViolationError:
            time.sleep(0.0007)
        except apsw.ConnectionClosedError:
            return None
    return "never to be had"
