"""Ids over moves and imports: an item is found by every id it had, and put once for each id it had elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.errors import ItemNotFound, LeaseLost, WrongStatus
from redrive.model.duration import SECOND
from redrive.model.failure import failure_from_fields
from redrive.model.ids import ItemId
from redrive.model.item import Counters, Receipt, Settled, Status
from redrive.model.judge import Again, Dead
from redrive.model.reason import DeadReason
from redrive.model.transitions import Verb
from redrive.store import LEDGER_TIMEOUT, Clean, Complete, ListAudit
from redrive.testing.conformance.direct import Direct, DirectSuite, put

SOURCE = ItemId("a" * 32)


class LineageConformance(DirectSuite):
    """Old ids, tokens of former leases, dead letters."""

    def test_old_ids_and_tokens_follow_the_item(self, direct: Direct) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        (first,) = direct.put(b"a")
        lease = direct.take()
        moved = direct.bury(lease, "morgue")
        assert (moved.queue, moved.status, moved.source_id) == ("morgue", Status.PENDING, first)
        back = direct.change(Verb.REDRIVE, first)
        assert (back.queue, back.source_id, back.counters) == ("jobs", moved.id, Counters(deliveries=1, redrives=1))
        assert direct.get(first) == direct.get(moved.id) == direct.get(back.id)
        assert (direct.get(first).origin_id, direct.get(first).origin_queue) == (first, "jobs")
        late = direct.do(Complete(lease.token))
        assert isinstance(late, LeaseLost)
        assert late.status == "pending"
        assert isinstance(direct.change(Verb.DROP, moved.id), Settled)
        for id in (first, moved.id, back.id):
            with pytest.raises(ItemNotFound):
                direct.get(id)

    def test_redriven_item_is_no_dead_letter_even_where_a_dead_queue_works_on_it(self, direct: Direct) -> None:
        direct.queue("morgue", keep_dead=SECOND)
        direct.queue(dead_queue="morgue")
        own, moved = direct.put(b"own", queue="morgue")[0], direct.put(b"moved")[0]
        direct.bury(direct.take(), "morgue")
        direct.bury(direct.take("morgue"))
        assert direct.stats("morgue").dead_letters == 2
        direct.change(Verb.REDRIVE, own)
        assert direct.stats("morgue").dead_letters == 1
        assert isinstance(direct.change(Verb.ARCHIVE, own), WrongStatus)
        direct.clock.advance("1s")
        assert direct.do(Clean()) == 1
        assert direct.get(own).status is Status.PENDING
        (entry,) = [entry for entry in direct.read(ListAudit()) if entry.verb == "purge"]
        assert (entry.actor, entry.queue, entry.count) == ("retention", "morgue", 1)
        with pytest.raises(ItemNotFound):
            direct.get(moved)

    def test_item_born_dead_moves_and_is_known_by_its_first_id(self, direct: Direct) -> None:
        direct.queue("morgue")
        direct.queue(max_size=1, dead_queue="morgue")
        failure = failure_from_fields("ValueError", "boom")
        options: dict[str, Any] = {"idempotency_key": "k", "failure": failure, "version": direct.version()}
        (id,) = direct.put(b"a", verdict=Dead(DeadReason.RETRIES_EXHAUSTED, "morgue"), **options)
        item = direct.get(id)
        assert (item.queue, item.status, item.source_id) == ("morgue", "pending", id)
        assert item.deaths[0].counters.failures == 1
        (again,) = direct.do(put(b"a", verdict=Again(0, Status.FAILED), **options))
        assert again == Receipt(id, duplicate=True)
        item = direct.get(id)
        assert [entry.failure for entry in item.history] == [failure, failure]
        assert (item.status, item.counters.failures) == (Status.PENDING, 1)


class SourceConformance(DirectSuite):
    """source_id: the id that an item had elsewhere."""

    def test_import_is_ignored_while_the_item_is_there(self, direct: Direct) -> None:
        direct.queue()
        (id,) = direct.put(b"a", source_id=SOURCE)
        direct.clock.advance(2 * LEDGER_TIMEOUT // SECOND)
        direct.do(Clean())
        assert direct.do(put(b"other", source_id=SOURCE)) == (Receipt(id, duplicate=True),)
        assert direct.get(id).source_id == SOURCE
        assert direct.stats().put_total == 1

    def test_import_is_ignored_for_some_time_after_the_item_is_gone(self, direct: Direct) -> None:
        direct.queue()
        (id,) = direct.put(b"a", source_id=SOURCE)
        direct.do(Complete(direct.take().token))
        direct.clock.advance(LEDGER_TIMEOUT // SECOND - 1)
        direct.do(Clean())
        assert direct.do(put(b"a", source_id=SOURCE)) == (Receipt(id, duplicate=True),)
        direct.clock.advance("1s")
        assert direct.do(Clean()) == 1
        assert not direct.do(put(b"a", source_id=SOURCE))[0].duplicate

    def test_queues_do_not_share_imports(self, direct: Direct) -> None:
        for name in ("jobs", "mails"):
            direct.queue(name)
            assert not direct.do(put(b"a", queue=name, source_id=SOURCE))[0].duplicate

    def test_import_twice_in_one_put_puts_one_item(self, direct: Direct) -> None:
        direct.queue(max_size=1)
        first, second = direct.do(put(b"a", b"a", source_id=SOURCE))
        assert (first.duplicate, second) == (False, Receipt(first.id, duplicate=True))
        assert direct.stats().put_total == 1

    def test_moved_item_is_known_by_its_source_while_it_is_there(self, direct: Direct) -> None:
        direct.queue("morgue")
        direct.queue(dead_queue="morgue")
        (source,) = direct.put(b"a")
        moved = direct.bury(direct.take(), "morgue")
        assert direct.do(put(b"a", queue="morgue", source_id=source)) == (Receipt(moved.id, duplicate=True),)
