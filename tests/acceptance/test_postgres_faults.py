"""A server that restarts, connections that break anywhere, a network that swallows: nothing is lost or done twice."""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.acceptance.children import Say, run
from tests.acceptance.histories import Tally
from tests.acceptance.load import Load
from tests.acceptance.places import places
from tests.servers.postgres import Server
from tests.servers.proxy import Proxy
from tests.until import until

from redrive import Broker, connect
from redrive.contract.item_calls import LeaseItems
from redrive.contract.queries import GetStats
from redrive.errors import Closed, LeaseLost, OutcomeUnknown, StoreUnavailable
from redrive.stores.postgres import connection_settings, engine
from redrive.stores.postgres import session as patience
from redrive.stores.postgres.session import Session
from redrive.stores.postgres.store import PostgresStore
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS

Admin = psycopg.Connection[Any]
Report = Callable[[str, object], None]
ITEMS_BETWEEN = 30
"""Completions between two faults."""
SHORT_SECONDS = 2.0
"""How long an answer is waited for where nothing answers. On a busy machine a server answers sooner."""
BOUND_SECONDS = 25.0
"""A call that nobody answers ends after this: SHORT_SECONDS, or the two that psycopg waits for a connection at least,
and much for a busy machine."""
OURS = "SELECT pid, query FROM pg_stat_activity WHERE application_name = 'redrive'"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """One of its own, which is restarted."""
    server = Server()
    yield server
    server.destroy()


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def schema(request: pytest.FixtureRequest) -> str:
    return f"own_{abs(hash(request.node.nodeid)):x}"


@pytest.fixture
def url(server: Server, schema: str) -> str:
    return f"{server.url}?schema={schema}"


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def far_url(url: str, server: Server, proxy: Proxy) -> str:
    """The same database, through the proxy."""
    return url.replace(f":{server.port}/", f":{proxy.port}/")


@pytest.fixture
def far(far_url: str) -> Iterator[Broker]:
    """A broker behind the proxy, with a connection of each kind open."""
    with connect(far_url, maintenance=False) as broker:
        broker.create_queue("jobs", keep_completed="1h")
        broker.put("jobs", 0)
        broker.stats("jobs")
        yield broker


@pytest.fixture
def impatient(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that connect later are. To make the tables may take longer."""
    connect(url, maintenance=False).close()
    be_impatient(monkeypatch)


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, and what lasts as long as a connection for all that are opened later."""
    monkeypatch.setattr(patience, "ANSWER_TIMEOUT_SECONDS", SHORT_SECONDS)
    monkeypatch.setitem(connection_settings.CONNECT_OPTIONS, "connect_timeout", 2)
    monkeypatch.setattr(connection_settings, "TRANSACTION_TIMEOUT", "2s")


def values(url: str) -> list[int]:
    return sorted(int(standing.payload) for standing in places(url))


def some_work(load: Load) -> None:
    enough = load.outcomes["complete ok"] + ITEMS_BETWEEN
    load.wait_until(lambda: load.outcomes["complete ok"] >= enough)


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


# Under load


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT])
def test_server_restarts(how: signal.Signals, server: Server, url: str, record_property: Report) -> None:
    load = Load(url)
    resumed = []
    for _ in range(2):
        some_work(load)
        server.stop(how)
        refused = load.outcomes["put refused"]
        load.wait_until(lambda refused=refused: load.outcomes["put refused"] > refused)
        server.start()
        resumed.append(round(load.resumes(), 2))
    finish(load, url, record_property, resumed=resumed)


def test_connections_are_terminated_again_and_again(url: str, admin: Admin, record_property: Report) -> None:
    draw = random.Random(0)
    load = Load(url)
    some_work(load)
    ended = {"listener": 0, "other": 0}
    while ended["listener"] < 3 or ended["other"] < 25:
        if found := admin.execute(OURS).fetchall():
            pid, query = draw.choice(found)
            admin.execute("SELECT pg_terminate_backend(%s)", (pid,))
            ended["listener" if query.startswith("LISTEN") else "other"] += 1
        done = sum(load.outcomes.values())
        load.wait_until(lambda done=done: sum(load.outcomes.values()) >= done + 5)
    finish(load, url, record_property, ended=ended, resumed=round(load.resumes(), 2))
    until(lambda: not admin.execute(OURS).fetchall())  # none is leaked


def test_slow_network_that_resets_connections(url: str, far_url: str, proxy: Proxy, record_property: Report) -> None:
    load = Load(far_url)
    some_work(load)
    proxy.delay = 0.003
    cut = 0
    for _ in range(6):
        done = sum(load.outcomes.values())
        load.wait_until(lambda done=done: sum(load.outcomes.values()) >= done + 10)
        cut += proxy.reset()
    proxy.delay = 0.0
    finish(load, url, record_property, cut=cut, resumed=round(load.resumes(), 2))


