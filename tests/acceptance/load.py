"""Threads on several brokers that put, lease, complete and fail whatever happens, and what must be true afterwards."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from tests.acceptance.histories import Entry, Tally, check_history
from tests.acceptance.places import Broken, Standing, Where, places
from tests.acceptance.working import LATE_AT_ONCE, MAX_ATTEMPTS, QUEUE, SETTINGS

from redrive import Broker, Lease, connect
from redrive.errors import LeaseLost, OutcomeUnknown, StoreUnavailable
from redrive.testing.fake_clock import PATIENCE_SECONDS

BROKERS = 3
THREADS = 2
"""For each broker."""
REFUSED_PAUSE_SECONDS = 0.01
"""What a sensible caller waits before he tries again."""


class Load:
    """Begins when it is made. Keeps what came of each call: ok, lost, refused, unknown; anything else is a problem."""

    def __init__(self, url: str, *, brokers: int = BROKERS, threads: int = THREADS) -> None:
        self._brokers = [connect(url, maintenance=number == 0) for number in range(brokers)]
        self._brokers[0].create_queue("morgue")
        self._brokers[0].create_queue(QUEUE, **{**SETTINGS, "keep_completed": "1h"})
        self.entries: list[Entry] = []
        self.outcomes: Counter[str] = Counter()
        self.problems: list[BaseException] = []
        self.longest = 0.0
        """Seconds that the longest call took."""
        self._unsettled: set[int] = set()
        """Values whose completion has an outcome that nobody knows."""
        self._values = itertools.count()
        self._news = threading.Condition()
        self._since: dict[tuple[int, str], int] = {}
        """When the last call of a kind began that was answered, for each thread."""
        self._stop = False
        self._threads = [
            threading.Thread(target=self._run, args=(number, self._brokers[number % brokers]), daemon=True)
            for number in range(brokers * threads)
        ]
        for thread in self._threads:
            thread.start()

    def wait_until(self, condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> float:
        """Wait until something is true of what was done, at most so long. Gives how long it took."""
        begun = time.monotonic()
        with self._news:
            assert self._news.wait_for(lambda: condition() or bool(self.problems), seconds), f"{self.outcomes}"
        assert not self.problems, self.problems
        return time.monotonic() - begun

    def resumes(self) -> float:
        """Wait until every thread has put and looked, and items were leased and completed, all begun after now."""
        now = time.monotonic_ns()
        numbers = range(len(self._threads))

        def at_work() -> bool:
            each = all(self._since.get((number, call), 0) > now for number in numbers for call in ("put", "stats"))
            return each and all(any(self._since.get((n, call), 0) > now for n in numbers) for call in ("complete",))

        return self.wait_until(at_work)

    def stop(self) -> None:
        """Let every thread end its round, and close the brokers."""
        self._stop = True
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive(), "a call hangs"
        for broker in self._brokers:
            broker.close()

    def finish(self, url: str, where: Where | None = None) -> Tally:
        """Stop, work off what is left, and check what there is against what was acknowledged.

        `where` is where it is, if a server has it.
        """
        self.stop()
        assert not self.problems, self.problems
        with connect(url, maintenance=False) as broker:
            end = time.monotonic() + PATIENCE_SECONDS
            while (stats := broker.stats(QUEUE)).pending + stats.failed + stats.active:
                assert time.monotonic() < end, f"not worked off: {stats}"
                broker.run_maintenance()
                for lease in broker.lease(QUEUE, 100):
                    self._write("lease", "ok", lease)
                    self._complete(broker, lease)
            completed_total = broker.stats(QUEUE).completed_total
        standings = places(url if where is None else where)
        self._check_all(standings, completed_total)
        return check_history(self.entries, [each for each in standings if each.status != "completed"], MAX_ATTEMPTS)

    def _check_all(self, standings: list[Standing], completed_total: int) -> None:
        """Completed items are kept, so every item that was ever put is there, and once."""
        there = Counter(int(standing.payload) for standing in standings)
        put = {value for entry in self.entries if entry.call == "put" for value in entry.values if entry.phase == "ok"}
        invoked = {value for entry in self.entries if entry.call == "put" for value in entry.values}
        done = {entry.values[0] for entry in self.entries if (entry.call, entry.phase) == ("complete", "ok")}
        completed = {int(standing.payload) for standing in standings if standing.status == "completed"}
        for problem, values in (
            ("are there twice", [value for value, count in there.items() if count > 1]),
            ("were acknowledged and are lost", put - there.keys()),
            ("are there, and their put was refused, or nobody put them", there.keys() - invoked),
            ("were completed, and are not", done - completed),
            ("are completed, and nobody did it", completed - done - self._unsettled),
        ):
            if values:
                raise Broken(f"{len(values)} items {problem}: {sorted(values)[:5]}")
        if completed_total != len(completed):
            raise Broken(f"{completed_total} completions were counted, and {len(completed)} items are completed")

    def _run(self, number: int, broker: Broker) -> None:
        worker = _Rounds(self, number, broker)
        try:
            while not self._stop:
                worker.round()
        except BaseException as problem:
            with self._news:
                self.problems.append(problem)
                self._news.notify_all()

    def call(self, number: int, name: str, do: Callable[[], Any]) -> tuple[str, int, Any]:
        """Make a call. Gives what came of it, when it began, and its result."""
        begun, result = time.monotonic_ns(), None
        try:
            result, outcome = do(), "ok"
        except LeaseLost as lost:
            result, outcome = lost, "lost"
        except OutcomeUnknown:
            outcome = "unknown"
        except StoreUnavailable:
            outcome = "refused"
        if name == "stats" and outcome == "unknown":
            raise AssertionError("a query changes nothing: its outcome is known")
        with self._news:
            self.longest = max(self.longest, (time.monotonic_ns() - begun) / 1e9)
            self.outcomes[f"{name} {outcome}"] += 1
            if outcome == "ok" and (name != "lease" or result):
                self._since[number, name] = begun
            self._news.notify_all()
        if outcome == "refused":
            time.sleep(REFUSED_PAUSE_SECONDS)
        return outcome, begun, result

    def next_value(self) -> int:
        return next(self._values)

    def put(self, outcome: str, begun: int, value: int) -> None:
        """Write down a put. One that was refused did not happen."""
        if outcome != "refused":
            self.entries.append(Entry(begun, "put", "invoke", values=[value]))
        if outcome == "ok":
            self.entries.append(Entry(time.monotonic_ns(), "put", "ok", values=[value]))

    def settled(self, call: str, outcome: str, begun: int, lease: Lease) -> None:
        """Write down the end of a delivery. One that was refused, or came too late, changed nothing."""
        if outcome in ("ok", "unknown"):
            self._write(call, "invoke", lease, begun)
        if outcome in ("ok", "lost"):
            self._write(call, outcome, lease)
        if (call, outcome) == ("complete", "unknown"):
            self._unsettled.add(lease.value)

    def leased(self, lease: Lease) -> None:
        """Write down a delivery."""
        self._write("lease", "ok", lease)

    def _complete(self, broker: Broker, lease: Lease) -> None:
        begun = time.monotonic_ns()
        try:
            broker.complete(lease)
        except LeaseLost:  # a slow machine
            return
        self.settled("complete", "ok", begun, lease)

    def _write(self, call: str, phase: str, lease: Lease, at: int | None = None) -> None:
        numbers = {"delivery": lease.deliveries, "attempts": lease.attempts}
        when = time.monotonic_ns() if at is None else at
        self.entries.append(Entry(when, call, phase, values=[lease.value], ids=[lease.id], **numbers))


class _Rounds:
    """What one thread does."""

    def __init__(self, load: Load, number: int, broker: Broker) -> None:
        self._load = load
        self._number = number
        self._broker = broker
        self._random = random.Random(number)
        self._again: int | None = None
        """A value whose put has an outcome that nobody knows, and a key under which it can be repeated."""
        self._late: list[Lease] = []

    def round(self) -> None:
        """One put, some leases, their ends, and a look."""
        self._put()
        wait = "50ms" if self._random.random() < 0.3 else 0
        _, _, leases = self._call("lease", lambda: self._broker.lease(QUEUE, 3, wait=wait))
        for lease in leases or ():
            self._load.leased(lease)
        for lease in leases or ():
            self._settle(lease)
        self._call("stats", lambda: self._broker.stats(QUEUE))

    def _put(self) -> None:
        value = self._load.next_value() if self._again is None else self._again
        key = f"item {value}" if value % 3 == 0 else None
        outcome, begun, _ = self._call("put", lambda: self._broker.put(QUEUE, value, idempotency_key=key))
        self._again = value if key is not None and outcome in ("unknown", "refused") else None
        self._load.put(outcome, begun, value)

    def _settle(self, lease: Lease) -> None:
        draw = self._random.random()
        if draw < 0.02:
            return  # its lease runs out
        if draw < 0.06:
            self._late.append(lease)  # settled when somebody else may have the item
            if len(self._late) <= LATE_AT_ONCE:
                return
            lease = self._late.pop(0)
        call = "complete" if draw < 0.8 else "fail"
        # What was refused or is unknown is tried once more, as a worker would: at most one of the two is accepted.
        for _ in range(2):
            outcome, begun, _ = self._call(call, lambda: self._end(call, lease))
            self._load.settled(call, outcome, begun, lease)
            if outcome in ("ok", "lost"):
                return

    def _end(self, call: str, lease: Lease) -> None:
        if call == "complete":
            self._broker.complete(lease)
        else:
            self._broker.fail(lease, ValueError("boom"))

    def _call(self, name: str, do: Callable[[], Any]) -> tuple[str, int, Any]:
        return self._load.call(self._number, name, do)
