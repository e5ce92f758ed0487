"""Looks into SQLite from outside: every apsw connection of the process, its statements, their VM steps."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

FULL = 2


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
