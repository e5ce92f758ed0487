# Generated from broker/async_api/inspection.py by tools/blocking_api.py; edit that file.
"""Inspection, as methods of `Broker`: items, groups, the feed, the audit. Secrets are redacted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Unpack

from redrive.broker.api.base import BrokerBase
from redrive.broker.flows import deliveries, export_import, inspection, moves, registrations
from redrive.broker.flows.inspection import FeedCursor
from redrive.broker.flows.moves import PendingMove
from redrive.contract.queries import AuditEntry, FeedPage, Page
from redrive.model.declaration import lists_options
from redrive.model.duration import DurationInput
from redrive.model.feed import FeedEntry
from redrive.model.filter import Filter
from redrive.model.group import Group
from redrive.model.item import Item
from redrive.model.options import Conditions
from redrive.model.worker_info import WorkerInfo


class InspectionMethods(BrokerBase):
    """Read-only methods: items, groups, the feed, the audit, moves and workers."""

    def get(self, id: str, *, redacted: bool = True) -> Item:
        """Return an item with its history and deaths. An id from before a move still finds it.

        What looks like a secret is redacted; `redacted=False` returns the item unredacted.
        """
        return self.run_flow_in_thread(deliveries.get(self.core, id, redacted))

    def get_many(self, ids: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Return up to 1,000 items with their histories, in the order of `ids`; None if no such item exists."""
        return self.run_flow_in_thread(deliveries.get_many(self.core, ids, redacted))

    def find_by_key(self, queue: str, keys: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Find items by up to 1,000 idempotency keys: those that a put to the queue under these keys would duplicate.

        In the order of the keys, also if they moved to another queue; None if a put would make a new item, or the item
        was deleted.
        """
        return self.run_flow_in_thread(deliveries.find_by_key(self.core, queue, keys, redacted))

    @lists_options(Conditions)
    def find(
        self,
        where: Filter | None = None,
        *,
        order: str = "newest",
        limit: int = 50,
        cursor: str | None = None,
        redacted: bool = True,
        **conditions: Unpack[Conditions],
    ) -> Page:
        """Find a page of items by a `Filter`, or by its fields as conditions, as in `find(queue="jobs", since="1h")`.

        Dead letters, unless a status is named; `status="any"` means every item that is not archived. `since` and
        `until` are datetimes, or an age: "2h". With the cursor of a page it continues after the last item; a cursor of
        None ends the list.
        """
        flow = inspection.find(self.core, where, conditions, order=order, limit=limit, cursor=cursor, redacted=redacted)
        return self.run_flow_in_thread(flow)

    @lists_options(Conditions)
    def count(self, where: Filter | None = None, **conditions: Unpack[Conditions]) -> int:
        """Count the items that `find` would find."""
        return self.run_flow(inspection.count(self.core, where, conditions))

    def groups(self, queue: str | None = None, *, limit: int = 100) -> tuple[Group, ...]:
        """Return dead letters grouped by cause of death, of one queue or all, the largest group first."""
        return self.run_flow_in_thread(inspection.groups(self.core, queue, limit))

    def feed(
        self,
        *,
        after: int | None = None,
        before: int | None = None,
        queue: str | None = None,
        id: str | None = None,
        kinds: str | Iterable[str] | None = None,
        operation: str | None = None,
        limit: int = 100,
    ) -> FeedPage:
        """Read events, oldest first: the newest entries, those before a number, or those after one.

        To continue, pass `page.last` as `after`; `after=0` starts with the oldest.
        The setting `feed` of each queue says which events are kept.
        """
        asked = inspection.query(
            queue=queue, id=id, kinds=kinds, operation=operation, after=after, before=before, limit=limit
        )
        return self.run_flow_in_thread(inspection.read(self.core, asked))

    def follow(
        self,
        *,
        after: int | None = None,
        queue: str | None = None,
        id: str | None = None,
        kinds: str | Iterable[str] | None = None,
        operation: str | None = None,
        wait: DurationInput | None = None,
    ) -> Iterator[FeedEntry]:
        """Follow the feed, from `after` or from now on. Ends after `wait` without an entry; without `wait`, never."""
        asked = inspection.query(queue=queue, id=id, kinds=kinds, operation=operation, after=after)
        follower = FeedCursor(self.core, asked, wait)
        return self._entries(follower, None if after is not None else self._read_ahead(inspection.newest()))

    def audit(self, limit: int = 100, *, before: int | None = None) -> tuple[AuditEntry, ...]:
        """List manual changes and their actors, newest first. `before` is the last number of the preceding page."""
        return self.run_flow_in_thread(inspection.audit(self.core, limit, before))

    @lists_options(Conditions)
    def export(
        self,
        where: Filter | None = None,
        *,
        cursor: str | None = None,
        redacted: bool = True,
        **conditions: Unpack[Conditions],
    ) -> Iterator[bytes]:
        """Export all items that match as lines of JSON (docs/reference/export-format.md), read in small pages.

        Lines with a cursor say where to resume after an interruption. An item in which secrets were redacted cannot be
        imported: export it with `redacted=False`, which the audit records.
        """
        return self._lines(export_import.Exporter(self.core, where, conditions, cursor, redacted))

    def _entries(self, follower: FeedCursor, newest: FeedPage | None) -> Iterator[FeedEntry]:
        if newest is not None:
            follower.begin_behind(newest)
        while entries := self.run_flow(follower.next()):
            yield from entries

    def _lines(self, exporting: export_import.Exporter) -> Iterator[bytes]:
        self.run_flow(exporting.begin())
        while not exporting.finished:
            yield from self.run_flow_in_thread(exporting.next())

    def moves(self, limit: int = 100) -> tuple[PendingMove, ...]:
        """List items that are moving to other stores, oldest first, with the problem that delays each."""
        return self.run_flow(moves.list_pending_moves(self.core, limit))

    def workers(self) -> tuple[WorkerInfo, ...]:
        """List live workers by name, with their host, process, queues and tasks."""
        return self.run_flow(registrations.workers())
