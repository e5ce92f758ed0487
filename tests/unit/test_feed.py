"""The feed, page by page and live."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive import AsyncBroker, Broker, FeedEntry, FeedKind
from redrive.errors import InvalidInput
from redrive.testing import FakeClock, memory_broker


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with memory_broker(clock) as broker:
        broker.create_queue("jobs", feed="all")
        yield broker


def test_pages_go_on_where_the_last_one_ended(broker: Broker) -> None:
    broker.put_many("jobs", range(5))
    first = broker.feed(after=0, limit=3)
    rest = broker.feed(after=first.last)
    assert (len(first.entries), first.more, len(rest.entries), rest.more) == (3, True, 2, False)
    assert broker.feed(before=rest.entries[0].number, limit=2).entries == first.entries[1:]
    assert broker.feed(kinds="dead").entries == broker.feed(kinds=["dead", "failed"]).entries == ()
    assert len(broker.feed(kinds=[FeedKind.PUT]).entries) == 5


def test_follow_begins_where_the_feed_ends_at_the_call(broker: Broker) -> None:
    broker.put("jobs", "before")
    entries = broker.follow(wait=0)
    receipt = broker.put("jobs", "after")
    assert [entry.id for entry in entries] == [receipt.id]


def test_follow_from_a_number_gives_all_since(broker: Broker) -> None:
    ids = [broker.put("jobs", n).id for n in range(3)]
    assert [entry.id for entry in broker.follow(after=0, wait=0)] == ids
    first = broker.feed().entries[0]
    assert [entry.id for entry in broker.follow(after=first.number, wait=0)] == ids[1:]
    assert [entry.id for entry in broker.follow(after=0, id=ids[1], wait=0)] == [ids[1]]


def test_follow_is_woken_by_what_happens(broker: Broker) -> None:
    entries = broker.follow(wait="1h")
    seen = []
    thread = threading.Thread(target=lambda: seen.append(next(entries)))
    thread.start()
    while not broker.core.notify._waiters and thread.is_alive():
        pass
    receipt = broker.put("jobs", 1)
    thread.join(120)
    assert [entry.id for entry in seen] == [receipt.id]


def test_follow_ends_after_its_wait(broker: Broker, clock: FakeClock) -> None:
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.extend(broker.follow(wait="5s")))
    thread.start()
    while thread.is_alive():
        clock.advance("100ms")
    assert seen == []


async def test_follow_on_an_event_loop(broker: Broker) -> None:
    face = AsyncBroker(broker.core)
    entries = face.follow(wait="1h")
    receipt = await face.put("jobs", 1)
    async for entry in entries:
        assert entry.id == receipt.id
        break
    lines = [line async for line in face.export(status="any")]
    assert len(lines) == 1


@pytest.mark.parametrize(
    "wrong", [{"limit": 0}, {"after": -1}, {"before": "x"}, {"kinds": "sold"}, {"kinds": 7}, {"id": "x"}, {"queue": ""}]
)
def test_mistakes_are_refused(broker: Broker, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        broker.feed(**wrong)  # type: ignore[arg-type]


def test_every_field_of_an_entry_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs/concepts/groups-and-operations.md").read_text()
    table = page.partition("| field | what |\n|---|---|\n")[2].partition("\n\n")[0]
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(FeedEntry.__struct_fields__)
