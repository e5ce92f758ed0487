"""A server that restarts, scripts it forgets, connections that break anywhere: nothing is lost or done twice."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from tests.acceptance.children import Say, fork
from tests.acceptance.histories import Tally
from tests.acceptance.load import Load
from tests.acceptance.places import Broken, places
from tests.servers.proxy import RedisProxy
from tests.servers.redis import Server

from redrive import Broker, connect
from redrive.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from redrive.stores.redis import RedisStore, connection, namespace_lock
from redrive.stores.redis import redis_client as connections
from redrive.stores.redis.scripts import COMMIT, LOCK_ACQUIRE, LOCK_COMMIT
from redrive.testing.fake_clock import PATIENCE_SECONDS

Report = Callable[[str, object], None]
ITEMS_BETWEEN = 30
"""Completions between two faults."""
SHORT_SECONDS = 2.0
"""How long an answer is waited for where nothing answers. On a busy machine a server answers sooner."""
BOUND_SECONDS = 25.0
"""A call that nobody answers ends after this: some times SHORT_SECONDS, and much for a busy machine."""
COMMITS = [f"EVALSHA {script.sha}" for script in (COMMIT, LOCK_COMMIT)]
"""Scripts that change something for good: the fast path, and what was computed under the lock."""
TAKE = f"EVALSHA {LOCK_ACQUIRE.sha}"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One of its own, which is restarted."""
    server = Server()
    yield server
    server.destroy()


@pytest.fixture
def admin(server: Server) -> Iterator[redis.Redis]:
    with contextlib.closing(server.client()) as client:
        yield client


@pytest.fixture
def url(server: Server) -> str:
    return f"{server.url}?prefix=own_{uuid4().hex}"


@pytest.fixture
def proxy(server: Server) -> Iterator[RedisProxy]:
    proxy = RedisProxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def far_url(url: str, server: Server, proxy: RedisProxy) -> str:
    """The same server, through the proxy."""
    return url.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.fixture
def far(far_url: str) -> Iterator[Broker]:
    """A broker behind the proxy, with connections open, on a server that knows all scripts. A death moves its item,
    which is done under the lock."""
    with connect(far_url, maintenance=False) as broker:
        broker.create_queue("dead")
        broker.create_queue("jobs", keep_completed="1h", dead_queue="dead")
        broker.put("jobs", 0)
        broker.stats("jobs")
        yield broker


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "ANSWER_TIMEOUT_SECONDS", SHORT_SECONDS)
    monkeypatch.setattr(connection, "CONNECT_TIMEOUT_SECONDS", SHORT_SECONDS)
    monkeypatch.setattr(connections, "RETRY_SECONDS", 0.2)
    monkeypatch.setattr(namespace_lock, "LOCK_TTL_MICROSECONDS", 1_000_000)


def values(url: str) -> list[int]:
    return sorted(int(standing.payload) for standing in places(url))


def some_work(load: Load) -> None:
    enough = load.outcomes["complete ok"] + ITEMS_BETWEEN
    load.wait_until(lambda: load.outcomes["complete ok"] >= enough)


def some_calls(load: Load, count: int) -> None:
    done = sum(load.outcomes.values())
    load.wait_until(lambda: sum(load.outcomes.values()) >= done + count)


def some_unknown(load: Load) -> int:
    return sum(count for outcome, count in load.outcomes.items() if outcome.endswith("unknown"))


def finish(load: Load, url: str, report: Report, **figures: object) -> Tally:
    """Work off what is left, check everything, and tell what there was to check."""
    tally = load.finish(url)
    told = f"{figures}, {tally}, {dict(load.outcomes)}, longest call {load.longest:.2f} s"
    report("figures", told)
    print(told)
    assert tally.put >= ITEMS_BETWEEN
    return tally


def ours(admin: redis.Redis) -> list[dict[str, str]]:
    return [each for each in admin.client_list() if each["name"] == connection.CLIENT_NAME]


# Under load


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_server_restarts(how: signal.Signals, server: Server, url: str, record_property: Report) -> None:
    load = Load(url)
    resumed = []
    for _ in range(3):
        some_work(load)
        server.stop(how)
        refused = load.outcomes["put refused"]
        load.wait_until(lambda refused=refused: load.outcomes["put refused"] > refused)
        server.start()
        resumed.append(round(load.resumes(), 2))
    finish(load, url, record_property, resumed=resumed)


