"""The queues of the rules: changes of a transaction are written at its end."""

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
_READY = "SELECT count(*) FROM (SELECT 1 FROM redrive_ready WHERE queue = ? LIMIT 1000) AS first"


class SqlQueue(QueueState):
    """One queue. Its counts are pending changes; the tables are its indexes."""

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

    def count_ready(self) -> int:
        """Return the number of ready items, up to a bound: there are no more callers to wake."""
        count: int = self._batch.execute(_READY, (self._row.key,)).get
        return count

    def write(self) -> bool:
        """Write its totals; items count when their rows are written. Return whether the queue itself changed."""
        for name in _NO_TOTALS:
            if by := getattr(self, name):
                self._batch.count_delta(self._row.key, name, by)
        return self.value is not self._row.queue and self.value != self._row.queue


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
        """Create it. It is written before it is opened, since it has no key yet."""
        self._batch.write_queues([queue.value])

    def __delitem__(self, name: str) -> None:
        raise NotImplementedError("a queue is deleted by statements")

    def __contains__(self, name: object) -> bool:
        return name in self._batch.by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self._batch.by_name)

    def __len__(self) -> int:
        return len(self._batch.by_name)

    def write(self) -> None:
        """Write what has changed."""
        if changed := [queue.value for queue in self._open.values() if queue.write()]:
            self._batch.write_queues(changed)
