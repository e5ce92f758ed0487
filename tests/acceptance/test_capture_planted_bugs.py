"""Each of these plants a bug into capture, and what checks capture must find it: the naive rules of random
histories, or the check of a campaign of kills."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.acceptance.places import Broken
from tests.acceptance.test_capture_killed import Run, check_task
from tests.simulation.capture_machine import IDS, CaptureMachine

from redrive import connect
from redrive.broker import core, maintenance
from redrive.broker.flow import run_query
from redrive.broker.flows import manual_changes
from redrive.capture import (
    CaptureFullError,
    DeadLetterStatus,
    FailedTask,
    calls,
    capture_alerts,
    capture_queue,
    captured_task,
    flows,
)
from redrive.capture.capture_alerts import QueueLevels
from redrive.capture.capture_queue import QUEUE_SETTINGS
from redrive.capture.guard import Guard
from redrive.capture.manual_retry import ManualRetry
from redrive.contract.queries import FindItems
from redrive.model.filter import Filter, Order
from redrive.model.item import Status
from redrive.model.judge import Dead, OutcomeKind
from redrive.model.state_machine import Verb

Plant = Callable[[pytest.MonkeyPatch], None]


def forget_a_task_in_retry(patch: pytest.MonkeyPatch) -> None:
    """The process died in the middle of a retry, and no other one notices."""

    def settle_nothing(core: Any, queue: str | None = None) -> Iterator[Any]:
        yield from ()
        return 0, 0

    patch.setattr(maintenance, "settle_overdue", settle_nothing)


def use_up_a_retry_by_a_loss(patch: pytest.MonkeyPatch) -> None:
    judged = core.judge

    def judge(settings: Any, outcome_kind: OutcomeKind, counters: Any, **options: Any) -> Any:
        return judged(
            settings, OutcomeKind.FAILED if outcome_kind is OutcomeKind.LOST else outcome_kind, counters, **options
        )

    patch.setattr(core, "judge", judge)


def count_a_retry_twice(patch: pytest.MonkeyPatch) -> None:
    judged = core.judge

    def judge(settings: Any, outcome_kind: OutcomeKind, counters: Any, **options: Any) -> Any:
        twice = msgspec.structs.replace(counters, failures=counters.failures + (counters.failures > 1))
        return judged(settings, outcome_kind, twice, **options)

    patch.setattr(core, "judge", judge)


def show_a_retry_twice(patch: pytest.MonkeyPatch) -> None:
    counted = captured_task.retry_count
    patch.setattr(captured_task, "retry_count", lambda item: 2 * counted(item))


def drop_when_full(patch: pytest.MonkeyPatch) -> None:
    """The oldest task makes room."""
    check = QueueLevels.check_room

    def make_room(self: QueueLevels, core: Any) -> Iterator[Any]:
        try:
            yield from check(self, core)
        except CaptureFullError:
            page = yield from run_query(FindItems(Filter(queue=self.queue, status=Status.DEAD), Order.OLDEST, 1))
            for item in page.items:
                yield from manual_changes.change(core, Verb.DROP, item.id, None)

    patch.setattr(QueueLevels, "check_room", make_room)


def ignore_the_limit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(capture_alerts, "size_of", lambda stats: stats.pending + stats.failed + stats.active)


def never_archive(patch: pytest.MonkeyPatch) -> None:
    kept = {name: value for name, value in QUEUE_SETTINGS.items() if name != "archive_after"}
    patch.setattr(capture_queue, "QUEUE_SETTINGS", kept)


def count_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Each program counts what it has captured itself, and forgets that with its end."""
    statistics, capture = flows.statistics, flows.capture
    counted: Counter[int] = Counter()

    def count(core: Any, *args: Any) -> Iterator[Any]:
        receipt = yield from capture(core, *args)
        counted[id(core)] += receipt.is_new
        return receipt

    def remembered(core: Any) -> Callable[..., Iterator[Any]]:
        def read(*args: Any) -> Iterator[Any]:
            found = yield from statistics(*args)
            found["lifetime_stats"]["enqueued_total"] = counted[id(core)]
            return found

        return read

    run = capture_queue.CaptureQueue.open

    def opened(self: Any) -> Iterator[Any]:
        patch.setattr(flows, "statistics", remembered(self.core))
        yield from run(self)

    patch.setattr(flows, "capture", count)
    patch.setattr(capture_queue.CaptureQueue, "open", opened)


def swallow_the_original_error(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Guard, "_is_handled", lambda self, task_id, error: True)


def raise_the_problem_instead(patch: pytest.MonkeyPatch) -> None:
    """A full queue hides the error of the call."""

    def report(self: Any, error: BaseException, problem: Exception) -> None:
        raise problem

    patch.setattr(Guard, "_report_problem", report)