def test_connections_are_killed_again_and_again(url: str, admin: redis.Redis, record_property: Report) -> None:
    draw = random.Random(0)
    load = Load(url)
    some_work(load)
    killed = {"pubsub": 0, "normal": 0, "all": 0}
    while killed["pubsub"] < 3 or killed["normal"] < 25 or killed["all"] < 5:
        kind = draw.choice(["one", "one", "one", "all", "pubsub"])
        if kind == "one" and (found := ours(admin)):
            chosen = draw.choice(found)
            admin.client_kill_filter(_id=chosen["id"])
            killed["pubsub" if "P" in chosen["flags"] else "normal"] += 1
        elif kind == "all":
            killed["all"] += bool(admin.client_kill_filter(_type="normal", skipme=True))
        elif kind == "pubsub":
            killed["pubsub"] += int(admin.client_kill_filter(_type="pubsub"))
        some_calls(load, 5)
    finish(load, url, record_property, killed=killed, resumed=round(load.resumes(), 2))
    end = time.monotonic() + PATIENCE_SECONDS
    while ours(admin):
        assert time.monotonic() < end, "a connection is leaked"


def test_scripts_are_forgotten_again_and_again(url: str, admin: redis.Redis, record_property: Report) -> None:
    load = Load(url)
    some_work(load)
    for _ in range(50):
        admin.script_flush()
        some_calls(load, 3)
    finish(load, url, record_property, resumed=round(load.resumes(), 2))
    assert some_unknown(load) == 0  # a server that does not know a script has not run it
    assert load.outcomes["put refused"] == 0


def test_slow_network_that_resets_connections(
    url: str, far_url: str, proxy: RedisProxy, record_property: Report
) -> None:
    load = Load(far_url)
    some_work(load)
    proxy.delay = 0.003
    cut = 0
    for _ in range(8):
        some_calls(load, 10)
        cut += proxy.reset()
    proxy.delay = 0.0
    finish(load, url, record_property, cut=cut, resumed=round(load.resumes(), 2))


def test_answers_to_commits_are_cut_off(url: str, far_url: str, proxy: RedisProxy, record_property: Report) -> None:
    """Some were carried out and nobody heard of it, some were not: whoever is told `unknown` cannot know which."""
    load = Load(far_url)
    some_work(load)
    # The commits of the maintenance are cut too, which no caller hears of.
    for number in itertools.takewhile(lambda number: number < 24 or some_unknown(load) < 12, itertools.count()):
        proxy.cut_at(COMMITS[number % 4 == 3], forward=number % 2 == 0)
        load.wait_until(lambda number=number: proxy.cuts > number)
    finish(load, url, record_property, cuts=proxy.cuts, resumed=round(load.resumes(), 2))


