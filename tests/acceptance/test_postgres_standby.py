"""A primary that waits for a standby which is not there: what is committed here and may be nowhere else is unknown."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.acceptance.places import places
from tests.servers.postgres import Server
from tests.until import until

from redrive import Broker, connect
from redrive.errors import OutcomeUnknown
from redrive.stores.postgres import connection_settings
from redrive.stores.postgres import session as patience
from redrive.testing.conformance.actions import Background

Admin = psycopg.Connection[Any]
WAITING = "SELECT pid FROM pg_stat_activity WHERE application_name = 'redrive' AND wait_event = 'SyncRep'"
AWAITED = "ALTER SYSTEM SET synchronous_standby_names = 'absent'"
ENOUGH = "ALTER SYSTEM RESET synchronous_standby_names"
WRITES = b"SELECT pg_logical_emit_message(true, 'probe', '')"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.destroy()


@pytest.fixture
def url(server: Server, request: pytest.FixtureRequest) -> str:
    return f"{server.url}?schema=own_{abs(hash(request.node.nodeid)):x}"


class Primary:
    """The server, as its administrator sees it."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def run(self, *statements: str) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True, options="-c synchronous_commit=local") as admin:
            found = [admin.execute(statement) for statement in statements]
            return found[-1].fetchall() if found[-1].description else []

    def await_standby(self) -> None:
        """Commits wait from now on: once the checkpointer has read the setting, which only a commit shows."""
        self.run(AWAITED, "SELECT pg_reload_conf()")
        until(self._lets_a_commit_wait)

    def await_nothing(self) -> None:
        """Commits that wait are through as soon as the checkpointer has read the setting."""
        self.run(ENOUGH, "SELECT pg_reload_conf()")

    def _lets_a_commit_wait(self) -> bool:
        with closing(psycopg.connect(self.server.url, application_name="redrive")) as probe:
            probe.pgconn.send_query(WRITES)
            until(lambda: probe.info.backend_pid in self.waiting() or _has_answered(probe))
            waits = not _has_answered(probe)
            probe.cancel_safe()
            until(lambda: _has_answered(probe))
            return waits

    def waiting(self) -> list[int]:
        return [pid for (pid,) in self.run(WAITING)]

    def end_waits(self, how: str) -> None:
        """`pg_cancel_backend` or `pg_terminate_backend`, once something waits."""
        until(self.waiting)
        for pid in self.waiting():
            self.run(f"SELECT {how}({pid})")


def _has_answered(connection: Admin) -> bool:
    connection.pgconn.consume_input()
    return not connection.pgconn.is_busy()


@pytest.fixture
def primary(server: Server) -> Iterator[Primary]:
    primary = Primary(server)
    yield primary
    primary.await_nothing()


@pytest.fixture
def broker(url: str, primary: Primary) -> Iterator[Broker]:
    """One whose next commit waits for the standby. Nothing else of it writes."""
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", 0)
        primary.await_standby()
        yield broker
        primary.await_nothing()


def values(url: str) -> list[int]:
    return sorted(int(standing.payload) for standing in places(url))


def check_goes_on(broker: Broker, primary: Primary, url: str) -> None:
    """The first put is there once, and the next call gets its own answer."""
    primary.await_nothing()
    broker.put("jobs", 2)
    assert values(url) == [0, 1, 2]
    assert broker.stats("jobs").pending == 3


@pytest.mark.parametrize("how", ["pg_cancel_backend", "pg_terminate_backend"])
def test_commit_whose_wait_is_ended_is_unknown(how: str, broker: Broker, primary: Primary, url: str) -> None:
    putting = Background(lambda: broker.put("jobs", 1))
    primary.end_waits(how)
    with pytest.raises(OutcomeUnknown):
        putting.result()
    check_goes_on(broker, primary, url)


def test_what_the_server_warns_of_is_in_the_error(broker: Broker, primary: Primary) -> None:
    putting = Background(lambda: broker.put("jobs", 1))
    primary.end_waits("pg_cancel_backend")
    with pytest.raises(OutcomeUnknown, match=r"already committed locally, but might not have been replicated"):
        putting.result()


