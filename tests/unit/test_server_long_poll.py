"""Whoever waits at the server: woken, answered when it stops, and nothing stays leased by somebody who is gone."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from tests.servers.asgi import Client

from redrive.contract.queries import ReadFeed
from redrive.errors import StoreUnavailable
from redrive.server.application import application
from redrive.server.asgi import Server
from redrive.server.request_limits import Limits

PATIENCE_SECONDS = 120.0
LONG = {"queue": "jobs", "wait": "1h"}


@pytest.fixture
async def app() -> AsyncIterator[Server]:
    app = application("memory://", limits=Limits(max_long_polls=3), maintenance=False)
    yield app
    await app.close()


@pytest.fixture
async def client(app: Server) -> Client:
    client = Client(app)
    await client.ok("queues.create", name="jobs")
    return client


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.001)


async def until_in_line(app: Server) -> None:
    """A request counts as waiting before its first look into the queue is over. From here on the look is over."""
    await until(lambda: len(app.waiting) == 1)
    broker = app.brokers.open["default"]
    await until(lambda: len(broker.core.notify._waiters.get("jobs", ())) == 1)


async def test_lease_that_waits_is_answered_as_soon_as_an_item_is_put(app: Server, client: Client) -> None:
    waiting = client.begin("queue.lease", LONG)
    await until(lambda: len(app.waiting) == 1)
    put = await client.ok("queue.produce", queue="jobs", items=[{"payload": 7}])
    leased = (await waiting.answer()).json["items"]
    assert [(item["id"], item["payload"]) for item in leased] == [(put["items"][0]["id"], 7)]
    assert len(app.waiting) == 0


async def test_wait_ends_when_the_server_says_so_though_the_client_asked_for_longer() -> None:
    app = application("memory://", limits=Limits(wait_seconds=0.01), maintenance=False)
    client = Client(app)
    await client.ok("queues.create", name="jobs")
    assert (await client.ok("queue.lease", **LONG))["items"] == []
    assert (await client.ok("feed.read", after="0", wait="1h"))["entries"] == []
    await app.close()


async def test_nothing_is_leased_to_a_client_that_went_away_while_it_waited(app: Server, client: Client) -> None:
    gone = client.begin("queue.lease", LONG)
    await until_in_line(app)
    gone.leave()
    await gone.task
    assert not gone.was_answered
    assert len(app.waiting) == 0
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 7}])
    leased = (await client.ok("queue.lease", queue="jobs"))["items"]
    assert [item["deliveries"] for item in leased] == [1]


async def test_items_that_come_in_the_moment_a_client_goes_are_given_back_uncounted(
    app: Server, client: Client
) -> None:
    for _ in range(50):
        gone = client.begin("queue.lease", LONG)
        await until(lambda: len(app.waiting) == 1)
        put = client.begin("queue.produce", {"queue": "jobs", "items": [{"payload": 7}]})
        gone.leave()
        await asyncio.gather(put.task, gone.task)
        if gone.was_answered:  # it was there when the item came
            token = (await gone.answer()).json["items"][0]["token"]
        else:
            async with asyncio.timeout(PATIENCE_SECONDS):
                item = (await client.ok("queue.lease", **LONG))["items"][0]
            assert item["attempts"] == 1
            token = item["token"]
        await client.ok("queue.complete", queue="jobs", items=[{"token": token}])


async def test_stop_answers_whoever_waits_and_gives_out_no_more(app: Server, client: Client) -> None:
    await client.ok("queues.create", name="busy")
    await client.ok("queue.produce", queue="busy", items=[{"payload": 1}])
    waiting = [client.begin("queue.lease", LONG), client.begin("feed.read", {"after": "0", "wait": "1h"})]
    await until(lambda: len(app.waiting) == 2)
    app.stop()
    lease, feed = [(await each.answer()).json for each in waiting]
    assert (lease["items"], feed["entries"]) == ([], [])
    assert (await client.ok("queue.lease", queue="busy"))["items"] == []
    assert (await client.ok("queue.lease", **LONG))["items"] == []
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])


async def test_more_than_may_wait_are_told_to_come_again(app: Server, client: Client) -> None:
    waiting = [client.begin("queue.lease", LONG) for _ in range(3)]
    await until(lambda: len(app.waiting) == 3)
    answer = await client.call("queue.lease", **LONG)
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (429, "overloaded", "1")
    assert (await client.ok("queue.lease", queue="jobs"))["items"] == []
    app.stop()
    for each in waiting:
        assert (await each.answer()).status == 200


async def bury(client: Client, queue: str) -> str:
    """Something that is in the feed."""
    put = await client.ok("queue.produce", queue=queue, items=[{"payload": 1}])
    id: str = put["items"][0]["id"]
    await client.ok("items.bury", ids=[id])
    return id


@pytest.fixture
async def many() -> AsyncIterator[Server]:
    app = application("memory://", maintenance=False)
    for name in ("jobs", "mails"):
        await Client(app).ok("queues.create", name=name)
    yield app
    await app.close()


async def test_feed_is_read_once_for_all_who_wait_for_something_else(
    many: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(many)
    broker = many.brokers.get("default")
    assert broker is not None
    store: Any = broker.core.store
    inner, readings = store.read, Counter[str]()

    def read(query: Any) -> Any:
        readings[type(query).__name__] += 1
        return inner(query)

    monkeypatch.setattr(store, "read", read)
    others = [{"kinds": ["archived"]}, {"queue": "mails"}, {"operation": "x"}, {"id": "0" * 32}]
    waiting = [client.begin("feed.read", {"after": "0", "wait": "1h", **others[n % 4]}) for n in range(60)]
    await until(lambda: len(many.waiting) == 60 and readings["ReadFeed"] >= 120)
    readings.clear()
    for _ in range(5):
        await bury(client, "jobs")
    last = client.begin("feed.read", {"after": "0", "wait": "1h", "kinds": ["restored"]})
    await until(lambda: len(many.waiting) == 61)
    assert readings["ReadFeed"] < 60, "each of them read it anew"
    many.stop()
    for each in [*waiting, last]:
        assert (await each.answer()).json["entries"] == []


@pytest.mark.parametrize("by", ["queue", "kinds", "id", "operation", "nothing"])
async def test_feed_tells_those_who_wait_for_what_happens(many: Server, by: str) -> None:
    client = Client(many)
    id = await bury(client, "mails")
    asked = {"queue": {"queue": "mails"}, "kinds": {"kinds": ["moved", "archived"]}, "id": {"id": id}}
    first = (await client.ok("feed.read"))["last"]
    paused = await client.ok("operations.start", verb="archive", queue="mails", paused=True)
    operation = paused["operation"]["id"]
    wanted = {"operation": {"operation": operation}, "nothing": {}, **asked}[by]
    waiting = client.begin("feed.read", {"after": first, "wait": "1h", **wanted})
    await until(lambda: len(many.waiting) == 1)
    await client.ok("operations.resume", id=operation)
    broker = many.brokers.get("default")
    assert broker is not None
    await broker.run_operation(operation)
    async with asyncio.timeout(PATIENCE_SECONDS):
        (entry,) = (await waiting.answer()).json["entries"]
    assert (entry["kind"], entry["id"], entry["operation"]) == ("archived", id, operation)


async def test_feed_of_an_item_goes_on_when_it_moves(many: Server) -> None:
    client = Client(many)
    id = await bury(client, "mails")
    first = (await client.ok("feed.read"))["last"]
    waiting = client.begin("feed.read", {"after": first, "wait": "1h", "id": id, "kinds": ["archived"]})
    await until(lambda: len(many.waiting) == 1)
    await client.ok("items.move", ids=[id], to="jobs")
    (letter,) = (await client.ok("dead.find", queue="jobs"))["items"]
    assert letter["id"] != id
    await client.ok("dead.archive", ids=[letter["id"]])
    async with asyncio.timeout(PATIENCE_SECONDS):
        (entry,) = (await waiting.answer()).json["entries"]
    assert (entry["kind"], entry["id"]) == ("archived", letter["id"])


async def test_feed_that_cannot_be_read_is_told_to_all_who_wait(many: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client(many)
    waiting = [client.begin("feed.read", {"after": "0", "wait": "1h"}) for _ in range(3)]
    await until(lambda: len(many.waiting) == 3)
    broker = many.brokers.get("default")
    assert broker is not None
    store: Any = broker.core.store
    inner = store.read

    def read(query: Any) -> Any:
        if isinstance(query, ReadFeed):
            raise StoreUnavailable("memory", "it is down")
        return inner(query)

    monkeypatch.setattr(store, "read", read)
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert [(await each.answer()).status for each in waiting] == [503] * 3


async def test_feed_that_waits_tells_what_happens(app: Server, client: Client) -> None:
    waiting = client.begin("feed.read", {"after": "0", "queue": "jobs", "wait": "1h"})
    await until(lambda: len(app.waiting) == 1)
    await client.ok("queue.produce", queue="jobs", items=[{"payload": 1}])
    token = (await client.ok("queue.lease", queue="jobs"))["items"][0]["token"]
    await client.ok("queue.retry", queue="jobs", items=[{"token": token, "dead": True}])
    assert [entry["kind"] for entry in (await waiting.answer()).json["entries"]] == ["dead"]


async def test_wait_that_is_cut_off_from_outside_leaves_nothing_behind(app: Server, client: Client) -> None:
    waiting = client.begin("queue.lease", LONG)
    await until(lambda: len(app.waiting) == 1)
    waiting.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert len(app.waiting) == 0
