"""Loops in the threads of one process: health checks, a watchdog, one shutdown."""

import asyncio
import contextlib
import contextvars
import json
import logging
import os
import signal
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.until import until

from redrive import AsyncBroker, Broker, Status, connect
from redrive.errors import InvalidInput, OutcomeUnknown, StoreUnavailable
from redrive.mailbox import (
    AsyncMailbox,
    DeadLetter,
    DLQPolicy,
    InvalidParameterError,
    LoopGroup,
    Mailbox,
    MailboxClosedError,
    MainLoop,
    MainLoopRequest,
    MainLoopResult,
    Message,
    MessageLoop,
    message_loop,
)
from redrive.testing import FakeMailbox
from redrive.testing.conformance.actions import Background
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import WorkerLaunch

Ask = MainLoopRequest[str]
Answer = MainLoopResult[int]


@pytest.fixture
def broker() -> Iterator[Broker]:
    with connect("memory://") as broker:
        yield broker


def loop_on(broker: Broker, name: str, handler: Any = len) -> MainLoop[str, int]:
    return MainLoop(requests=Mailbox(broker, name, body=Ask, reply=Answer), handler=handler)


def test_loop_logs_once_that_its_store_is_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(message_loop, "RECONNECT_SECONDS", 0)
    loop = loop_on(broker, "work")
    commit, errors = broker.core.store.commit, [StoreUnavailable("memory", "away")] * 2

    def away(*given: Any) -> Any:
        if errors:
            raise errors.pop()
        return commit(*given)

    loop.prepare()
    monkeypatch.setattr(broker.core.store, "commit", away)
    with caplog.at_level(logging.INFO, "redrive.mailbox"):
        loop.run(max_iterations=4, wait_time_seconds=0)
    events = [record.event for record in caplog.records]  # type: ignore[attr-defined]
    assert events == ["mailbox_unavailable", "mailbox_unavailable", "mailbox_available"]


def get(port: int | None, path: str) -> tuple[int, dict[str, Any]]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


class Running:
    """A group that runs in another thread."""

    def __init__(self, group: LoopGroup) -> None:
        self.group = group
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.group.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> LoopGroup:
        self.thread.start()
        until(lambda: self.group.is_ready)
        return self.group

    def __exit__(self, *error: object) -> None:
        assert self.group.shutdown()
        self.thread.join(30)
        assert not self.thread.is_alive()


def test_loops_handle_requests_side_by_side_until_one_shutdown(broker: Broker) -> None:
    first, second = loop_on(broker, "first"), loop_on(broker, "second", lambda text: -len(text))
    with Running(LoopGroup([first, second])):
        assert first.mailbox.request(MainLoopRequest("abc"), "30s").output == 3
        assert second.mailbox.request(MainLoopRequest("abc"), "30s").output == -3
    assert (first.running, second.running) == (False, False)


def test_health_says_live_ready_and_degraded(broker: Broker) -> None:
    dead: Mailbox[int, None] = Mailbox(broker, "first-dlq", body=int)
    group = LoopGroup([loop_on(broker, "first")], health_port=0, dlq=[dead], dlq_threshold=2)
    with Running(group):
        for path in ("/health/live", "/health/ready"):
            status, report = get(group.health_port, path)
            assert (status, report["status"]) == (200, "healthy")
            assert report["dlq"] == {"name": "first-dlq", "depth": 0, "threshold": 2}
            assert [(loop["mailbox"], loop["running"]) for loop in report["loops"]] == [("first", True)]
        dead.send(1)
        dead.send(2)
        assert get(group.health_port, "/health/ready")[1]["status"] == "degraded"
        assert get(group.health_port, "/else")[0] == 404
        assert group.loops[0].shutdown()
        status, report = get(group.health_port, "/health/ready")
        assert (status, report["status"]) == (503, "unhealthy")
    assert group.health_port is None