def test_role_that_asks_for_no_warnings_gets_the_same(url: str, primary: Primary) -> None:
    primary.run("CREATE ROLE quiet LOGIN SUPERUSER", "ALTER ROLE quiet SET client_min_messages = error")
    with connect(url.replace("postgres@", "quiet@"), maintenance=False) as broker:
        broker.create_queue("jobs")
        primary.await_standby()
        putting = Background(lambda: broker.put("jobs", 1))
        primary.end_waits("pg_cancel_backend")
        with pytest.raises(OutcomeUnknown):
            putting.result()
        primary.await_nothing()


def test_every_call_of_the_batch_is_unknown(broker: Broker, primary: Primary, url: str) -> None:
    def put_many() -> object:
        return broker.put_many("jobs", [1, 2, 3])

    putting = Background(put_many)
    primary.end_waits("pg_cancel_backend")
    with pytest.raises(OutcomeUnknown):
        putting.result()
    primary.await_nothing()
    assert values(url) == [0, 1, 2, 3]


def test_server_that_stops_while_a_commit_waits(broker: Broker, primary: Primary, url: str, server: Server) -> None:
    putting = Background(lambda: broker.put("jobs", 1))
    until(primary.waiting)
    server.stop(signal.SIGINT)
    with pytest.raises(OutcomeUnknown):
        putting.result()
    server.start()
    check_goes_on(broker, primary, url)


def test_no_timeout_of_the_server_ends_the_wait_but_ours_does(
    url: str, primary: Primary, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(url, maintenance=False) as patient:  # to make tables may take longer
        patient.create_queue("jobs")
        patient.put("jobs", 0)
    monkeypatch.setitem(connection_settings.SETTINGS, "statement_timeout", "1s")
    monkeypatch.setattr(connection_settings, "TRANSACTION_TIMEOUT", "1s")
    with connect(url, maintenance=False) as broker:
        primary.await_standby()
        monkeypatch.setattr(patience, "ANSWER_TIMEOUT_SECONDS", 3.0)
        with pytest.raises(OutcomeUnknown, match="no answer within 3 seconds"):
            broker.put("jobs", 1)
        monkeypatch.undo()
        check_goes_on(broker, primary, url)


class Alarm(Exception):
    """What a handler raises."""


@pytest.mark.parametrize("raised", [TimeoutError("alarm"), Alarm("alarm"), KeyboardInterrupt()])
def test_alarm_while_a_commit_waits_is_the_callers(
    raised: BaseException, broker: Broker, primary: Primary, url: str
) -> None:
    def handle(*_: object) -> None:
        raise raised

    before = signal.signal(signal.SIGALRM, handle)
    ringing = Background(ring_when(primary))
    try:
        with pytest.raises(type(raised)) as caught:
            broker.put("jobs", 1)
    finally:
        ringing.result()
        signal.signal(signal.SIGALRM, before)
    assert caught.value is raised
    check_goes_on(broker, primary, url)


def ring_when(primary: Primary) -> Callable[[], None]:
    """Ring once a commit waits, in the main thread: there the system delivers what is sent to a process."""

    def ring() -> None:
        until(primary.waiting)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    return ring


def test_warning_of_a_transaction_of_ones_own_is_for_its_owner(broker: Broker, primary: Primary, url: str) -> None:
    """As the guide to transactions says."""
    warned: list[str] = []
    with psycopg.connect(primary.server.url, application_name="redrive") as own:
        own.add_notice_handler(lambda notice: warned.append(notice.message_detail or ""))
        own.execute("SELECT 1")
        broker.put("jobs", 1, transaction=own)
        committing = Background(own.commit)
        primary.end_waits("pg_cancel_backend")
        committing.result()
    assert warned == [
        "The transaction has already committed locally, but might not have been replicated to the standby."
    ]
    check_goes_on(broker, primary, url)
