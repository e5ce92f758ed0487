"""Retention: what queues say becomes of completed items, dead letters and archived items with time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from itertools import islice

from redrive.clock import Instant
from redrive.model.by_hand import Standing
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId
from redrive.model.item import Status
from redrive.model.transitions import Verb
from redrive.store import RETENTION_ACTOR, STEP_LIMIT
from redrive.stores.relational import redrives, verdicts
from redrive.stores.relational.batch import Batch, QueueRow
from redrive.stores.relational.deeds import Deed
from redrive.stores.relational.particulars import read_particulars
from redrive.stores.relational.places import Place, find_all, take

_COMPLETED = "SELECT n FROM redrive_ended WHERE queue = ? AND status = 'completed' AND ended_at <= ? LIMIT ?"
_OLDEST_COMPLETED = """
    WITH RECURSIVE each(queue) AS (
        SELECT (SELECT min(queue) FROM redrive_ended)
        UNION ALL SELECT (SELECT min(queue) FROM redrive_ended WHERE queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL)
    SELECT queue, (SELECT min(ended_at) FROM redrive_ended WHERE queue = each.queue AND status = 'completed')
    FROM each WHERE queue IS NOT NULL"""
_QUEUES = """
    WITH RECURSIVE each(queue) AS (
        SELECT (SELECT min(queue) FROM redrive_letter)
        UNION ALL SELECT (SELECT min(queue) FROM redrive_letter WHERE queue > each.queue)
        FROM each WHERE each.queue IS NOT NULL)
    SELECT queue FROM each WHERE queue IS NOT NULL"""
_LETTERS = """
    SELECT n, died_at FROM redrive_letter INDEXED BY redrive_letter_queue
    WHERE queue = ? AND shelf = ? ORDER BY d"""
_ARCHIVE = Deed(Verb.ARCHIVE, RETENTION_ACTOR)
_PURGE = Deed(Verb.PURGE, RETENTION_ACTOR)


class Retention:
    """One round of it: a bounded number of items, over all queues."""

    def __init__(self, batch: Batch, limit: int) -> None:
        self._batch = batch
        self.left = limit
        self._ahead = STEP_LIMIT
        """How many letters may be looked at behind one that is too young: a redrive that was taken back, or an import,
        stands among those that died later."""

    def apply(self) -> None:
        """Archive dead letters first, so that one for which several rules have come is lost last."""
        self._remove_completed()
        shelf = self._batch.namespace_key
        for (queue,) in self._batch.execute(_QUEUES).fetchall():
            row = self._batch.by_key.get(queue)
            if row is None:
                continue
            settings = row.settings
            if settings.archive_after is not None:
                self._archive(row, self._due(row, shelf, settings.archive_after))
            if settings.keep_dead is not None:
                self._purge(row, self._due(row, shelf, settings.keep_dead))
            if settings.keep_archived is not None:
                self._purge(row, self._due(row, -shelf, settings.keep_archived))

    def _remove_completed(self) -> None:
        batch = self._batch
        for queue, oldest in batch.execute(_OLDEST_COMPLETED).fetchall():
            row = batch.by_key.get(queue)
            if row and oldest is not None and oldest <= (before := batch.now - row.settings.keep_completed):
                old = [n for (n,) in batch.execute(_COMPLETED, (row.key, before, self.left)).fetchall()]
                for place in find_all(batch, old).values():
                    self._remove(place)

    def _due(self, row: QueueRow, shelf: int, age: int) -> list[Place]:
        """Letters of a queue whose time is over. What a worker holds, and what is on its way to another store, is
        passed over, and does not stop the others."""
        due: list[Place] = []
        with contextlib.closing(self._batch.walk(_LETTERS, (row.key, shelf))) as letters:
            old = self._old(letters, self._batch.now - age)
            while some := list(islice(old, self.left - len(due))):
                places = find_all(self._batch, some)
                due += [places[n] for n in some if places[n].status not in (Status.ACTIVE, Status.MOVING)]
        read_particulars(self._batch, due)
        return due

    def _old(self, letters: Iterable[tuple[int, Instant]], before: int) -> Iterator[int]:
        """The numbers of those that died by then, up to where only younger ones are."""
        for n, died_at in letters:
            if died_at <= before:
                yield n
                continue
            self._ahead -= 1
            if self._ahead <= 0:
                return

    def _archive(self, row: QueueRow, due: list[Place]) -> None:
        name = row.queue.name
        for place in due:
            redrives.archive(self._batch, _ARCHIVE, Standing(place.id, place.status, True, queue=name), place)
        self.left -= len(due)
        self._audit(row, Verb.ARCHIVE, [place.id for place in due])

    def _purge(self, row: QueueRow, due: list[Place]) -> None:
        for place in due:
            self._remove(place)
            _PURGE.tell(self._batch, FeedKind.REMOVED, row.queue.name, place)
        self._audit(row, Verb.PURGE, [place.id for place in due])

    def _remove(self, place: Place) -> None:
        take(self._batch, place)
        verdicts.remove(self._batch, place)
        self.left -= 1

    def _audit(self, row: QueueRow, verb: Verb, ids: list[ItemId]) -> None:
        if ids:
            verdicts.audit(self._batch, RETENTION_ACTOR, verb.value, row.queue.name, ids, len(ids))
