"""FindPlanSubjects: the fields of items that a plan needs, equal to those of the whole items."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from redrive import Broker, Status
from redrive.contract.queries import FindItems, FindPlanSubjects
from redrive.errors import InvalidInput, QueueNotFound
from redrive.model.filter import Filter, Order
from redrive.model.item import Item
from redrive.model.operation_plan import PlanSubject
from redrive.model.worker_info import TASK_HEADER
from redrive.store import Store
from redrive.testing.conformance.actions import dead_queue, die, kill, take
from redrive.testing.conformance.suite import Suite


def expected_subject(item: Item, *, is_dead_letter: bool, with_last: bool) -> PlanSubject:
    """Return the fields that a plan needs, taken from the whole item."""
    last = item.history[-1] if with_last and item.history else None
    return PlanSubject(
        id=item.id,
        status=item.status,
        is_dead_letter=is_dead_letter,
        worker=item.worker,
        last=None if last is None else msgspec.structs.replace(last, failure=None, note=None),
        queue=item.queue,
        deliveries=item.counters.deliveries,
        was_dead=item.status is Status.ACTIVE and item.dead_reason is not None,
        is_dropped=item.dropped is not None,
        died_in=None if item.death is None else item.death.queue,
        cause=None if item.death is None else item.death.cause,
        home_store=item.home_store,
        idempotency_key=item.idempotency_key,
        task=item.headers.get(TASK_HEADER),
    )


def assert_subjects_say_what_items_say(store: Store, where: Filter, limit: int = 50) -> list[PlanSubject]:
    """Compare all pages of both queries, and return the subjects, without their last entries."""
    letters: set[str] = set()
    if where.status is not Status.DEAD:
        page = store.read(FindItems(msgspec.structs.replace(where, status=Status.DEAD), limit=1000))
        letters = {item.id for item in page.items}
    seen: list[PlanSubject] = []
    cursor = None
    while True:
        whole = store.read(FindItems(where, Order.OLDEST, limit, cursor))
        for with_last in (True, False):
            page = store.read(FindPlanSubjects(where, with_last, limit, cursor))
            assert (page.items, page.cursor) == (
                tuple(
                    expected_subject(
                        item, is_dead_letter=where.status is Status.DEAD or item.id in letters, with_last=with_last
                    )
                    for item in whole.items
                ),
                whole.cursor,
            )
        seen += page.items
        cursor = whole.cursor
        if cursor is None:
            return seen


def _fail(broker: Broker, value: str, *, final: bool = False, **options: Any) -> str:
    id = broker.put("mails", value, priority=9, **options).id
    broker.fail(take(broker, "mails"), "boom", final=final)
    return id


class PlanSubjectConformance(Suite):
    """Items of every status, those that died several times, and pages of them."""

    @pytest.mark.parametrize("status", [None, *Status])
    def test_items_of_every_status_are_as_plans_need_them(
        self, broker: Broker, store: Store, status: Status | None
    ) -> None:
        dead_queue(broker)
        broker.create_queue("mails", retry={"attempts": 2, "cooldown": "1h"}, keep_completed="1h")
        broker.put("mails", "completed")
        broker.complete(take(broker, "mails"))
        headers = {TASK_HEADER: "app.send", "tenant": "a"}
        _fail(broker, "dead", final=True, idempotency_key="k", headers=headers)
        active = _fail(broker, "active though dead", final=True)
        _fail(broker, "failed", headers={"tenant": "a"})
        archived = _fail(broker, "archived", final=True)
        again = _fail(broker, "redriven", final=True, headers=headers)
        broker.archive(archived)
        broker.redrive(again)
        broker.drop(broker.put("mails", "dropped").id)
        broker.lease_by_id(active, include_dead=True, worker="ada")
        kill(broker, "in a dead queue")
        broker.archive(kill(broker, "archived from a dead queue").id)
        broker.put("jobs", "held", held_by="ada", idempotency_key="h")
        broker.put("jobs", "leased")
        take(broker, worker="ada")
        where = Filter(status=status, archived=status is None or None)
        found = assert_subjects_say_what_items_say(store, where)
        assert found or status is Status.MOVING

    def test_last_of_several_deaths_and_entries_counts(self, broker: Broker, store: Store) -> None:
        broker.create_queue("jobs", retry={"attempts": 1})
        (id,) = die(broker, 1, "first")
        for error in ("second", "third"):
            broker.redrive(id)
            broker.fail(take(broker), error)
        broker.create_queue("others")
        broker.move(id, "others")
        (subject,) = assert_subjects_say_what_items_say(store, Filter())
        assert subject.cause is not None
        assert (subject.cause.title, subject.died_in, subject.queue) == ("Error: third", "jobs", "others")

    def test_pages_and_conditions_are_those_of_find(self, broker: Broker, store: Store) -> None:
        for name in ("jobs", "others"):
            broker.create_queue(name, retry={"attempts": 1})
            die(broker, 7, f"boom in {name}", queue=name)
        assert len(assert_subjects_say_what_items_say(store, Filter(), limit=3)) == 14
        assert len(assert_subjects_say_what_items_say(store, Filter(queue="others"), limit=3)) == 7
        assert len(assert_subjects_say_what_items_say(store, Filter(words="others"), limit=3)) == 7

    @pytest.mark.parametrize(
        ("query", "refusal"),
        [
            ({"where": Filter(queue="nowhere")}, QueueNotFound),
            ({"where": Filter(), "cursor": "dead-newest-0"}, InvalidInput),
        ],
    )
    def test_refuses_what_find_refuses(
        self, broker: Broker, store: Store, query: dict[str, Any], refusal: type[Exception]
    ) -> None:
        for kind in (FindItems, FindPlanSubjects):
            with pytest.raises(refusal):
                store.read(kind(**query))
