# Generated from broker/async_api/inspection.py by tools/blocking_api.py; edit that file.
"""Looking, as methods of `Broker`: items, groups, the feed, the audit. Secrets are hidden."""

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
    """Find out what is there and what happened. Nothing here changes anything."""

    def get(self, id: str, *, redacted: bool = True) -> Item:
        """An item with its history and deaths. An id from before a move still finds it.

        What looks like a secret is hidden; `redacted=False` gives the item as it is.
        """
        return self.run_flow_in_thread(deliveries.get(self.core, id, redacted))

    def get_many(self, ids: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """Many items with their histories: up to 1,000, in the order of their ids; None if no such item exists."""
        return self.run_flow_in_thread(deliveries.get_many(self.core, ids, redacted))

    def find_by_key(self, queue: str, keys: Iterable[str], *, redacted: bool = True) -> list[Item | None]:
        """The items that were put under idempotency keys: up to 1,000, those that a put to a queue under these keys
        would be a duplicate of.

        In the order of the keys, also from queues that they moved to; None if a put would make a new item, or the item
        is gone.
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
        """A page of items that match: a `Filter`, or its fields as conditions, as in `find(queue="jobs", since="1h")`.

        Dead letters, unless a status is named; `status="any"` means every item that is not archived. `since` and
        `until` are datetimes, or how long ago: "2h". With the cursor of a page it continues after the last item; None:
        that was all.
        """
        flow = inspection.find(self.core, where, conditions, order=order, limit=limit, cursor=cursor, redacted=redacted)
        return self.run_flow_in_thread(flow)

    @lists_options(Conditions)
    def count(self, where: Filter | None = None, **conditions: Unpack[Conditions]) -> int:
        """How many items match, as `find` would find them."""
        return self.run_flow(inspection.count(self.core, where, conditions))

    def groups(self, queue: str | None = None, *, limit: int = 100) -> tuple[Group, ...]:
        """Dead letters by what they died of: of one queue or all, the largest group first."""
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
        """What happened last, oldest first: the newest entries, those before a number, or those after one.

        `page.last` goes on; `after=0` begins with the oldest.
        The setting `feed` of each queue says what is kept.
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
        """The feed as it happens, from `after` or from now on. Ends after `wait` without an entry; unset: never."""
        asked = inspection.query(queue=queue, id=id, kinds=kinds, operation=operation, after=after)
        follower = FeedCursor(self.core, asked, wait)
        return self._entries(follower, None if after is not None else self._read_ahead(inspection.newest()))

    def audit(self, limit: int = 100, *, before: int | None = None) -> tuple[AuditEntry, ...]:
        """Who changed what by hand, newest first. `before` is the number of the last entry of the page before."""
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
        """Items that match, as lines of JSON (docs/reference/export-format.md), as many as there are and few at a time.

        Lines that hold a cursor say where to go on after an interruption. Only what was exported with `redacted=False`
        can be imported where secrets were hidden in it.
        """
        return self._lines(export_import.Exporter(self.core, where, conditions, cursor, redacted))

    def _entries(self, follower: FeedCursor, newest: FeedPage | None) -> Iterator[FeedEntry]:
        if newest is not None:
            follower.begin_behind(newest)
        while entries := self.run_flow(follower.next()):
            yield from entries

    def _lines(self, exporting: export_import.Exporter) -> Iterator[bytes]:
        while not exporting.finished:
            yield from self.run_flow_in_thread(exporting.next())

    def moves(self, limit: int = 100) -> tuple[PendingMove, ...]:
        """Items on their way to other stores, those that left first first; and what keeps them."""
        return self.run_flow(moves.list_pending_moves(self.core, limit))

    def workers(self) -> tuple[WorkerInfo, ...]:
        """The workers that are alive, by name: where they run, which queues and tasks they work on."""
        return self.run_flow(registrations.workers())