def test_watchdog_ends_the_process_when_a_loop_hangs(broker: Broker) -> None:
    go, hung = threading.Event(), threading.Event()

    def hang(text: str) -> int:
        go.wait(30)
        return 0

    loop = loop_on(broker, "first", hang)
    group = LoopGroup([loop], watchdog_threshold=0.05, watchdog_interval=0.01, terminate=hung.set)
    loop.mailbox.send(MainLoopRequest("x"))
    with Running(group):
        assert hung.wait(30)
        assert not group.is_alive
        go.set()


def test_loop_that_cannot_start_ends_the_others_and_its_error_is_raised(broker: Broker) -> None:
    broken = loop_on(broker, "broken")
    broken.mailbox.close()
    good = loop_on(broker, "good")
    with pytest.raises(Exception, match="closed"):
        LoopGroup([good, broken]).run()
    assert not good.running
    with pytest.raises(InvalidParameterError):
        LoopGroup([])


def test_sigterm_is_one_shutdown_for_all_and_the_handler_of_before_comes_back(broker: Broker) -> None:
    loop = loop_on(broker, "first")
    group = LoopGroup([loop])
    before = signal.getsignal(signal.SIGTERM)

    def end() -> None:
        until(lambda: group.is_ready)
        os.kill(os.getpid(), signal.SIGTERM)

    killer = threading.Thread(target=end)
    killer.start()
    group.run()
    killer.join()
    assert not loop.running
    assert signal.getsignal(signal.SIGTERM) is before


def test_handler_that_exits_has_failed_and_its_loop_continues(broker: Broker) -> None:
    def leave_or_answer(text: str) -> int:
        return sys.exit("enough") if text == "leave" else 0

    loop = loop_on(broker, "first", leave_or_answer)
    with Running(LoopGroup([loop])):
        id = loop.mailbox.send(MainLoopRequest("leave"))
        assert loop.mailbox.request(MainLoopRequest("stay"), "30s").output == 0
    item = broker.get(id)
    assert (item.status, item.counters.failures) == (Status.FAILED, 1)
    assert item.last_failure is not None
    assert (item.last_failure.type, item.last_failure.text) == ("SystemExit", "enough")


class Faulty(MessageLoop[int, None]):
    """A loop with a mistake."""

    def handle(self, message: Message[int, None], visibility_timeout: float) -> None:
        raise LookupError("a mistake")


def test_error_that_a_loop_does_not_expect_is_a_failure_of_the_message_and_the_loop_goes_on(broker: Broker) -> None:
    loop = Faulty(Mailbox(broker, "first", body=int), visibility_timeout=30)
    ids = [loop.mailbox.send(number) for number in range(2)]
    with Running(LoopGroup([loop])):
        for id in ids:  # dead by the settings of their queue, which has no retry
            until(lambda id=id: broker.get(id).status is Status.DEAD)  # type: ignore[misc]


def test_suspect_is_handled_alone(broker: Broker) -> None:
    go, calls = threading.Event(), list[str]()

    def handler(text: str) -> int:
        calls.append(text)
        return int(go.wait(30))

    loops = [loop_on(broker, name, handler) for name in ("first", "second", "third")]
    suspect = loops[0].mailbox.send(MainLoopRequest("suspect"))
    broker.report_lost(broker.lease("first")[0], "its worker was killed")
    with Running(LoopGroup(loops)):
        until(lambda: calls)
        ordinary = [loop.mailbox.send(MainLoopRequest("ordinary")) for loop in loops[1:]]
        until(lambda: all(broker.get(id).status is Status.ACTIVE for id in ordinary))
        assert calls == ["suspect"]
        go.set()
        until(lambda: len(calls) == 3)
        until(lambda: broker.count(ids=[suspect, *ordinary], status=None) == 0)


