"""What the tests on Redis would not find, they do not prove: bugs that are put in must be found."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from tests.acceptance.load import Load
from tests.acceptance.operations import furnish
from tests.acceptance.places import Broken, places
from tests.acceptance.test_races import LATE, next_owner, race, same_token
from tests.integration.test_redis_pubsub import wait_to_hear
from tests.servers.proxy import RedisProxy
from tests.servers.redis import Server
from tests.until import until

from redrive import Broker, connect
from redrive.stores import notifications
from redrive.stores.redis import store as store_module
from redrive.stores.redis.connection import ConnectionLost, NotSent, RedisConnection
from redrive.stores.redis.pubsub import PubSub
from redrive.stores.redis.redis_client import RedisClient
from redrive.stores.redis.scripts import COMMIT as SCRIPT
from redrive.stores.redis.scripts import Script
from redrive.testing.fake_clock import FakeClock

ROUNDS = 250
COMMIT = f"EVALSHA {SCRIPT.sha}"


@pytest.fixture
def two_brokers(redis_url: str) -> Iterator[tuple[Broker, Broker, FakeClock]]:
    clock = FakeClock()
    with (
        connect(redis_url, clock=clock, maintenance=False) as one,
        connect(redis_url, clock=clock, maintenance=False) as two,
    ):
        one.create_queue("jobs", lease_timeout="1s", max_losses=0, max_attempts=0)
        one.create_queue("other")
        yield one, two, clock


@pytest.fixture
def rewrite(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Changes the script that does what is done often."""

    def change(old: str, new: str) -> None:
        source = SCRIPT.source
        assert source.count(old) == 1
        monkeypatch.setattr(store_module, "COMMIT", Script("commit", source.replace(old, new)))

    return change


def test_missing_token_check_is_found(
    two_brokers: tuple[Broker, Broker, FakeClock], rewrite: Callable[[str, str], None]
) -> None:
    rewrite("if state.t ~= key then", "if not state.t then")
    with pytest.raises(AssertionError, match="the late one True, its rival True"):
        race(*two_brokers, next_owner, [LATE[0]], ROUNDS)


def test_settle_that_does_not_end_the_lease_is_found(
    two_brokers: tuple[Broker, Broker, FakeClock], rewrite: Callable[[str, str], None]
) -> None:
    rewrite("state.t, state.w, state.L, state.D = nil, nil, nil, nil", "state.w = nil")
    with pytest.raises(AssertionError, match="the late one True, its rival True"):
        race(*two_brokers, same_token, [LATE[3]], ROUNDS)


@pytest.fixture
def proxy(redis_server: Server) -> Iterator[RedisProxy]:
    proxy = RedisProxy(redis_server.port)
    yield proxy
    proxy.close()


def _cut_answers(redis_url: str, redis_server: Server, proxy: RedisProxy) -> None:
    load = Load(redis_url.replace(f":{redis_server.port}/", f":{proxy.port}/"))
    try:
        for number in range(24):
            proxy.cut_at(COMMIT, forward=True)
            load.wait_until(lambda number=number: proxy.cuts > number)
    finally:
        load.stop()
    load.finish(redis_url)


def test_write_that_is_sent_again_is_found(
    redis_url: str, redis_server: Server, proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a driver with its retries on would do it."""
    ask = RedisConnection.request

    def ask_again(self: RedisConnection, *commands: Any) -> list[Any]:
        try:
            return ask(self, *commands)
        except ConnectionLost as lost:
            raise NotSent(str(lost)) from lost

    monkeypatch.setattr(RedisConnection, "request", ask_again)
    with pytest.raises(Broken):
        _cut_answers(redis_url, redis_server, proxy)


def test_without_a_bug_nothing_is_found(redis_url: str, redis_server: Server, proxy: RedisProxy) -> None:
    _cut_answers(redis_url, redis_server, proxy)


def test_listener_that_is_not_armed_again_is_found(redis_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lost its connection, and makes another one on which it does not listen."""
    monkeypatch.setattr(notifications, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr(notifications, "POLL_EVERY", 10**15)
    channel = "{planted}notifications"
    with contextlib.closing(RedisClient(redis_server.url)) as connection:
        listener, teller = PubSub(connection, channel), PubSub(connection, channel)
        with (
            contextlib.closing(listener),
            contextlib.closing(teller),
            contextlib.closing(redis_server.client()) as admin,
        ):
            listener.received()
            monkeypatch.setattr(PubSub, "_listen", lambda self, listener: None)
            until(lambda: len(admin.client_list(_type="pubsub")) == 1)  # those of tests before are gone
            assert admin.client_kill_filter(_type="pubsub") == 1
            assert listener.received() is None
            listener.received()
            teller.publish(["unheard"])
            teller.close()
            with pytest.raises(AssertionError):
                wait_to_hear(listener, "unheard", seconds=0.2)


# Places


def remove_one(kind: str) -> Callable[[redis.Redis, str], None]:
    def remove(client: redis.Redis, root: str) -> None:
        key = next(client.scan_iter(f"{root}{kind}:*", 1000))
        client.zremrangebyrank(key, 0, 0)

    return remove


def remove_all(kind: str) -> Callable[[redis.Redis, str], None]:
    def remove(client: redis.Redis, root: str) -> None:
        client.delete(*client.scan_iter(f"{root}{kind}:*", 1000))

    return remove


def lay_twice(client: redis.Redis, root: str) -> None:
    (member, score), *_ = client.zrange(f"{root}waiting:jobs", 0, 0, withscores=True)
    client.zadd(f"{root}completed:jobs", {member: score})


def late_by_one(client: redis.Redis, root: str) -> None:
    client.zincrby(f"{root}leases:jobs", 1, client.zrange(f"{root}leases:jobs", 0, 0)[0])


def count_one_more(client: redis.Redis, root: str) -> None:
    client.hincrby(f"{root}counts:jobs", "pending", 1)


def stray_history(client: redis.Redis, root: str) -> None:
    client.rpush(f"{root}h:0000000000000001", b"x")


def stray_id(client: redis.Redis, root: str) -> None:
    client.set(f"{root}o:0000000000000001", "0000000000000002")


def take_the_lock(client: redis.Redis, root: str) -> None:
    client.set(f"{root}lock", "x - 9999999999999999")


@pytest.mark.parametrize(
    ("found", "damage"),
    [
        ("in 0 places", remove_one("ready")),
        ("in 0 places", remove_one("waiting")),
        ("in 0 places", remove_one("leases")),
        ("found under", remove_one("held")),
        ("in 0 places", remove_all("dead")),
        ("in 2 places", lay_twice),
        ("stands at", late_by_one),
        ("do not exist", remove_all("c")),
        ("counts", count_one_more),
        ("letters", remove_all("dead_letters")),
        ("group", remove_all("group")),
        ("lists of queues", remove_one("all")),
        ("h has 1 keys", stray_history),
        ("later id", stray_id),
        ("has the lock", take_the_lock),
    ],
)
def test_damaged_keys_are_found(
    found: str, damage: Callable[[redis.Redis, str], None], redis_url: str, redis_server: Server
) -> None:
    with connect(redis_url, clock=FakeClock(), maintenance=False) as broker:
        furnish(broker)
        broker.put("jobs", "ready")
    assert places(redis_url)
    with contextlib.closing(redis_server.client()) as client:
        damage(client, f"{{{redis_url.partition('prefix=')[2]}:default}}:")
    with pytest.raises(Broken, match=found):
        places(redis_url)
