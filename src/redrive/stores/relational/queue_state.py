"""The queues that the rules work on: what a transaction changes of them is written at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping

from redrive.model.item import OPEN_STATUSES
from redrive.stores.relational.batch import COUNTED_COLUMNS, Batch
from redrive.stores.relational.queue_rows import QueueRow
from redrive.stores.relational.queues import size_of
from redrive.stores.relational.tables import Keys, Sources
from redrive.stores.rules.indexes import Index
from redrive.stores.rules.queue_state import QueueState

_NO_TOTALS = {name: 0 for name in COUNTED_COLUMNS if name.endswith("_total")}


class SqlQueue(QueueState):
    """One queue. Its counts are changes that are not written yet; the tables are its indexes."""

    def __init__(self, batch: Batch, row: QueueRow) -> None:
        # Not `super().__init__`: the tables of the database are its indexes.
        self._batch, self._row, self.value = batch, row, row.queue
        self.counts = Counter()
        vars(self).update(_NO_TOTALS)
        self.keys, self.sources = Keys(batch, row.key), Sources(batch, row.key)
        self.keys_until, self.sources_until = Index(), Index()

    @property
    def size(self) -> int:
        return size_of(self._batch, self._row) + sum(self.counts[status] for status in OPEN_STATUSES)

    def write(self) -> None:
        """Write what has changed of the queue itself. Items count when their rows are written."""
        for name in _NO_TOTALS:
            if by := getattr(self, name):
                self._batch.count_delta(self._row.key, name, by)
        if self.value.is_dead_queue and not self._row.queue.is_dead_queue:
            self._batch.mark_dead_queue(self._row)
        if self.value.gates != self._row.queue.gates:
            self._batch.set_gates(self._batch.by_key[self._row.key], self.value.gates)


class Queues(MutableMapping[str, QueueState]):
    """The queues of a namespace, opened on demand."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._open: dict[str, SqlQueue] = {}

    def __getitem__(self, name: str) -> SqlQueue:
        if name not in self._open:
            self._open[name] = SqlQueue(self._batch, self._batch.by_name[name])
        return self._open[name]

    def __setitem__(self, name: str, queue: QueueState) -> None:
        raise NotImplementedError("queues are created by statements")

    def __delitem__(self, name: str) -> None:
        raise NotImplementedError("queues are deleted by statements")

    def __contains__(self, name: object) -> bool:
        return name in self._batch.by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.by_name)

    def __len__(self) -> int:
        return len(self._batch.by_name)

    def write(self) -> None:
        """Write what has changed."""
        for queue in self._open.values():
            queue.write()