def take_a_failed_result_for_a_success(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(calls, "FAILED", frozenset())


def forget_manual_retries(patch: pytest.MonkeyPatch) -> None:
    def count(self: Any) -> Iterator[Any]:
        yield from ()

    patch.setattr(ManualRetry, "count", count)


def use_up_a_retry_by_hand(patch: pytest.MonkeyPatch) -> None:
    """A manual retry that fails exhausts the task."""
    patch.setattr("redrive.capture.manual_retry.RetryVerdict", lambda *_: Dead())


def open_machine(url: str) -> CaptureMachine:
    class Machine(CaptureMachine):
        """On one store."""

        open_broker = staticmethod(lambda clock: connect(url, clock=clock, maintenance=False, durability="relaxed"))
        shares = url != "memory://"

    Machine.tally = Counter()
    return Machine()


def live(machine: CaptureMachine) -> None:
    """A history with all that can happen, checked after each step."""
    down, failed = dict.fromkeys(IDS, "raises"), dict.fromkeys(IDS, "returns a failed result")
    steps: list[Callable[[], object]] = [
        lambda: machine.capture("a", 1, "linear", 3, "timeout", True),
        lambda: machine.capture("b", 1, "never", 3, "denied", True),
        lambda: machine.capture("c", 1, "linear", 3, "odd", True),  # full
        lambda: machine.guarded_call("guarded-a", denied=True),  # full
        lambda: machine.run_due_tasks(down, 301),
        lambda: machine.run_due_tasks(failed, 3601),
        lambda: machine.retry_task(0, "raises"),
        lambda: machine.restart(1) if machine.shares else None,
        lambda: machine.begin_retry(0),
        lambda: machine.maintain(61),
        lambda: machine.begin_retry(0),
        lambda: machine.end_retry(0, succeeds=True),
        lambda: machine.maintain(700_000),  # b is archived
        lambda: machine.guarded_call("guarded-a", denied=True),
        lambda: machine.capture("c", 1, "exponential", 1, "busy", True),
        lambda: machine.run_due_tasks(dict.fromkeys(IDS, "returns"), 61),
    ]
    try:
        for step in steps:
            step()
            machine.every_task_is_what_the_rules_say()
    finally:
        machine.teardown()


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_history_without_a_bug_passes(store: str, tmp_path: Path) -> None:
    machine = open_machine("memory://" if store == "memory" else f"sqlite:///{tmp_path}/calls.db")
    live(machine)
    assert (machine.tally["full"], machine.tally["lost"], machine.tally["run"]) == (1, 1, 3)


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (forget_a_task_in_retry, "RETRYING.* there must be .*PENDING"),
        (use_up_a_retry_by_a_loss, "there must be"),
        (count_a_retry_twice, "there must be"),
        (show_a_retry_twice, "there must be"),
        (drop_when_full, "the queue is full"),
        (ignore_the_limit, "the statistics say .*, and a recount"),
        (never_archive, "EXHAUSTED.* there must be .*ARCHIVED"),
        (count_in_memory, "the totals say .*, and what happened"),
        (swallow_the_original_error, "DID NOT RAISE"),
        (raise_the_problem_instead, "is full: it has"),
        (take_a_failed_result_for_a_success, "there must be"),
        (forget_manual_retries, "the totals say .*, and what happened"),
        (use_up_a_retry_by_hand, "EXHAUSTED.* there must be .*PENDING"),
    ],
)
def test_planted_bug_is_found(plant: Plant, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    machine = open_machine(f"sqlite:///{tmp_path}/calls.db" if plant is count_in_memory else "memory://")
    with pytest.raises((AssertionError, pytest.fail.Exception, CaptureFullError), match=found):
        live(machine)


# Runs of a campaign

DONE, KILLED = 1, 9
OK, FAILED = Run(DONE, "ok"), Run(DONE, "failed")


def ended(status: str, retries: int = 0, attempts: int = 1) -> FailedTask:
    """A task with 3 retries."""
    return FailedTask(
        task_id="one",
        task=1,
        failed_at=datetime.now(UTC),
        status=DeadLetterStatus(status),
        retry_count=retries,
        total_attempts=attempts + 1,
    )


@pytest.mark.parametrize(
    ("found", "task", "losses", "runs"),
    [
        ("is retrying", ended("retrying"), 0, [Run(KILLED, "")]),
        ("is pending", ended("pending"), 0, []),
        ("no run of it succeeded", ended("completed"), 0, [FAILED]),
        ("no run of it succeeded", ended("completed"), 1, [Run(KILLED, "")]),
        ("exhausted after 1 retries", ended("exhausted", 1), 0, [FAILED]),
        ("has no end", ended("completed", 0, 2), 1, [Run(DONE, ""), OK]),
        ("ran 4 times, with 3 retries and 0 kills", ended("exhausted", 3, 4), 0, [FAILED] * 4),
        ("ran 5 times, with 3 retries and 1 kills", ended("exhausted", 3, 5), 1, [Run(KILLED, ""), *[FAILED] * 4]),
        ("counts 2 failed retries, and 1 runs failed", ended("completed", 2, 2), 0, [FAILED, OK]),
        ("counts 0 failed retries, and 1 runs failed", ended("completed", 0, 2), 0, [FAILED, OK]),
        ("counts 1 attempts and 0 losses, and ran 2 times", ended("completed", 1, 1), 0, [FAILED, OK]),
        ("counts 3 attempts and 0 losses, and ran 1 times", ended("completed", 0, 3), 0, [OK]),
    ],
)
def test_runs_that_must_not_be_are_found(found: str, task: FailedTask, losses: int, runs: list[Run]) -> None:
    with pytest.raises(Broken, match=found):
        check_task(task, task.total_attempts - 1, losses, runs, {KILLED})


@pytest.mark.parametrize(
    ("task", "losses", "runs"),
    [
        (ended("completed"), 0, [OK]),
        (ended("completed", 2, 3), 0, [FAILED, FAILED, OK]),
        (ended("exhausted", 3, 3), 0, [FAILED] * 3),
        (ended("completed", 0, 2), 1, [Run(KILLED, ""), OK]),
        (ended("completed", 0, 2), 1, [Run(KILLED, "failed"), OK]),  # killed before that was settled
        (ended("completed", 0, 2), 1, [OK]),  # killed before it began
        (ended("exhausted", 0, 5), 5, [Run(KILLED, "")]),
    ],
)
def test_runs_that_may_be_are_accepted(task: FailedTask, losses: int, runs: list[Run]) -> None:
    check_task(task, task.total_attempts - 1, losses, runs, {KILLED})