@pytest.mark.usefixtures("impatient")
def test_network_swallows_everything(
    url: str, far_url: str, proxy: RedisProxy, record_property: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Load(far_url)
    some_work(load)
    proxy.go_dark()
    refused = load.outcomes["put refused"]
    load.wait_until(lambda: load.outcomes["put refused"] >= refused + 3)
    proxy.light_up()
    resumed = round(load.resumes(), 2)
    load.stop()
    monkeypatch.undo()
    finish(load, url, record_property, resumed=resumed)
    assert load.longest < BOUND_SECONDS


# One call


def test_commit_whose_answer_is_lost_happened_once_and_is_unknown(far: Broker, proxy: RedisProxy, url: str) -> None:
    proxy.cut_at(COMMITS[0], forward=True)
    with pytest.raises(OutcomeUnknown):
        far.put("jobs", 1)
    assert values(url) == [0, 1]
    proxy.cut_at(COMMITS[0], forward=True)
    with pytest.raises(OutcomeUnknown):
        far.put("jobs", 2, idempotency_key="two")
    assert far.put("jobs", 2, idempotency_key="two").duplicate
    leases = far.lease("jobs", 10)
    proxy.cut_at(COMMITS[0], forward=True)
    with pytest.raises(OutcomeUnknown):
        far.complete(leases[0])
    with pytest.raises(LeaseLost):
        far.complete(leases[0])
    proxy.cut_at(COMMITS[1], forward=True)
    with pytest.raises(OutcomeUnknown):
        far.bury(leases[1])
    with pytest.raises(LeaseLost):
        far.bury(leases[1])
    (last,) = far.lease("dead")  # where a death is in place
    proxy.cut_at(COMMITS[0], forward=True)
    with pytest.raises(OutcomeUnknown):
        far.bury(last)
    with pytest.raises(LeaseLost):
        far.bury(last)
    assert values(url) == [0, 1, 2]
    assert far.stats("jobs").completed_total == 1
    assert (far.stats("dead").dead_letters, far.stats("dead").dead) == (1, 1)
    assert proxy.cuts == 5


def test_commit_that_never_arrived_is_unknown_and_did_not_happen(far: Broker, proxy: RedisProxy, url: str) -> None:
    proxy.cut_at(COMMITS[0])
    with pytest.raises(OutcomeUnknown):
        far.put("jobs", 1)
    assert values(url) == [0]
    (lease,) = far.lease("jobs")
    proxy.cut_at(COMMITS[1])
    with pytest.raises(OutcomeUnknown):
        far.bury(lease)
    assert proxy.cuts == 2
    far.bury(lease)  # neither it nor others need to wait until that lock expires
    assert far.stats("dead").dead_letters == 1
    (lease,) = far.lease("dead")
    proxy.cut_at(COMMITS[0])
    with pytest.raises(OutcomeUnknown):
        far.bury(lease)
    assert far.stats("dead").dead == 0


@pytest.mark.parametrize("forward", [False, True])
def test_turn_whose_taking_was_cut_off_is_no_obstacle(forward: bool, far: Broker, proxy: RedisProxy, url: str) -> None:
    """A process that took the lock and does not know it delays others no longer than the lock lasts."""
    (lease,) = far.lease("jobs")
    proxy.cut_at(TAKE, forward=forward)
    begun = time.monotonic()
    for _ in range(3):
        with contextlib.suppress(StoreUnavailable):
            far.bury(lease)
            break
    assert time.monotonic() - begun < BOUND_SECONDS  # and it lasts 5
    assert proxy.cuts == 1
    assert far.stats("dead").dead_letters == 1
    assert values(url) == [0]


def test_query_whose_connection_is_lost_is_asked_again(far: Broker, proxy: RedisProxy) -> None:
    for number in range(1, 7):
        proxy.cut_at("EVALSHA", forward=number % 2 == 0)
        assert far.stats("jobs").pending == 1
        assert proxy.cuts == number


@pytest.mark.usefixtures("impatient")
def test_calls_that_nobody_answers_end_with_an_error_that_says_so(far_url: str, proxy: RedisProxy, url: str) -> None:
    with connect(far_url, maintenance=False) as far:
        far.create_queue("jobs")
        far.put("jobs", 0)
        proxy.go_dark()
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="no answer within 2 seconds"):
            far.put("jobs", 1)
        with pytest.raises(StoreUnavailable):
            far.stats("jobs")
        assert time.monotonic() - begun < BOUND_SECONDS
        proxy.light_up()
        far.put("jobs", 2)
        assert far.stats("jobs").pending == 2
    assert values(url) == [0, 2]


# Processes


def test_process_that_is_killed_in_its_turn_is_waited_for_only_a_moment(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace_lock, "LOCK_TTL_MICROSECONDS", 100_000_000)
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", 0)

        def take(say: Say) -> None:
            own = connect(url, maintenance=False)
            store = own.core.store
            assert isinstance(store, RedisStore)
            store._lock._acquire("token")
            say(b"x")
            signal.pause()

        for number in range(1, 4):
            pid, reader = fork(take)
            assert os.read(reader, 1) == b"x"
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            begun = time.monotonic()
            broker.put("jobs", number)
            assert time.monotonic() - begun < namespace_lock.LOCK_TTL_MICROSECONDS / 2e6
    assert values(url) == [0, 1, 2, 3]