def test_answers_to_commits_are_cut_off(url: str, far_url: str, proxy: Proxy, record_property: Report) -> None:
    """Some were committed and nobody heard of it, some were not: whoever is told `unknown` cannot know which."""
    load = Load(far_url)
    some_work(load)
    # One in three is answered, and the commits of the maintenance are cut too, which no caller hears of.
    for number in itertools.takewhile(lambda number: number < 24 or some_unknown(load) < 8, itertools.count()):
        proxy.cut_at("COMMIT", forward=number % 3 == 0, farewell=number % 3 == 1)
        load.wait_until(lambda number=number: proxy.cuts > number)
    finish(load, url, record_property, cuts=proxy.cuts, resumed=round(load.resumes(), 2))


@pytest.mark.usefixtures("impatient")
def test_network_swallows_everything(
    url: str, far_url: str, proxy: Proxy, record_property: Report, monkeypatch: pytest.MonkeyPatch
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


def test_commit_whose_answer_is_lost_happened_once_and_is_unknown(far: Broker, proxy: Proxy, url: str) -> None:
    proxy.cut_at("COMMIT", forward=True)
    with pytest.raises(OutcomeUnknown):
        far.put("jobs", 1)
    assert values(url) == [0, 1]
    proxy.cut_at("COMMIT", forward=True)
    with pytest.raises(OutcomeUnknown):
        far.put("jobs", 2, idempotency_key="two")
    assert far.put("jobs", 2, idempotency_key="two").duplicate
    leases = far.lease("jobs", 10)
    proxy.cut_at("COMMIT", forward=True)
    with pytest.raises(OutcomeUnknown):
        far.complete(leases[0])
    with pytest.raises(LeaseLost):
        far.complete(leases[0])
    assert values(url) == [0, 1, 2]
    assert far.stats("jobs").completed_total == 1
    assert proxy.cuts == 3


def test_commit_that_was_answered_happened_whatever_follows(far: Broker, proxy: Proxy, url: str) -> None:
    """The server says that it committed, and that it ends the connection."""
    proxy.cut_at("COMMIT", farewell=True)
    far.put("jobs", 1)
    leases = far.lease("jobs", 10)
    proxy.cut_at("COMMIT", farewell=True)
    far.complete(leases[0])
    far.put("jobs", 2)
    assert values(url) == [0, 1, 2]
    assert far.stats("jobs").completed_total == 1
    assert proxy.cuts == 2


def test_commit_that_never_arrived_is_unknown_and_did_not_happen(far: Broker, proxy: Proxy, url: str) -> None:
    proxy.cut_at("COMMIT")
    with pytest.raises(OutcomeUnknown):
        far.put("jobs", 1)
    assert proxy.cuts == 1
    assert values(url) == [0]
    far.put("jobs", 2)
    assert values(url) == [0, 2]


@pytest.mark.parametrize("statement", ["BEGIN", "SELECT pg_advisory_xact_lock", "SELECT epoch"])
def test_what_is_lost_before_its_commit_is_done_again(statement: str, far: Broker, proxy: Proxy, url: str) -> None:
    for number in range(1, 4):
        proxy.cut_at(statement)
        far.put("jobs", number)
        assert proxy.cuts == number
        assert values(url) == list(range(number + 1))


def test_what_is_sent_together_with_its_commit_is_done_again_or_unknown(far: Broker, proxy: Proxy, url: str) -> None:
    acknowledged = [0]
    for number in range(1, 6):
        proxy.cut_at("INSERT INTO")
        try:
            far.put("jobs", number)
            acknowledged.append(number)
        except OutcomeUnknown:
            pass
        assert proxy.cuts == number
        assert values(url) == acknowledged


def test_query_whose_connection_is_lost_is_asked_again(far: Broker, proxy: Proxy) -> None:
    for number in range(1, 4):
        proxy.cut_at("BEGIN ISOLATION")
        assert far.stats("jobs").pending == 1
        assert proxy.cuts == number


@pytest.mark.usefixtures("impatient")
def test_calls_that_nobody_answers_end_with_an_error_that_says_so(far: Broker, proxy: Proxy, url: str) -> None:
    proxy.go_dark()
    calls: list[Callable[[], object]] = [lambda: far.put("jobs", 1), lambda: far.stats("jobs")]
    for call in calls:
        begun = time.monotonic()
        with pytest.raises(StoreUnavailable, match="no answer within 2 seconds"):
            call()
        with pytest.raises(StoreUnavailable, match="timeout"):
            call()  # on a new connection
        assert time.monotonic() - begun < 2 * BOUND_SECONDS
    proxy.light_up()
    far.put("jobs", 2)
    assert far.stats("jobs").pending == 2
    assert values(url) == [0, 2]


def test_locks_of_a_client_that_vanished_are_free_again(
    near: Broker, far_url: str, proxy: Proxy, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in a transaction, and the server hears nothing from it, not even an end."""
    be_impatient(monkeypatch)
    with connect(far_url, maintenance=False) as far:
        store = far.core.store
        assert isinstance(store, PostgresStore)

        def vanish(session: Session) -> None:
            session.execute("SELECT pg_advisory_xact_lock(?)", (store._lock,)).fetchall()
            proxy.go_dark()
            session.execute("SELECT 1").fetchall()  # ends when no answer comes

        with pytest.raises(StoreUnavailable):
            store._engine.transact(vanish)
        monkeypatch.undo()
        begun = time.monotonic()
        near.put("jobs", 1)
        assert time.monotonic() - begun < BOUND_SECONDS
    assert values(url) == [1]


def test_system_watches_the_network_too(far: Broker, far_url: str) -> None:
    """Whoever swallows packets below TCP acknowledges none of them. No test can do that without being root."""

    def watched(broker: Broker) -> int:
        store = broker.core.store
        assert isinstance(store, PostgresStore)
        broker.put("jobs", 1)
        with socket.socket(fileno=os.dup(store._engine._writer.fileno())) as found:  # type: ignore[union-attr]
            return found.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)

    assert watched(far) == connection_settings.CONNECT_OPTIONS["tcp_user_timeout"]
    with connect(far_url.replace("?", "?tcp_user_timeout=1234&"), maintenance=False) as other:
        assert watched(other) == 1234


# Queries at once


@pytest.fixture
def near(url: str) -> Iterator[Broker]:
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
        yield broker


def held_up(admin: Admin, schema: str) -> Any:
    """Until it ends, every query waits in the server."""
    held = admin.transaction()
    held.__enter__()
    admin.execute(f'LOCK TABLE "{schema}".redrive_queue IN ACCESS EXCLUSIVE MODE')
    return held


def waiting_queries(server: Server) -> int:
    with psycopg.connect(server.url, autocommit=True) as look:
        row = look.execute(f"SELECT count(*) FROM ({OURS} AND wait_event_type = 'Lock') AS found").fetchone()
        assert row is not None
        return int(row[0])


def ask(broker: Broker, count: int) -> tuple[list[threading.Thread], list[Any]]:
    found: list[Any] = []

    def look() -> None:
        try:
            found.append(broker.stats("jobs").pending)
        except Exception as error:
            found.append(error)

    threads = [threading.Thread(target=look, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    return threads, found


def test_more_queries_than_connections_are_refused_in_time(
    near: Broker, server: Server, admin: Admin, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_up(admin, schema)
    threads, answers = ask(near, engine.MAX_READERS)
    until(lambda: waiting_queries(server) == engine.MAX_READERS)
    monkeypatch.setattr(engine, "READER_TIMEOUT_SECONDS", 0.2)
    late_threads, late = ask(near, 4)
    for thread in late_threads:
        thread.join(PATIENCE_SECONDS)
    assert len(late) == 4
    for error in late:
        assert isinstance(error, StoreUnavailable)
        assert f"{engine.MAX_READERS} queries are running" in str(error)
    assert answers == []
    held.__exit__(None, None, None)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert answers == [0] * engine.MAX_READERS
    assert near.stats("jobs").pending == 0


def test_more_queries_than_connections_are_all_answered_where_there_is_time(
    near: Broker, server: Server, admin: Admin, schema: str
) -> None:
    held = held_up(admin, schema)
    threads, answers = ask(near, 5 * engine.MAX_READERS)
    until(lambda: waiting_queries(server) == engine.MAX_READERS)
    held.__exit__(None, None, None)
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert answers == [0] * len(threads)
    assert len(admin.execute(OURS).fetchall()) <= engine.MAX_READERS + 2  # the writer, and who tells and listens


# Interrupted


def test_interrupted_anywhere_nothing_of_it_is_left(
    near: Broker, url: str, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before each of the statements of a transaction: the next one does not commit what was left of it."""
    execute = Session.execute
    acknowledged = []
    for last in itertools.count(1):
        left = itertools.count(last, -1)

        def interrupted(self: Session, *args: Any, left: Iterator[int] = left) -> Any:
            if next(left) == 1:
                raise KeyboardInterrupt
            return execute(self, *args)

        with monkeypatch.context() as patched:
            patched.setattr(Session, "execute", interrupted)
            try:
                near.put("jobs", last)
            except KeyboardInterrupt:
                until(lambda: not admin.execute(f"{OURS} AND state <> 'idle'").fetchall())  # no lock is held
            else:
                acknowledged.append(last)
                break
        near.put("jobs", -last)
        acknowledged.append(-last)
    assert len(acknowledged) > 4
    assert values(url) == sorted(acknowledged)


def test_interrupted_rollback_leaves_nothing_to_commit(near: Broker, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = near.core.store
    assert isinstance(store, PostgresStore)

    def interrupted(connection: Any) -> bool:
        raise KeyboardInterrupt

    def fail(session: Session) -> None:
        session.execute("INSERT INTO redrive_namespace (name) VALUES ('left behind')")
        raise psycopg.DataError

    monkeypatch.setattr(engine, "_roll_back", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store._engine.transact(fail)
    monkeypatch.undo()
    near.put("jobs", 1)
    asked = "SELECT count(*) FROM redrive_namespace WHERE name = 'left behind'"
    assert store._engine.read(lambda session: session.execute(asked).get) == 0


def test_interrupted_query_leaves_no_old_snapshot_behind(near: Broker) -> None:
    store = near.core.store
    assert isinstance(store, PostgresStore)

    def interrupted(session: Session) -> None:
        session.execute("SELECT count(*) FROM redrive_item").fetchall()
        raise KeyboardInterrupt

    for number in range(1, 4):
        with pytest.raises(KeyboardInterrupt):
            store._engine.read(interrupted)
        near.put("jobs", number)
        assert near.stats("jobs").pending == number


def test_call_while_an_interruption_is_handled_fails_as_any_other(far: Broker, proxy: Proxy) -> None:
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:
        proxy.cut_at("COMMIT")
        with pytest.raises(OutcomeUnknown):
            far.put("jobs", 1)
        proxy.cut_at("BEGIN")
        far.put("jobs", 2)
        proxy.cut_at("BEGIN")
        assert far.stats("jobs").pending == 2


def test_signals_in_the_middle_of_calls(near: Broker, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A signal may come while something is being destroyed: then nobody can be told, and nothing is wrong.
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    inside = False
    acknowledged, interrupted = [], []

    def handle(*_: object) -> None:
        if inside:
            raise KeyboardInterrupt

    draw = random.Random(0)
    before = signal.signal(signal.SIGINT, handle)
    try:
        for number in itertools.takewhile(lambda number: number < 40 or not interrupted, itertools.count()):
            timer = threading.Timer(draw.uniform(0, 0.004), os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
            try:
                inside = True
                near.put("jobs", number)
                inside = False
                acknowledged.append(number)
            except KeyboardInterrupt:
                inside = False
                interrupted.append(number)
            timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    print(f"{len(interrupted)} of {number + 1} were interrupted")
    there = values(url)
    assert len(there) == len(set(there))
    assert set(acknowledged) <= set(there) <= {*acknowledged, *interrupted}


# Close, and fork


def test_close_waits_for_a_transaction_that_is_under_way(url: str, server: Server, admin: Admin, schema: str) -> None:
    """To close a connection under a thread that waits on it would be the end of the process."""
    store = PostgresStore(url.partition("?")[0], schema_name=schema)
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
    store.poll_changes()
    held = held_up(admin, schema)
    committing = Background(lambda: store.commit([LeaseItems("jobs", 1)]))
    reading = Background(lambda: store.read(GetStats("jobs")))
    until(lambda: waiting_queries(server) == 2)
    closing = Background(store.close)
    until(lambda: store._engine._closed)
    held.__exit__(None, None, None)
    assert len(committing.result().results[0].leases) == 1
    assert reading.result().pending + reading.result().active == 1
    closing.result()
    for call in (
        store.poll_changes,
        lambda: store.read(GetStats("jobs")),
        lambda: store.commit([LeaseItems("jobs", 1)]),
    ):
        with pytest.raises(Closed):
            call()
    until(lambda: not admin.execute(OURS).fetchall())


def test_parent_and_child_of_a_fork_both_go_on(near: Broker, url: str, admin: Admin) -> None:
    near.put("jobs", 0)
    near.stats("jobs")
    before = {pid for pid, _ in admin.execute(OURS).fetchall()}

    def work(say: Say) -> None:
        near.put("jobs", 1)
        say(str(near.stats("jobs").pending).encode())
        near.close()

    assert run(work).said == b"2"
    assert run(lambda say: near.close()).code == 0
    near.put("jobs", 2)
    assert near.stats("jobs").pending == 3
    until(lambda: {pid for pid, _ in admin.execute(OURS).fetchall()} == before)
    assert values(url) == [0, 1, 2]