@pytest.mark.parametrize("suspect", ["outer", "inner"])
def test_handler_that_awaits_another_loop_does_not_wait_for_ever_beside_a_suspect(broker: Broker, suspect: str) -> None:
    inner = loop_on(broker, "inner")

    async def ask_twice(text: str) -> int:
        asked = AsyncMailbox[Ask, Answer](AsyncBroker(broker.core), "inner", body=Ask, reply=Answer)
        answers = await asyncio.gather(*(asked.request(MainLoopRequest(text), "20s") for _ in range(2)))
        return sum(answer.output or 0 for answer in answers)

    outer = loop_on(broker, "outer", ask_twice)
    loops = {"outer": outer, "inner": inner}
    ids = [loops[suspect].mailbox.send(MainLoopRequest("abc"))]
    broker.report_lost(broker.lease(suspect)[0], "its worker was killed")
    if suspect == "inner":
        ids.append(outer.mailbox.send(MainLoopRequest("abc")))
    with Running(LoopGroup([outer, inner])):
        until(lambda: broker.count(ids=ids, status=None) == 0)
        until(lambda: not inner._turns._handling and not inner._turns._with_suspects)


@pytest.mark.parametrize("is_suspect", [True, False])
def test_handler_on_an_event_loop_does_not_block_it_after_a_wait(is_suspect: bool) -> None:
    turns, one, other = message_loop.Turns(), "one", "other"
    deadline = time.monotonic() + 5

    def is_stopped() -> bool:  # so that what waits, fails
        return time.monotonic() > deadline

    async def handle() -> None:
        with turns.paused(one, is_suspect, is_stopped):
            assert turns.begin(other, not is_suspect, is_stopped)
        assert turns._handling == {one, other}

    assert turns.begin(one, is_suspect, is_stopped)
    asyncio.run(handle())
    turns.end(one)
    turns.end(other)
    assert not turns._handling
    assert not turns._with_suspects


def test_what_a_handler_left_behind_does_not_keep_the_turn_of_its_loop(broker: Broker) -> None:
    left = list[threading.Thread]()
    inner = loop_on(broker, "inner")

    def leave(text: str) -> int:
        run = contextvars.copy_context().run
        left.append(threading.Thread(target=run, args=(inner.mailbox.request, MainLoopRequest(text))))
        left[0].start()
        return 1

    outer = loop_on(broker, "outer", leave)
    first = outer.mailbox.send(MainLoopRequest("abc"))
    broker.report_lost(broker.lease("outer")[0], "its worker was killed")
    with Running(LoopGroup([outer])):
        until(lambda: broker.count(ids=[first], status=None) == 0)
        with Running(LoopGroup([inner])):
            left[0].join(30)
        assert not left[0].is_alive()
        until(lambda: not outer._turns._handling and not outer._turns._with_suspects)


def test_loop_on_a_mailbox_that_is_closed_ends(tmp_path: Path) -> None:
    own: Mailbox[Ask, Answer] = Mailbox(f"sqlite:///{tmp_path}/own.db", "own", body=Ask, reply=Answer)
    loop = MainLoop(requests=own, handler=len)
    run = Background(loop.run)
    assert own.request(MainLoopRequest("abc"), "30s").output == 3
    own.close()
    run.result()
    with pytest.raises(MailboxClosedError):
        MainLoop(requests=own, handler=len).run()


def test_group_is_a_context_manager_that_shuts_it_down(broker: Broker) -> None:
    with LoopGroup([loop_on(broker, "first")]) as group:
        thread = threading.Thread(target=group.run)
        thread.start()
        until(lambda: group.is_ready)
    thread.join(30)
    assert not group.is_ready
    with pytest.raises(InvalidInput, match="the group of loops was shut down; make another one"):
        group.run()
    with pytest.raises(InvalidInput, match="the loop on mailbox 'first' was shut down; make another one"):
        group.loops[0].run()


