"""The operations of a namespace, and which items each of them changed."""

from __future__ import annotations

from collections.abc import Iterator

from redrive.clock import Instant
from redrive.model.ids import ItemId
from redrive.model.operation import Operation
from redrive.stores.rules.record import Record


class OperationTable:
    """Operations by id, in the order in which they were started."""

    def __init__(self) -> None:
        self._operations: dict[str, Operation] = {}
        self._changed: dict[str, dict[ItemId, None]] = {}

    def get(self, id: str) -> Operation | None:
        """The operation of that id."""
        return self._operations.get(id)

    def save(self, operation: Operation) -> None:
        """Write it down as it is now."""
        self._operations[operation.id] = operation

    def newest(self) -> Iterator[Operation]:
        """All of them, newest first."""
        return reversed(self._operations.values())

    def at_work(self) -> Iterator[Operation]:
        """Those that somebody has to see to, newest first."""
        return (each for each in self.newest() if each.at_work)

    def forget(self, until: int, limit: int) -> int:
        """Remove at most so many that ended at that instant or earlier. Returns how many."""
        over = [each.id for each in self._operations.values() if each.ended and each.updated_at <= until][:limit]
        for id in over:
            del self._operations[id]
            self._changed.pop(id, None)
        return len(over)

    def next_at(self) -> Instant | None:
        """When the next step of any of them may run."""
        return min((each.next_at for each in self._operations.values() if each.is_running), default=None)

    def remember(self, id: str, item: ItemId) -> None:
        """It changed the item that had this id then."""
        self._changed.setdefault(id, {})[item] = None

    def changed(self, id: str, item: Record) -> bool:
        """Whether it changed this item, under whatever id that had then."""
        changed = self._changed.get(id, {})
        return any(each in changed for each in item.ids)
