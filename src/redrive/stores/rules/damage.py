"""Stored values that cannot be read: a substitute for each, so that one of them stops nothing else.

A record with a substitute names the place in `damage`. It is found and shown, what its worker reports is stored, and
manual changes and retention leave it unchanged.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec

from redrive.clock import Instant
from redrive.errors import StoreDamaged, StoreFailed
from redrive.model.death import Cause, DeadReason
from redrive.model.duration import DAY
from redrive.model.gate import DAMAGED_GATE, Gate, set_gate
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Death, HistoryEntry, HistoryEvent
from redrive.model.limits import MAX_INSTANT
from redrive.model.queue import Queue, QueueSettings
from redrive.model.state_machine import Verb
from redrive.stores.rules.record import Record

UNREADABLE = (ValueError, TypeError, LookupError)
"""Errors of a decoder. Those of text and of MessagePack are ValueErrors."""
UNREADABLE_TITLE = "(damaged: it cannot be read)"
_FOR_EVER = 36_500 * DAY
_EXCEPT_REMOVAL = (Verb.DROP, Verb.PURGE)

_T = TypeVar("_T")


def read_value(decode: Callable[[Any], _T], raw: Any, substitute: _T, damaged: Callable[[], object]) -> _T:
    """Return a decoded value; if it cannot be read, call `damaged` and return the substitute."""
    try:
        return decode(raw)
    except UNREADABLE:
        damaged()
        return substitute


def substitute_entry(queue: str) -> HistoryEntry:
    """Return the entry that is shown for one that cannot be read."""
    return HistoryEntry(Instant(0), HistoryEvent.RETURNED, queue, 0, note=UNREADABLE_TITLE)


def substitute_death(queue: str, id: ItemId, fingerprint: str = "", at: int = 0) -> Death:
    """Return the death that is shown for one that cannot be read."""
    return Death(
        Instant(at), DeadReason.UNDECODABLE, queue, "", "", id, Counters(), Cause(fingerprint, UNREADABLE_TITLE)
    )


def substitute_queue(
    name: str, version: int = 0, paused: bool = False, created_at: int = 0, is_dead_queue: bool = False
) -> Queue:
    """Return the substitute for a queue whose settings, gates or breakers cannot be read."""
    settings = QueueSettings(keep_completed=_FOR_EVER, keep_dropped=_FOR_EVER)
    gates = (Gate(DAMAGED_GATE, Instant(MAX_INSTANT)),)
    return Queue(name, settings, version, paused, Instant(created_at), is_dead_queue, gates=gates)


def without_damage(queue: Queue) -> Queue:
    """Return a queue to store, whose settings were set again."""
    return msgspec.structs.replace(queue, gates=set_gate(queue.gates, DAMAGED_GATE, None))


def check_damage(store: str, item: Record, verb: Verb | None = None) -> None:
    """Refuse a change of an item of which a value cannot be read, except for its removal."""
    if item.damage is not None and verb not in _EXCEPT_REMOVAL:
        raise StoreDamaged(store, f"{item.damage} of item {item.id}")


def failure_of(store: str, error: Exception) -> StoreFailed:
    """Return the error of a store for an unexpected one."""
    problem = f"{type(error).__name__}: {error}"
    return StoreDamaged(store, problem) if isinstance(error, ValueError) else StoreFailed(store, problem)


@contextlib.contextmanager
def naming_damage(store: str) -> Iterator[None]:
    """Raise the error of a decoder in a query as `StoreDamaged`."""
    try:
        yield
    except (*UNREADABLE, AssertionError) as error:
        traceback.clear_frames(error.__traceback__)  # a frame may have a statement open
        raise StoreDamaged(store, f"{type(error).__name__}: {error}") from error