def test_message_that_comes_after_the_shutdown_is_returned_uncounted(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_on(broker, "first")
    id = loop.mailbox.send(MainLoopRequest("x"))
    receive = loop.mailbox.receive

    def receive_and_stop(**options: Any) -> Any:
        loop.shutdown(timeout=0)
        return receive(**options)

    monkeypatch.setattr(loop.mailbox, "receive", receive_and_stop)
    loop.run()
    item = broker.get(id)
    assert (item.status, item.counters.attempts) == (Status.PENDING, 0)


def test_loop_survives_a_connection_that_breaks_while_it_receives(monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox: FakeMailbox[Ask, Answer] = FakeMailbox(body=Ask, reply=Answer)
    loop = MainLoop(requests=mailbox, handler=len)
    receive, broken = mailbox.receive, [OutcomeUnknown("fake", "the connection broke")]

    def receive_or_break(**options: Any) -> Any:
        if broken:
            raise broken.pop()
        return receive(**options)

    monkeypatch.setattr(mailbox, "receive", receive_or_break)
    with Running(LoopGroup([loop])):
        assert mailbox.request(MainLoopRequest("abc"), "30s").output == 3


# As the worker of `redrive work`.


@pytest.fixture
def in_flight_log(tmp_path: Path) -> InFlightLog:
    return InFlightLog.create(tmp_path / "log", "worker-1", 2)


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ("--url", "its mailboxes name their store; the module can take it from a variable"),
        ("--queue", "its loops name their mailboxes; make another group of those to run"),
        ("--concurrency", "each loop handles one message at a time; put more loops on a mailbox into the group"),
        ("--processes", "each process runs all loops; to run several, run the command several times"),
        ("--until-idle", r"its loops wait for messages until they are stopped; in a test, take loop\.run"),
    ],
)
def test_option_that_is_for_apps_is_refused(broker: Broker, option: str, told: str) -> None:
    launch = WorkerLaunch("mail:group", options=("--reload", option))
    with pytest.raises(InvalidInput, match=f"^{option} is not for a LoopGroup: {told}"):
        LoopGroup([loop_on(broker, "first")]).make_worker(launch, None)


def test_group_of_more_loops_than_a_worker_has_slots_is_refused(broker: Broker, in_flight_log: InFlightLog) -> None:
    group = LoopGroup([loop_on(broker, "first") for _ in range(3)])
    with pytest.raises(InvalidInput, match="up to 2 loops, not 3; make two groups"):
        group.make_worker(WorkerLaunch("mail:group"), in_flight_log)


def test_worker_records_what_it_handles_and_receives_under_the_name_of_the_log(
    broker: Broker, in_flight_log: InFlightLog
) -> None:
    go = threading.Event()
    loops = [loop_on(broker, name, lambda text: int(go.wait(30))) for name in ("first", "second")]
    worker = LoopGroup(loops).make_worker(WorkerLaunch("mail:group"), in_flight_log)
    id = loops[1].mailbox.send(MainLoopRequest("x"))
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(in_flight_log.running)
    (running,) = in_flight_log.running()
    assert (running.slot, running.id, running.label) == (1, id, "second")
    assert broker.get(id).worker == "worker-1"
    until(lambda: in_flight_log.beats and broker.workers())
    assert broker.workers()[0].queues == ("first", "second")
    go.set()
    worker.stop()
    thread.join(30)
    assert (worker.has_settled_all, in_flight_log.running(), in_flight_log.ended) == (True, [], 1)


def test_worker_is_registered_in_each_store_with_the_mailboxes_there(tmp_path: Path) -> None:
    """Two files are two stores, although both have the name of their kind; two brokers of one file are one store."""
    urls = {"first": "a.db", "second": "b.db", "third": "./b.db"}
    brokers = {name: connect(f"sqlite:///{tmp_path}/{file}") for name, file in urls.items()}
    with contextlib.ExitStack() as stack:
        for opened in brokers.values():
            stack.enter_context(opened)
        loops = [loop_on(opened, name) for name, opened in brokers.items()]
        worker = LoopGroup(loops).make_worker(WorkerLaunch("mail:group"), None)
        thread = threading.Thread(target=worker.run)
        thread.start()
        until(lambda: all(opened.workers() for opened in brokers.values()))
        registered = {name: {each.queues for each in opened.workers()} for name, opened in brokers.items()}
        worker.stop()
        thread.join(30)
    assert registered == {"first": {("first",)}, "second": {("second", "third")}, "third": {("second", "third")}}


