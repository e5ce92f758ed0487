"""A dead-letter queue against naive rules: two programs capture, retry, archive and restore, while time passes.

The rules say what each task must be, and the totals are counted as it happens. After each step the statistics are
compared with both: with the rules, and with a recount of all tasks that the queue lists.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from redrive import Broker, Lease
from redrive.capture import CaptureFullError, DeadLetterQueue, DeadLetterStatus, ErrorCategory, FailedTask
from redrive.errors import IdempotencyConflict, LeaseLost
from redrive.testing import FakeClock

IDS = ("a", "b", "c")
GUARDED = ("guarded-a", "guarded-b")
MAX_SIZE = 2
MINUTE, DAY = 60_000_000, 86_400_000_000
LEASE = MINUTE
MAX_LOSSES = 5
KEEP_COMPLETED, ARCHIVE_AFTER = DAY, 7 * DAY
DELAYS: dict[str, Callable[[int], int]] = {
    "linear": lambda failures: 5 * failures * MINUTE,
    "exponential": lambda failures: min(2 ** (failures - 1), 60) * MINUTE,
    "immediate": lambda failures: 1_000_000,
    "slow": lambda failures: 7 * failures * MINUTE,
}
POLICIES = ("never", "linear", "exponential", "immediate", "slow")
ERRORS: dict[str, tuple[Any, str]] = {
    "timeout": (TimeoutError("too slow"), "network"),
    "denied": (PermissionError("no"), "permission"),
    "memory": (MemoryError("none left"), "resource"),
    "odd": ("something odd", "permanent"),
    "busy": ("429 too many requests", "transient"),
}
PENDING, RETRYING, EXHAUSTED, COMPLETED, ARCHIVED = DeadLetterStatus
HERE = (PENDING, RETRYING, EXHAUSTED)
"""What `queue_size` counts."""
ENDS = ("returns", "raises", "returns a failed result")
ids = st.sampled_from(IDS)
picks = st.integers(0, 11)
pauses = st.sampled_from((0, 0, 30, 61, 61, 301, 3_601, 90_000, 700_000))


@dataclass
class Expected:
    """What the naive rules say of one task."""

    id: str
    value: int
    policy: str
    max_retries: int
    category: str
    error: str
    status: DeadLetterStatus
    failures: int = 1
    redrives: int = 0
    deliveries: int = 0
    captures: int = 1
    losses: int = 0
    due: int | None = None
    last_error: str = ""
    ended_at: int = 0
    """When it completed, or when it was exhausted."""
    lease: Lease | None = None
    deadline: int = 0
    was_exhausted: bool = False
    """Before the retry that runs, or before it was archived."""

    @property
    def retry_count(self) -> int:
        return self.failures if self.redrives else self.failures - 1

    def fail(self, now: int, text: str) -> bool:
        """A retry failed by itself. Return whether the task is exhausted by that."""
        self.failures, self.last_error = self.failures + 1, text
        if self.policy == "never" or self.failures > self.max_retries:
            self.die(now)
            return True
        self.status, self.due = PENDING, now + DELAYS[self.policy](self.failures)
        return False

    def die(self, now: int) -> None:
        self.status, self.due, self.ended_at = EXHAUSTED, None, now

    def complete(self, now: int) -> None:
        self.status, self.due, self.ended_at = COMPLETED, None, now


@dataclass
class Callback:
    """The callback of all programs: how it ends is said by task."""

    ends: dict[str, str] = field(default_factory=dict)
    runs: Counter[str] = field(default_factory=Counter)

    def __call__(self, task: Any, **extra: Any) -> Any:
        self.runs[task["id"]] += 1
        match self.ends[task["id"]]:
            case "raises":
                raise ConnectionError("down")
            case "returns a failed result":
                return {"status": "failed", "error": "down"}
        return {"status": "completed"}


class CaptureMachine(RuleBasedStateMachine):
    """Drives two programs on one store by every method, and compares after each step."""

    open_broker: Callable[[FakeClock], Broker]
    shares: ClassVar[bool] = True
    """Whether two brokers see the same tasks: in memory they do not."""
    tally: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.name = f"captured-{uuid4().hex[:8]}"
        self.callback = Callback()
        self.brokers = [type(self).open_broker(self.clock) for _ in range(2 if self.shares else 1)]
        self.programs = [self.program(broker) for broker in self.brokers]
        self.operator = DeadLetterQueue(self.brokers[0], self.name)
        """A program without a callback, as a command is."""
        self.tasks: list[Expected] = []
        self.totals: Counter[str] = Counter()
        self.turn = 0

    def program(self, broker: Broker) -> DeadLetterQueue:
        dlq = DeadLetterQueue(broker, self.name, max_size=MAX_SIZE)
        dlq.add_policy("slow", lambda failures: 7 * 60 * failures)
        dlq.set_callback(self.callback)
        return dlq

    @property
    def now(self) -> int:
        return self.clock.now()

    @property
    def dlq(self) -> DeadLetterQueue:
        """Another program at each step."""
        self.turn += 1
        return self.programs[self.turn % len(self.programs)]

    def owner(self, id: str) -> Expected | None:
        return next((task for task in self.tasks if task.id == id and task.status is not COMPLETED), None)

    def chosen(self, pick: int, ids: tuple[str, ...] = IDS) -> str:
        """One of the tasks that there are, completed or not; any id if there is none."""
        names = sorted({task.id for task in self.tasks} & set(ids)) or ids
        return names[pick % len(names)]

    def size(self) -> int:
        return sum(task.status in HERE for task in self.tasks)

    # What happens

    @rule(
        id=ids,
        value=st.sampled_from((1, 1, 1, 2)),
        policy=st.sampled_from(POLICIES),
        max_retries=st.integers(0, 3),
        error=st.sampled_from(tuple(ERRORS)),
        later=st.booleans(),
    )
    def capture(self, id: str, value: int, policy: str, max_retries: int, error: str, later: bool) -> None:
        if later:
            self.clock.advance("1s")  # the size that a program remembers is old by then
        given, category = ERRORS[error]
        owner, size, before = self.owner(id), self.size(), self.totals.copy()
        try:
            self.dlq.enqueue(id, {"id": id, "value": value}, given, policy, max_retries)
        except CaptureFullError:
            assert owner is None, "a failure of a task that is there was refused"
            assert size >= MAX_SIZE, "refused, and there is room"
            self.tally["full"] += 1
        except IdempotencyConflict as conflict:
            assert owner is not None
            assert owner.value != value
            notes = conflict.__notes__
            self.tally["conflict"] += 1
            assert str(given) in " ".join(notes), "the error of the task is hidden"
        else:
            assert owner is None or owner.value == value, "another task under a known id"
            if owner is None:
                assert size < MAX_SIZE or not later, "taken, and the queue is full"
                self.tasks.append(self.born(id, value, policy, max_retries, category, str(given)))
            else:
                if owner.due is not None and max_retries and (delay := self.first_delay(policy)):
                    owner.due = max(owner.due, self.now + delay)
                owner.last_error, owner.captures = str(given), owner.captures + 1
                self.tally["again"] += 1
            return
        assert self.totals == before

    def born(self, id: str, value: int, policy: str, max_retries: int, category: str, error: str) -> Expected:
        self.totals["enqueued_total"] += 1
        task = Expected(id, value, policy, max_retries, category, error, PENDING, last_error=error)
        if policy == "never" or not max_retries:
            task.die(self.now)
            self.totals["exhausted"] += 1
        else:
            task.due = self.now + self.first_delay(policy)
        return task

    def first_delay(self, policy: str) -> int:
        """The first retry of the policy `immediate` is one."""
        return 0 if policy in ("immediate", "never") else DELAYS[policy](1)

    @rule(ends=st.fixed_dictionaries({id: st.sampled_from(ENDS) for id in IDS}), pause=pauses)
    def run_due_tasks(self, ends: dict[str, str], pause: int) -> None:
        self.clock.advance(pause)
        self.callback.ends, self.callback.runs = ends, Counter()
        self.dlq.run_due_tasks()
        self.sweep()
        expected: Counter[str] = Counter()
        for task in self.tasks:
            while task.status is PENDING and task.due is not None and task.due <= self.now:
                expected[task.id] += 1
                task.deliveries += 1
                self.end(task, ends[task.id], self.now)
        assert self.callback.runs == expected, "tasks ran more or less often than their policies say"
        self.tally["run"] += expected.total()

    def end(self, task: Expected, how: str, now: int) -> None:
        """A retry by the processor ends."""
        if how == "returns":
            task.complete(now)
            self.totals["retry_success"] += 1
        else:
            self.totals["retry_failed"] += 1
            self.totals["exhausted"] += task.fail(now, "down")

    @rule(pick=picks, how=st.sampled_from(ENDS))
    def retry_task(self, pick: int, how: str) -> None:
        id = self.chosen(pick)
        task, self.callback.ends, self.callback.runs = self.owner(id), {id: how}, Counter()
        answer = self.dlq.retry_task(id)
        if task is None or task.status not in (PENDING, EXHAUSTED):
            assert not answer["success"]
            assert not self.callback.runs, "a task ran that cannot be retried"
            return
        assert (answer["success"], self.callback.runs[id]) == (how == "returns", 1), (
            f"{how}, and the answer is {answer}"
        )
        self.totals["manually_retried"] += 1
        task.deliveries += 1
        if how == "returns":
            task.complete(self.now)
            self.totals["retry_success"] += 1
        else:  # it is as before
            task.last_error = "down"
            task.due = None if task.due is None else max(task.due, self.now)
            self.totals["retry_failed"] += 1

    @rule(pick=picks)
    def make_due(self, pick: int) -> None:
        """An operator, whose process has no callback, asks for a retry."""
        id = self.chosen(pick)
        task = self.owner(id)
        if task is None or task.status not in (PENDING, EXHAUSTED) or (task.due is not None and task.due <= self.now):
            return
        assert "due now" in self.operator.retry_task(id)["message"]
        self.totals["manually_retried"] += 1
        task.status, task.due, task.redrives = PENDING, self.now, task.redrives + 1
        task.failures = task.losses = 0

    # Processes in the middle of a retry

    @rule(pick=picks)
    def begin_retry(self, pick: int) -> None:
        task = self.owner(self.chosen(pick))
        if task is not None and task.status in (PENDING, EXHAUSTED):
            broker = self.brokers[self.turn % len(self.brokers)]
            task.lease = broker.lease_by_id(self.shown(task).item_id, include_dead=True, lease_timeout="1m")
            task.was_exhausted, task.deadline = task.status is EXHAUSTED, self.now + LEASE
            task.deliveries += 1
            task.status, task.due = RETRYING, None

    @rule(pick=picks)
    def kill_every_process(self, pick: int) -> None:
        """A task that takes its process with it, each time."""
        for _ in range(MAX_LOSSES):
            self.begin_retry(pick)
            self.maintain(61)
            self.every_task_is_what_the_rules_say()

    @precondition(lambda self: any(task.status is RETRYING for task in self.tasks))
    @rule(pick=picks, succeeds=st.booleans())
    def end_retry(self, pick: int, succeeds: bool) -> None:
        running = [task for task in self.tasks if task.status is RETRYING]
        task = running[pick % len(running)]
        broker = self.brokers[self.turn % len(self.brokers)]
        if succeeds:
            broker.complete(task.lease)
            self.end(task, "returns", self.now)
            return
        broker.fail(task.lease, "down")
        if task.was_exhausted:
            self.totals["retry_failed"] += 1
            task.failures, task.last_error, task.status = task.failures + 1, "down", EXHAUSTED
        else:
            self.end(task, "raises", self.now)

    def sweep(self) -> None:
        """Retries whose process is gone are over, and the tasks are due."""
        for task in self.tasks:
            if task.status is RETRYING and task.deadline <= self.now:
                self.tally["lost"] += 1
                task.losses += 1
                if task.was_exhausted:
                    task.status = EXHAUSTED
                elif task.losses >= MAX_LOSSES:
                    task.die(self.now)
                    self.totals["exhausted"] += 1
                else:
                    task.status, task.due = PENDING, self.now

    @rule(pause=pauses)
    def maintain(self, pause: int) -> None:
        self.clock.advance(pause)
        self.brokers[self.turn % len(self.brokers)].run_maintenance()
        self.sweep()
        for task in list(self.tasks):
            if task.status is COMPLETED and task.ended_at + KEEP_COMPLETED <= self.now:
                self.tasks.remove(task)
            elif task.status is EXHAUSTED and task.ended_at + ARCHIVE_AFTER <= self.now:
                task.status = ARCHIVED
                self.totals["archived"] += 1
                self.tally["archived by age"] += 1

    @rule(pick=picks)
    def archive_or_restore(self, pick: int) -> None:
        id = self.chosen(pick, IDS + GUARDED)
        task = self.owner(id)
        if task is None:
            assert not self.dlq.archive_task("unknown")
        elif task.status is EXHAUSTED:
            assert self.dlq.archive_task(id)
            task.status = ARCHIVED
            self.totals["archived"] += 1
        elif task.status is ARCHIVED:
            assert self.dlq.restore_task(id)
            task.status = EXHAUSTED
            self.tally["restored"] += 1

    @precondition(lambda self: self.shares)
    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        """A program ends, and is started again."""
        self.brokers[which].close()
        self.brokers[which] = type(self).open_broker(self.clock)
        self.programs[which] = self.program(self.brokers[which])
        if not which:
            self.operator = DeadLetterQueue(self.brokers[0], self.name)
        self.tally["restart"] += 1

    @rule(id=st.sampled_from(GUARDED), denied=st.booleans())
    def guarded_call(self, id: str, denied: bool) -> None:
        """The call of a guarded function raises its own error, captured or not."""
        dlq = self.dlq
        error = PermissionError("no") if denied else TimeoutError("too slow")
        cause = KeyError("why")

        def call(value: int) -> None:
            raise error from cause

        guarded = dlq.guard(name=f"call-{uuid4().hex}", key=lambda value: id, max_retries=0)(call)
        self.clock.advance("1s")
        owner, size = self.owner(id), self.size()
        with pytest.raises((PermissionError, TimeoutError)) as caught:
            guarded(1)
        assert caught.value is error
        assert error.__cause__ is cause, "the original error has lost its cause"
        if owner is not None:
            owner.last_error, owner.captures = str(error), owner.captures + 1
        elif size >= MAX_SIZE:
            assert "is full" in " ".join(error.__notes__)
        else:
            policy, category = ("never", "permission") if denied else ("exponential", "network")
            self.tasks.append(self.born(id, 1, policy, 0, category, str(error)))

    # What must be

    def shown(self, task: Expected) -> FailedTask:
        found = self.dlq.get_task(task.id)
        assert found is not None, f"task {task.id} is lost"
        return found

    @invariant()
    def every_task_is_what_the_rules_say(self) -> None:
        listed = [each for status in DeadLetterStatus for each in self.dlq.list_tasks(status, limit=1000)]
        found = Counter(map(_seen, listed))
        wanted = Counter(map(_wanted, self.tasks))
        assert found == wanted, f"there are {found - wanted}, and there must be {wanted - found}"
        self.check_statistics(listed)

    def check_statistics(self, listed: list[FailedTask]) -> None:
        statistics = self.dlq.get_statistics()
        here = [task for task in listed if task.status in HERE]
        recount = {
            "queue_size": len(here),
            "max_size": MAX_SIZE,
            "utilization_percent": 100 * len(here) / MAX_SIZE,
            "status_breakdown": _counted(DeadLetterStatus, (task.status for task in listed)),
            "error_categories": _counted(ErrorCategory, (task.error_category for task in here)),
            "retry_policies": _counted(POLICIES, (task.retry_policy for task in here)),
        }
        statistics["retry_policies"].setdefault("slow", 0)
        counted = {name: statistics[name] for name in recount}
        assert counted == recount, f"the statistics say {counted}, and a recount {recount}"
        lifetime = statistics["lifetime_stats"]
        totals = {name: self.totals[name] for name in lifetime}
        assert lifetime == totals, f"the totals say {lifetime}, and what happened {totals}"

    @precondition(lambda self: any(task.lease is not None and task.status is not RETRYING for task in self.tasks))
    @rule()
    def late_end(self) -> None:
        """A process that was taken for gone ends its retry: that is refused, and changes nothing."""
        for task in self.tasks:
            if task.lease is not None and task.status is not RETRYING:
                with pytest.raises(LeaseLost):
                    self.brokers[0].complete(task.lease)
                task.lease = None

    def teardown(self) -> None:
        for broker in self.brokers:
            broker.close()


def _counted(names: Any, values: Any) -> dict[str, int]:
    return {**dict.fromkeys(map(str, names), 0), **Counter(map(str, values))}


def _seen(task: FailedTask) -> tuple[Any, ...]:
    return (
        *(task.task_id, task.status, task.retry_policy, task.max_retries, task.error_category, task.error),
        *(task.last_error, task.retry_count, task.total_attempts, task.next_retry_at),
    )


def _wanted(task: Expected) -> tuple[Any, ...]:
    due = None if task.due is None else datetime.fromtimestamp(task.due / 1_000_000, UTC)
    max_retries = 0 if task.policy == "never" else task.max_retries
    return (
        *(task.id, task.status, task.policy, max_retries, task.category, task.error),
        *(task.last_error, max(0, task.retry_count), task.deliveries + task.captures, due),
    )
