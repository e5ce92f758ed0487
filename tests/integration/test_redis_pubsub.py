"""Notices between processes: heard by others, not by oneself, and again after the connection was lost."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
import redis
from tests.servers.proxy import RedisProxy
from tests.servers.redis import Cluster, Server
from tests.until import until

from redrive.errors import Closed
from redrive.stores import notifications
from redrive.stores.redis import connection as redis_connection
from redrive.stores.redis import pubsub
from redrive.stores.redis.pubsub import PubSub
from redrive.stores.redis.redis_client import RedisClient
from redrive.testing.fake_clock import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def _no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is heard is heard, and not found by the look that is behind it."""
    monkeypatch.setattr(notifications, "POLL_EVERY", 10**15)


@pytest.fixture
def opened() -> Iterator[Callable[..., PubSub]]:
    """Opens notices of one channel that listen already, and closes them when the test is over."""
    channel = f"{{{uuid4().hex}}}notices"
    with contextlib.ExitStack() as stack:

        def open_one(url: str) -> PubSub:
            connection = stack.enter_context(contextlib.closing(RedisClient(url)))
            found = stack.enter_context(contextlib.closing(PubSub(connection, channel)))
            assert found.received() is None  # it begins to listen, and cannot know what was before
            found.received()
            return found

        yield open_one


@pytest.fixture
def admin(redis_server: Server) -> Iterator[redis.Redis]:
    with contextlib.closing(redis_server.client()) as client:
        yield client


def wait_to_hear(listener: PubSub, *names: str, seconds: float = PATIENCE_SECONDS) -> None:
    heard: set[str] = set()
    end = time.monotonic() + seconds
    while heard != set(names):
        found = listener.received()
        assert found is not None, "it lost its connection"
        heard.update(found)
        assert time.monotonic() < end, f"it heard {heard}"
        time.sleep(0.002)


def test_others_hear_what_arrived(opened: Callable[..., PubSub], redis_server: Server) -> None:
    one, two, three = (opened(redis_server.url) for _ in range(3))
    one.publish(["a", "b:1"])
    wait_to_hear(two, "a", "b:1")
    wait_to_hear(three, "a", "b:1")
    two.publish(["c"])
    wait_to_hear(one, "c")  # and nothing of what it told itself


def test_what_comes_fast_is_told_together(
    opened: Callable[..., PubSub], redis_server: Server, admin: redis.Redis
) -> None:
    one, two = opened(redis_server.url), opened(redis_server.url)
    before = admin.info("commandstats").get("cmdstat_publish", {"calls": 0})["calls"]
    for number in range(2000):
        one.publish([f"queue{number % 3}"])
    wait_to_hear(two, "queue0", "queue1", "queue2")
    one.close()
    assert 1 <= admin.info("commandstats")["cmdstat_publish"]["calls"] - before < 200


def test_what_is_untold_at_the_end_is_told(opened: Callable[..., PubSub], redis_server: Server) -> None:
    one, two = opened(redis_server.url), opened(redis_server.url)
    one.publish(["last"])
    one.close()
    wait_to_hear(two, "last")


def test_lost_listener_listens_again(
    opened: Callable[..., PubSub], redis_server: Server, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "RETRY_SECONDS", 0.0)
    one, two = opened(redis_server.url), opened(redis_server.url)
    until(lambda: len(admin.client_list(_type="pubsub")) == 2)  # those of tests before are gone
    for number in range(3):
        assert admin.client_kill_filter(_type="pubsub") == 2
        for listener in (one, two):
            assert listener.received() is None  # that it was lost
            assert listener.received() is None  # since it listens again: what came between
            listener.received()
        one.publish([f"after{number}"])
        wait_to_hear(two, f"after{number}")


def test_lost_sender_is_replaced(opened: Callable[..., PubSub], redis_server: Server, admin: redis.Redis) -> None:
    one, two = opened(redis_server.url), opened(redis_server.url)
    for number in range(3):
        one.publish([f"queue{number}"])
        wait_to_hear(two, f"queue{number}")
        assert admin.client_kill_filter(_type="normal", skipme=True) >= 1


def test_listener_that_the_network_forgot_listens_again(
    opened: Callable[..., PubSub], redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(pubsub, "PING_SECONDS", 0.01)
    monkeypatch.setattr(pubsub, "SILENCE_SECONDS", 0.3)
    proxy = RedisProxy(redis_server.port)
    try:
        far = opened(f"redis://127.0.0.1:{proxy.port}")
        proxy.go_dark()
        proxy.light_up()  # for new connections; the one that is open stays dark
        end = time.monotonic() + PATIENCE_SECONDS
        while far.received() is not None:
            assert time.monotonic() < end, "it does not notice"
            time.sleep(0.002)
        monkeypatch.setattr(pubsub, "SILENCE_SECONDS", PATIENCE_SECONDS)
        assert far.received() is None
        opened(redis_server.url).publish(["again"])
        wait_to_hear(far, "again")
    finally:
        proxy.close()


def test_whoever_waits_looks_by_himself_each_second(
    opened: Callable[..., PubSub], redis_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened(redis_server.url)
    assert one.received() == set()
    monkeypatch.setattr(notifications, "POLL_EVERY", 0)
    assert one.received() is None


def test_server_that_is_away_is_asked_again_later_and_not_all_the_time(
    opened: Callable[..., PubSub], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Server()
    try:
        one = opened(server.url)
        server.stop()
        assert one.received() is None
        dialled: list[object] = []
        dial = RedisClient.dial
        monkeypatch.setattr(RedisClient, "dial", lambda self: dialled.append(self) or dial(self))
        began = time.monotonic()
        assert [one.received() for _ in range(100)].count(None) <= 1 + len(dialled)
        assert len(dialled) <= 2 + (time.monotonic() - began) / notifications.RETRY_SECONDS
        server.start()
        end = time.monotonic() + PATIENCE_SECONDS
        while one.received() is not None:
            assert time.monotonic() < end
            time.sleep(0.002)
    finally:
        server.destroy()


def test_every_server_of_a_cluster_is_reached(opened: Callable[..., PubSub], redis_cluster: Cluster) -> None:
    one = opened(redis_cluster.url)
    others = [opened(server.url) for server in redis_cluster.servers]
    one.publish(["everywhere"])
    for other in others:
        wait_to_hear(other, "everywhere")


def test_closed_notices(opened: Callable[..., PubSub], redis_server: Server, admin: redis.Redis) -> None:
    one = opened(redis_server.url)
    one.publish(["x"])
    one.close()
    one.close()
    with pytest.raises(Closed):
        one.received()
    one.publish(["y"])  # nobody hears it, and nobody is hurt
    assert "redrive-publisher" not in {thread.name for thread in threading.enumerate()}
    until(lambda: not [each for each in admin.client_list() if each["name"] == redis_connection.CLIENT_NAME])