def test_worker_that_could_not_return_what_it_held_has_not_settled_all(in_flight_log: InFlightLog) -> None:
    mailbox: FakeMailbox[Ask, Answer] = FakeMailbox(body=Ask, reply=Answer)
    go = threading.Event()
    loop = MainLoop(requests=mailbox, handler=lambda text: int(go.wait(30)))
    worker = LoopGroup([loop]).make_worker(WorkerLaunch("mail:group"), in_flight_log)
    mailbox.send(MainLoopRequest("x"))
    thread = threading.Thread(target=worker.run)
    thread.start()
    until(in_flight_log.running)
    mailbox._broker.close()
    worker.stop()
    worker.stop()
    thread.join(30)
    assert not thread.is_alive()
    assert not worker.has_settled_all
    assert in_flight_log.running()  # the next process returns it
    go.set()


def test_no_loop_receives_before_all_are_prepared(broker: Broker) -> None:
    dead, other = (Mailbox(broker, name, body=DeadLetter[Ask]) for name in ("dead", "other"))
    MainLoop(requests=Mailbox(broker, "second", body=Ask, reply=Answer), handler=len, dlq=DLQPolicy(dead)).prepare()
    first = loop_on(broker, "first")
    refused = MainLoop(requests=Mailbox(broker, "second", body=Ask, reply=Answer), handler=len, dlq=DLQPolicy(other))
    id = first.mailbox.send(MainLoopRequest("x"))
    with pytest.raises(InvalidInput, match="give all loops of a mailbox the same dead-letter mailbox"):
        LoopGroup([first, refused]).run()
    assert broker.get(id).counters.deliveries == 0


class Ticker:
    """An object of a program that a group runs: no loop on a mailbox."""

    def __init__(self, error: Exception | None = None) -> None:
        self.running = False
        self.ends = threading.Event()
        self.error = error

    def run(self) -> None:
        self.running = True
        try:
            assert self.ends.wait(10)
        finally:
            self.running = False
        if self.error is not None:
            raise self.error

    def shutdown(self, *, timeout: float) -> None:
        self.ends.set()
        until(lambda: timeout == 0 or not self.running)


class Stubborn(Ticker):
    """One whose shutdown fails the first time."""

    def shutdown(self, *, timeout: float) -> None:
        if timeout == 0:
            raise ValueError("not now")
        super().shutdown(timeout=timeout)


@pytest.mark.parametrize("other", [Ticker, Stubborn])
def test_group_runs_any_object_beside_its_loops_until_one_shutdown(broker: Broker, other: type[Ticker]) -> None:
    loop, ticker = loop_on(broker, "work"), other()
    group = LoopGroup([ticker, loop], watchdog_threshold=0.001, watchdog_interval=60)
    runs = Background(group.run)
    until(lambda: group.is_ready)
    assert group.health()["loops"][0]["mailbox"] == "work"
    assert group.health()["loops"][1] == {"loop": other.__name__, "running": True, "idle_seconds": None}
    assert group.shutdown()
    runs.result()
    assert not loop.running
    assert not ticker.running


def test_error_of_any_object_ends_the_group(broker: Broker) -> None:
    ticker = Ticker(ValueError("broken"))
    ticker.ends.set()
    with pytest.raises(ValueError, match="broken"):
        LoopGroup([loop_on(broker, "work"), ticker]).run()


def test_watchdog_sees_the_heartbeat_of_any_object(broker: Broker) -> None:
    class Silent(Ticker):
        """One that makes no progress."""

        heartbeat = type("Heartbeat", (), {"elapsed": lambda self: 9.0})()

    silent, terminated = Silent(), threading.Event()
    group = LoopGroup([silent], watchdog_threshold=8, watchdog_interval=0.001, terminate=terminated.set)
    group.run()
    assert terminated.is_set()
    assert not silent.running


@pytest.mark.parametrize("other", [object(), Ticker, type("Half", (), {"run": len, "running": False})()])
def test_object_that_cannot_be_run_is_refused(broker: Broker, other: Any) -> None:
    with pytest.raises(InvalidParameterError, match="running"):
        LoopGroup([loop_on(broker, "work"), other])


def test_work_runs_groups_with_a_loop_on_a_mailbox_only() -> None:
    with pytest.raises(InvalidInput, match=r"group\.run"):
        LoopGroup([Ticker()]).make_worker(WorkerLaunch("mail:group"), None)