def test_process_that_was_too_slow_writes_nothing(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its lock has expired and others wrote since: what it computed is no longer true."""
    monkeypatch.setattr(namespace_lock, "LOCK_TTL_MICROSECONDS", 200_000)
    with connect(url, maintenance=False) as slow, connect(url, maintenance=False) as other:
        slow.create_queue("dead")
        slow.create_queue("jobs", dead_queue="dead")
        slow.put("jobs", 0)
        (lease,) = slow.lease("jobs")
        store = slow.core.store
        assert isinstance(store, RedisStore)
        apply = store._lock.apply
        late: list[bool] = []

        def dawdle(*args: Any, **options: Any) -> bool:
            if not late:
                other.put("jobs", 1)  # waits until the lock is released
                late.append(apply(*args, **options))
                return late[0]
            return apply(*args, **options)

        monkeypatch.setattr(store._lock, "apply", dawdle)
        slow.bury(lease)
        assert late == [False]
        assert slow.stats("dead").dead_letters == 1
        assert slow.stats("jobs").pending == 1
    assert values(url) == [0, 1]


_CHILD_THAT_EXITS = """
import os, sys
from redrive import connect
broker = connect(sys.argv[1], maintenance=False)
broker.create_queue("jobs")
broker.put("jobs", 1)
store = broker.core.store
store.poll_changes()
ids = [link.request(("CLIENT", "ID")) for link in store._client._idle]
listener = store._notifications._listener
if os.fork() == 0:
    sys.exit()
assert os.wait()[1] == 0
assert ids == [link.request(("CLIENT", "ID")) for link in store._client._idle]
assert listener is store._notifications._listener
listener.send("PING")
broker.put("jobs", 2)
broker.close()
"""


def test_child_that_exits_as_programs_do_says_no_goodbye_for_its_parent(url: str) -> None:
    """At the end of an interpreter everything is collected, connections too."""
    subprocess.run([sys.executable, "-c", _CHILD_THAT_EXITS, url], check=True, timeout=PATIENCE_SECONDS)
    assert values(url) == [1, 2]


def test_acknowledged_puts_survive_the_kill_of_the_server(server: Server, url: str) -> None:
    acknowledged: list[int] = []
    unknown: list[int] = []
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
        stop = threading.Event()

        def put() -> None:
            for number in range(1_000_000):
                if stop.is_set():
                    return
                try:
                    broker.put("jobs", number)
                    acknowledged.append(number)
                except OutcomeUnknown:
                    unknown.append(number)
                except StoreUnavailable:
                    pass

        thread = threading.Thread(target=put)
        thread.start()
        for round in range(1, 4):
            while len(acknowledged) < 200 * round:
                time.sleep(0.001)
            server.stop(signal.SIGKILL)
            server.start()
        stop.set()
        thread.join(PATIENCE_SECONDS)
    left = set(values(url))
    assert set(acknowledged) <= left
    assert left <= set(acknowledged) | set(unknown)


# Memory and replicas


@pytest.fixture
def started() -> Iterator[Callable[..., Server]]:
    """Starts servers, and destroys them when the test is over."""
    servers: list[Server] = []

    def start(**settings: str) -> Server:
        servers.append(Server(**settings))
        return servers[-1]

    yield start
    for server in servers:
        server.destroy()


def test_full_memory_refuses_puts_and_can_be_worked_off(started: Callable[..., Server]) -> None:
    server = started(maxmemory="6mb")
    body = "x" * 20_000
    with connect(server.url, maintenance=False) as broker:
        broker.create_queue("jobs")
        receipts: list[Any] = []
        with pytest.raises(StoreUnavailable, match="its memory is full, nothing was changed"):
            receipts.extend(broker.put("jobs", body) for _ in range(1000))
        accepted = len(receipts)
        assert accepted > 20
        with contextlib.closing(server.client()) as admin:  # it frees what it needs no more while this test looks
            admin.config_set("maxmemory", "5mb")
        assert len(places(server.url)) == accepted  # nothing of those that were refused
        for call in (lambda: broker.put("jobs", 1, idempotency_key="k"), lambda: broker.put_many("jobs", [body] * 9)):
            with pytest.raises(StoreUnavailable):
                call()
        assert len(places(server.url)) == accepted
        while leases := broker.lease("jobs", 10):
            for lease in leases:
                broker.complete(lease)
                accepted -= 1
        assert accepted == 0
        broker.put("jobs", body, idempotency_key="k")
    assert len(places(server.url)) == 1


@pytest.mark.parametrize("waits", [True, False])
def test_replica_that_takes_over_has_what_was_acknowledged(waits: bool, started: Callable[..., Server]) -> None:
    """If that was asked for. Else acknowledged items are gone, and the test finds it."""
    primary = started(repl_diskless_sync_delay="0")
    between = RedisProxy(primary.port)
    replica = started(replicaof=f"127.0.0.1 {between.port}")
    replica.wait_until(lambda client: client.info("replication")["master_link_status"] == "up")
    load = Load(f"{primary.url}?wait_replicas={int(waits)}")
    some_work(load)
    between.go_dark()  # what is done now is done on the primary only
    unknown = some_unknown(load)
    if waits:
        load.wait_until(lambda: some_unknown(load) > unknown + 3)
    else:
        some_work(load)
    primary.stop(signal.SIGKILL)
    load.stop()
    between.close()
    with contextlib.closing(replica.client()) as admin:
        admin.slaveof()
    if waits:
        tally = load.finish(replica.url)
        print(tally, dict(load.outcomes))
        assert tally.put >= ITEMS_BETWEEN
    else:
        with pytest.raises(Broken, match="lost"):
            load.finish(replica.url)
