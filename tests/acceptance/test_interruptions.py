"""An exception at any point: what is reported is true, and no other thread waits for ever.

Signal handlers raise in the main thread, which is where pytest runs these tests.
"""

from __future__ import annotations

import contextlib
import gc
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.acceptance.interruptions import Interrupter, Interruption, Point, every_point, fork_and_wait, interrupt
from tests.servers.http import HttpServer
from tests.sizes import THOROUGH
from tests.until import until

from redrive import Broker, connect
from redrive.errors import Closed, OutcomeUnknown, RedriveError
from redrive.testing.conformance.actions import Background
from redrive.testing.fake_clock import PATIENCE_SECONDS

POINTS = pytest.mark.parametrize("point", [Point.LINE, Point.CALL])
OWN_POINTS = pytest.mark.parametrize("point", [Point.LINE, Point.OWN_CALL])
STORES = ("memory", "sqlite", "postgres", "redis", "http")
SIGNALS = 20_000 if THOROUGH else 300

pytestmark = pytest.mark.timeout(3600 if THOROUGH else 600)


@pytest.fixture(autouse=True)
def hush(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is raised while something is destroyed reaches no caller, and nothing is wrong."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    yield
    gc.collect()


@pytest.fixture(scope="module")
def http_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for all tests, each of which has a namespace of its own."""
    folder = tmp_path_factory.mktemp("server")
    server = HttpServer(f"sqlite:///{folder}/jobs.db", folder)
    yield server.url
    server.stop()


@pytest.fixture(params=STORES)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{tmp_path}/jobs.db"
        case store:
            found: str = request.getfixturevalue(f"{store}_url")
            return found


@pytest.fixture(autouse=True)
def installed_handler() -> Iterator[None]:
    signal.signal(signal.SIGUSR1, interrupt)
    yield
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # one that comes late would end the process


@pytest.fixture
def broker(url: str) -> Iterator[Broker]:
    with connect(url, maintenance=False, namespace=f"test-{uuid4().hex}") as broker:
        for queue in ("jobs", "others"):
            broker.create_queue(queue)
        yield broker


def _stride(url: str, fewer: tuple[str, ...] = ("postgres", "redis")) -> int:
    """Every point where they are few or cheap; elsewhere a share of them, unless there is time."""
    return 7 if url.startswith(fewer) and not THOROUGH else 1


# In the thread that commits: what is reported is true.


def _strike_in_commit(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> Callable[[Interrupter | None], None]:
    """Lets an interrupter loose in whatever thread commits, from before BEGIN until the results are delivered."""
    committer: Any = broker.core.committer
    commit, loose = committer._commit, [None]

    def struck(calls: Any) -> Any:
        interrupter: Any = loose[0]
        return commit(calls) if interrupter is None else interrupter.run(lambda: commit(calls))

    def set_loose(interrupter: Any) -> None:
        loose[0] = interrupter

    monkeypatch.setattr(committer, "_commit", struck)
    return set_loose


def _until_carried_out(broker: Broker) -> None:
    """Wait for a COMMIT that was sent, and whose answer has no reader: no change of a queue runs beside it."""
    broker.resume_queue("others")


def _outcome(work: Callable[[], Any]) -> str:
    try:
        work()
    except (OutcomeUnknown, Interruption):
        return "unknown"
    except RedriveError:
        return "refused"
    return "done"


TRUE_COUNTS = {"done": {1}, "refused": {0}, "unknown": {0, 1}}


@OWN_POINTS
def test_put_that_is_struck_while_it_commits_is_reported_as_it_is(
    broker: Broker, url: str, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loose = _strike_in_commit(broker, monkeypatch)
    seen: set[str] = set()

    def attempt(interrupter: Interrupter) -> None:
        set_loose(interrupter)
        outcome = _outcome(lambda: broker.put("jobs", 1))
        set_loose(None)
        seen.add(outcome)
        _until_carried_out(broker)
        there = broker.lease("jobs", 10)
        assert len(there) in TRUE_COUNTS[outcome], f"{outcome}, and there {len(there)} times; point {interrupter.count}"
        for lease in there:
            broker.complete(lease)

    assert every_point(point, attempt, stride=_stride(url)) > 10
    assert seen >= {"done", "unknown"}


@OWN_POINTS
@pytest.mark.parametrize("url", STORES[1:], indirect=True)  # memory has no way back from the middle of a call
def test_completion_that_is_struck_while_it_commits_is_reported_as_it_is(
    broker: Broker, url: str, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_loose = _strike_in_commit(broker, monkeypatch)

    def attempt(interrupter: Interrupter) -> None:
        broker.put("jobs", 1)
        (lease,) = broker.lease("jobs")
        set_loose(interrupter)
        outcome = _outcome(lambda: broker.complete(lease, puts=[("others", 2)]))
        set_loose(None)
        _until_carried_out(broker)
        followed = broker.lease("others", 10)
        done = 1 - broker.stats("jobs").active
        assert done in TRUE_COUNTS[outcome], f"{outcome}; point {interrupter.count}"
        assert len(followed) == done, "completion and follow-up are one transaction"
        for each in (*followed, *(() if done else (lease,))):
            broker.complete(each)

    assert every_point(point, attempt, stride=_stride(url)) > 10


@OWN_POINTS
def test_calls_of_others_in_a_transaction_that_is_struck_are_reported_as_they_are(
    broker: Broker, url: str, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three threads whose puts share a transaction; each is done, refused or unknown by itself."""
    set_loose = _strike_in_commit(broker, monkeypatch)
    committer: Any = broker.core.committer

    def attempt(interrupter: Interrupter) -> None:
        committer._busy = True  # as if another thread were committing
        puts = [Background(lambda n=n: _outcome(lambda: broker.put("jobs", n))) for n in range(3)]
        until(lambda: committer.waiting_calls == 3)
        set_loose(interrupter)
        committer._hand_over()
        outcomes = [put.result() for put in puts]
        set_loose(None)
        _until_carried_out(broker)
        there = broker.lease("jobs", 10)
        for n, outcome in enumerate(outcomes):
            count = sum(lease.value == n for lease in there)
            assert count in TRUE_COUNTS[outcome], f"{outcome}, and there {count} times; point {interrupter.count}"
        for lease in there:
            broker.complete(lease)

    assert every_point(point, attempt, stride=_stride(url)) > 10


# In the main thread: the others go on.


class Others:
    """Three threads that use the same broker: two work through a queue, one waits for items of another one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stopped = False
        self._rounds = [0, 0, 0]
        self._threads = [threading.Thread(target=self._work, args=(n,), daemon=True) for n in range(3)]
        for thread in self._threads:
            thread.start()

    def _work(self, n: int) -> None:
        with contextlib.suppress(Closed):
            while not self._stopped:
                if n < 2:
                    self._broker.put("others", n)
                for lease in self._broker.lease("others" if n < 2 else "jobs", wait=0 if n < 2 else 3600):
                    self._broker.complete(lease)
                self._rounds[n] += 1

    def go_on(self) -> None:
        """Each of them ends a round that it begins now, or has begun already and another one."""
        before = tuple(self._rounds)
        self._broker.put("jobs", "for the one that waits")
        self._broker.put("jobs", "and once more")
        until(lambda: all(now >= then + 2 for now, then in zip(self._rounds, before, strict=True)))

    def stop(self) -> None:
        self._stopped = True
        with contextlib.suppress(Closed):
            self._broker.put("jobs", "the last one")
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


def _put(broker: Broker) -> None:
    broker.put("mine", 1)


def _lease(broker: Broker) -> None:
    broker.lease("mine", wait=0.001)


def _lease_in_line(broker: Broker) -> None:
    """Stands in line with the other thread that waits there, and is woken or not."""
    broker.lease("jobs", wait=0.001)


def _complete(broker: Broker) -> None:
    for lease in broker.lease("mine"):
        broker.complete(lease)


def _fail(broker: Broker) -> None:
    for lease in broker.lease("mine"):
        broker.fail(lease, ValueError("boom"))


@POINTS
@pytest.mark.parametrize("call", [_put, _lease, _lease_in_line, _complete, _fail])
def test_interrupted_main_thread_lets_the_others_go_on(
    broker: Broker, url: str, call: Callable[[Broker], None], point: Point
) -> None:
    broker.create_queue("mine")
    others = Others(broker)

    def attempt(interrupter: Interrupter) -> None:
        if call in (_complete, _fail):
            broker.put("mine", 1)
        with contextlib.suppress(Interruption):
            interrupter.run(lambda: call(broker))
        others.go_on()

    every_point(point, attempt, stride=_stride(url, ("postgres", "redis", "http")))
    others.stop()


@pytest.mark.parametrize("url", ["memory", "sqlite"], indirect=True)
def test_leases_that_an_interrupted_main_thread_does_not_get_are_returned(broker: Broker) -> None:
    def attempt(interrupter: Interrupter) -> None:
        broker.put("jobs", 1)
        leases: list[Any] = []
        with contextlib.suppress(Interruption):
            leases = interrupter.run(lambda: broker.lease("jobs"))
        until(lambda: broker.stats("jobs").active == len(leases))
        for lease in leases or broker.lease("jobs"):
            broker.complete(lease)

    assert every_point(Point.CALL, attempt) > 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_interrupted_fork_lets_the_others_go_on(broker: Broker) -> None:
    """Python reports what is raised there, and goes on."""
    others = Others(broker)

    def attempt(interrupter: Interrupter) -> None:
        interrupter.run(fork_and_wait)
        others.go_on()

    assert every_point(Point.LINE, attempt) > 10
    others.stop()


@POINTS
def test_interrupted_close_lets_the_others_end(point: Point, tmp_path: Path) -> None:
    names = iter(range(1_000_000))

    def attempt(interrupter: Interrupter) -> None:
        broker = connect(f"sqlite:///{tmp_path}/{next(names)}.db", durability="relaxed")
        for queue in ("jobs", "others"):
            broker.create_queue(queue)
        others = Others(broker)
        with contextlib.suppress(Interruption):
            interrupter.run(broker.close)
        broker.close()
        others.stop()

    every_point(point, attempt)


def test_signals_that_raise_at_any_time_lose_nothing_and_stop_no_other_thread(broker: Broker) -> None:
    """A real signal, as often as the system delivers it, with a handler that raises."""
    broker.create_queue("mine")
    others = Others(broker)
    dice, main, over = random.Random(1), threading.get_ident(), threading.Event()
    armed = False

    def handler(number: int, frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise Interruption

    def send() -> None:
        while not over.wait(dice.random() * 0.002):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handler)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    acknowledged: list[int] = []
    interrupted = 0
    n = 0
    try:
        while interrupted < SIGNALS:
            n += 1
            try:
                armed = True
                receipt = broker.put("mine", n)
                armed = False
            except Interruption:
                interrupted += 1
            else:
                assert receipt is not None
                acknowledged.append(n)
    finally:
        armed = False
        over.set()
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    others.go_on()
    others.stop()
    there: list[int] = []
    while leases := broker.lease("mine", 1000):
        there += [lease.value for lease in leases]
        for lease in leases:
            broker.complete(lease)
    assert len(there) == len(set(there)), "an interrupted put is there at most once"
    assert set(acknowledged) <= set(there), "an acknowledged put is there"
