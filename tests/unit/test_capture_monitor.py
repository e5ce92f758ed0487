"""What a capture queue reports: metrics, log events, and alerts by their thresholds."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Broker, connect
from redrive.broker.flow import perform_effect
from redrive.broker.flows import registrations
from redrive.capture import Alert, AlertKind, AlertThresholds, DeadLetterQueue, FailedTask
from redrive.capture import capture_hooks as hooks
from redrive.capture.capture_alerts import AlertWatch, QueueLevels
from redrive.clock import Instant
from redrive.errors import InvalidInput, InvalidSetting, StoreUnavailable
from redrive.model.duration import MINUTE
from redrive.telemetry.metrics import CAPTURE_ALERTS, CAPTURE_EVENTS, CAPTURE_UTILIZATION, HANDLER_SECONDS
from redrive.testing import FakeClock
from redrive.testing.fake_clock import PATIENCE_SECONDS


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with connect("memory://", maintenance=False, clock=clock) as broker:
        assert broker.metrics
        yield broker


@pytest.fixture
def dlq(broker: Broker) -> Iterator[DeadLetterQueue]:
    with DeadLetterQueue(broker, max_size=10, alerts=AlertThresholds(exhausted=0)) as dlq:
        yield dlq


def counted(broker: Broker, metric: Any) -> dict[tuple[str, ...], Any]:
    found = {}
    for what, labels, value in broker.metrics.read():
        if what is metric:
            found[labels] = value
    return found


def failing(task: Any) -> None:
    raise ConnectionError("secret=hunter2hunter2")


@pytest.mark.parametrize("strategy", ["manual", "disabled", "selective"])
def test_failure_that_the_strategy_leaves_in_a_result_is_logged_and_counted(
    dlq: DeadLetterQueue, broker: Broker, caplog: pytest.LogCaptureFixture, strategy: str
) -> None:
    dlq.set_strategy(strategy)

    def denied(task: Any) -> None:
        raise PermissionError("no")

    result = dlq.execute_with_dlq(denied, {})
    assert (result["status"], result["dlq_enqueued"]) == ("failed", False)
    (line,) = [record.getMessage() for record in caplog.records if "failure_not_captured" in record.getMessage()]
    assert f"strategy={strategy}" in line
    assert "error=no" in line
    assert counted(broker, CAPTURE_EVENTS) == {("captured", "not_captured"): 1}


def test_links_between_tasks_are_refused(dlq: DeadLetterQueue) -> None:
    with pytest.raises(InvalidInput, match="depends_on is not supported"):
        dlq.enqueue("a", {}, "timeout", depends_on=["b"])
    with pytest.raises(InvalidInput, match="depends_on is not supported"):
        dlq.execute_with_dlq(failing, {}, depends_on=["b"])
    assert dlq.list_tasks() == []


def test_every_event_is_counted(dlq: DeadLetterQueue, broker: Broker, clock: FakeClock) -> None:
    outcomes = [ConnectionError("x"), None, None]

    def callback(task: Any) -> None:
        if (error := outcomes.pop(0)) is not None:
            raise error

    dlq.set_callback(callback)
    dlq.enqueue("a", {}, "timeout")
    clock.advance("1m")
    dlq.run_due_tasks()
    clock.advance("1h")
    dlq.run_due_tasks()
    dlq.enqueue("b", {}, "timeout", max_retries=0)
    assert counted(broker, CAPTURE_UTILIZATION) == {("captured",): 0.1}
    for change in (dlq.archive_task, dlq.restore_task, dlq.retry_task):
        dlq.shutdown()  # waits for hooks and alerts
        change("b")
    dlq.shutdown()
    events = {event: count for (_, event), count in counted(broker, CAPTURE_EVENTS).items()}
    assert events == {"captured": 2, "retried": 3, "succeeded": 2, "exhausted": 1, "archived": 1, "restored": 1}
    assert counted(broker, CAPTURE_ALERTS) == {("captured", "exhausted"): 2}
    assert counted(broker, CAPTURE_UTILIZATION) == {("captured",): 0.0}
    retries = {labels[2]: sum(found.counts) for labels, found in counted(broker, HANDLER_SECONDS).items()}
    assert retries == {"failed": 1, "completed": 2}


def test_events_of_the_log_have_no_payload_and_no_text(
    dlq: DeadLetterQueue, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    dlq.set_callback(failing)
    with caplog.at_level(logging.INFO, "redrive.capture"):
        dlq.enqueue("a", {"body": "marker"}, ConnectionError("marker"), max_retries=1, metadata={"m": "marker"})
        clock.advance("1m")
        dlq.run_due_tasks()
        dlq.shutdown()
    records: list[Any] = [record for record in caplog.records if record.name == "redrive.capture"]
    assert [record.event for record in records] == ["task_captured", "task_retried", "task_exhausted", "capture_alert"]
    fields = {"queue": "captured", "task_id": "a", "category": "network", "policy": "exponential"}
    assert fields.items() <= records[0].fields.items()
    assert records[1].fields["error_type"] == "ConnectionError"
    assert records[3].fields == {"queue": "captured", "alert": "exhausted", "value": 1, "threshold": 0}
    assert "marker" not in caplog.text
    assert "hunter2" not in caplog.text


def test_error_of_a_hook_is_logged(dlq: DeadLetterQueue, caplog: pytest.LogCaptureFixture) -> None:
    @dlq.on_captured
    def broken(task: FailedTask) -> None:
        raise KeyError("x")

    dlq.enqueue("a", {}, "timeout")
    dlq.shutdown()
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.event == "capture_hook_failed"  # type: ignore[attr-defined]
    assert record.fields["on"] == "captured"  # type: ignore[attr-defined]
    assert "broken" in record.fields["hook"]  # type: ignore[attr-defined]


def test_calls_beyond_the_limit_are_skipped_and_logged(
    dlq: DeadLetterQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "MAX_WAITING", 2)
    began, end, calls = threading.Event(), threading.Event(), []

    @dlq.on_captured
    def slow(task: FailedTask) -> None:
        began.set()
        assert end.wait(PATIENCE_SECONDS)
        calls.append(task.task_id)

    dlq.enqueue("a", {}, "timeout")
    assert began.wait(PATIENCE_SECONDS)
    for name in ("b", "c", "d"):
        dlq.enqueue(name, {}, "timeout")
    end.set()
    dlq.shutdown()
    assert calls == ["a", "b", "c"]
    assert "hook_skipped" in caplog.text


def test_check_of_alerts_that_was_skipped_is_made_later(dlq: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    fired: list[Alert] = []
    dlq.on_alert(fired.append)
    with monkeypatch.context() as patched:
        patched.setattr(hooks, "MAX_WAITING", 0)
        dlq.enqueue("a", {}, "timeout", max_retries=0)
    dlq.enqueue("b", {}, "timeout", max_retries=0)
    dlq.shutdown()
    assert [alert.kind for alert in fired] == [AlertKind.EXHAUSTED]


def test_hook_may_shut_the_queue_down(dlq: DeadLetterQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[bool] = []
    hooks_of_queue = dlq._queue.monitor.hooks

    @dlq.on_captured
    def stop(task: FailedTask) -> None:
        waits.append(hooks_of_queue.wait(PATIENCE_SECONDS))

    dlq.enqueue("a", {}, "timeout")
    assert hooks_of_queue.wait(PATIENCE_SECONDS / 2)
    assert waits == [False]


def test_object_with_a_coroutine_function_is_a_hook(dlq: DeadLetterQueue) -> None:
    called: list[str] = []

    class Page:
        async def __call__(self, task: FailedTask) -> None:
            called.append(task.task_id)

    dlq.on_captured(Page())
    dlq.enqueue("a", {}, "timeout")
    dlq.shutdown()
    assert called == ["a"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no processes to fork here")
def test_process_that_was_forked_during_a_hook_calls_its_hooks(tmp_path: Path) -> None:
    program = f"""
import os, threading
from redrive.capture import AlertThresholds, DeadLetterQueue

dlq = DeadLetterQueue("sqlite:///{tmp_path}/calls.db", alerts=AlertThresholds(exhausted=0))
began, end = threading.Event(), threading.Event()

@dlq.on_captured
def page(task):
    began.set()
    end.wait()
    print("paged", task.task_id, flush=True)

@dlq.on_alert
def warn(alert):
    print("alert", flush=True)

dlq.enqueue("parent", {{}}, "timeout")
began.wait()
child = os.fork()
end.set()
if child == 0:
    dlq.enqueue("child", {{}}, "timeout", max_retries=0)
    dlq.shutdown()
    os._exit(0)
os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert sorted(done.stdout.split("\n")) == ["", "alert", "paged child", "paged parent"], done.stderr


def test_store_that_cannot_be_asked_for_alerts_is_logged_and_asked_again(
    dlq: DeadLetterQueue, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("memory", "it is gone")
        yield

    with monkeypatch.context() as patched:
        patched.setattr(AlertWatch, "check", unavailable)
        dlq.enqueue("a", {}, "timeout", max_retries=0)
        dlq.shutdown()
    assert "alerts_not_checked" in caplog.text
    dlq.enqueue("b", {}, "timeout", max_retries=0)
    dlq.shutdown()
    assert "capture_alert" in caplog.text


def test_what_is_captured_during_a_check_is_checked_after_it(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    fired = list[AlertKind]()
    with DeadLetterQueue(broker, max_size=10, alerts=AlertThresholds(exhausted=1)) as dlq:
        dlq.on_alert(lambda alert: fired.append(alert.kind))
        check, captured = AlertWatch.check, threading.Event()

        def check_slowly(watch: AlertWatch, *args: Any, **options: Any) -> Any:
            firing = yield from check(watch, *args, **options)
            if not captured.is_set():
                captured.set()
                dlq.enqueue("second", 1, "boom", max_retries=0)
            return firing

        monkeypatch.setattr(AlertWatch, "check", check_slowly)
        dlq.enqueue("first", 1, "boom", max_retries=0)
        assert captured.wait(PATIENCE_SECONDS)
        dlq.shutdown()
    assert fired == [AlertKind.EXHAUSTED]


def test_what_is_captured_while_the_queue_is_read_is_not_forgotten(broker: Broker, dlq: DeadLetterQueue) -> None:
    dlq.enqueue("first", 1, "boom", max_retries=0)
    levels = QueueLevels("captured")
    broker.run_flow(levels.refresh(broker.core))
    reading = levels.refresh(broker.core)
    next(reading)
    stats = broker.stats("captured")
    levels.add(size=2, exhausted=2)  # by another thread, after the read
    with pytest.raises(StopIteration) as end:
        reading.send(stats)
    assert (end.value.value.size, levels.size, levels.exhausted) == (1, 3, 3)
    assert levels.read_at is not None
    reading = levels.refresh(broker.core)
    next(reading)
    levels.forget()  # a task was archived
    with pytest.raises(StopIteration):
        reading.send(stats)
    assert levels.read_at is None


def test_alert_that_another_process_claimed_since_it_was_read_does_not_fire(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    fired: list[Alert] = []

    def none_yet(*_: Any) -> Any:
        return ()
        yield

    monkeypatch.setattr(registrations, "list_registrations", none_yet)
    for name in ("a", "b"):
        with DeadLetterQueue(broker, alerts=AlertThresholds(exhausted=0)) as dlq:
            dlq.on_alert(fired.append)
            dlq.enqueue(name, {}, "timeout", max_retries=0)
    assert len(fired) == 1


def test_program_that_ends_waits_for_its_hooks() -> None:
    program = """
import threading

from redrive.capture import DeadLetterQueue

dlq = DeadLetterQueue("memory://")

@dlq.on_captured
def page(task):
    threading.main_thread().join()
    print("paged", task.task["function"])

@dlq.guard(name="work")
def work():
    raise TimeoutError("too slow")

work()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (1, "paged work\n")
    assert "TimeoutError: too slow" in done.stderr


@pytest.mark.parametrize(
    ("kind", "value", "threshold", "is_over", "is_back"),
    [
        (AlertKind.UTILIZATION, 80, 80, False, False),
        (AlertKind.UTILIZATION, 80.1, 80, True, False),
        (AlertKind.UTILIZATION, 72, 80, False, True),
        (AlertKind.EXHAUSTED, 101, 100, True, False),
        (AlertKind.EXHAUSTED, 0, 0, False, True),
        (AlertKind.SUCCESS_RATE, 0.49, 0.5, True, False),
        (AlertKind.SUCCESS_RATE, 0.5, 0.5, False, False),
        (AlertKind.SUCCESS_RATE, 0.56, 0.5, False, True),
        (AlertKind.SUCCESS_RATE, 1.0, 1.0, False, True),
    ],
)
def test_threshold_is_crossed_and_left_at_a_distance(
    kind: AlertKind, value: float, threshold: float, is_over: bool, is_back: bool
) -> None:
    alert = Alert(kind, "q", value, threshold)
    assert (alert.is_over, alert.is_back) == (is_over, is_back)
    assert "'q'" in str(alert)


def test_defaults_of_the_thresholds() -> None:
    thresholds = AlertThresholds()
    assert (thresholds.utilization_percent, thresholds.exhausted, thresholds.success_rate) == (80, 100, 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [("utilization_percent", 101), ("exhausted", -1), ("success_rate", 1.5), ("min_retries", "5"), ("exhausted", True)],
)
def test_threshold_out_of_range_is_refused(name: str, value: Any) -> None:
    with pytest.raises(InvalidSetting, match=f"alerts.{name}"):
        AlertThresholds(**{name: value})


def test_alerts_are_checked_when_one_may_fire_and_with_hooks_every_minute() -> None:
    levels = QueueLevels("q")
    watch = AlertWatch(levels, AlertThresholds())
    assert watch.is_due(Instant(0), with_hooks=False)  # nothing is known yet
    levels.max_size, levels.read_at = 100, Instant(0)
    assert not watch.is_due(Instant(0), with_hooks=False)
    assert watch.is_due(Instant(0), with_hooks=True)
    watch._checked_at = Instant(0)
    assert not watch.is_due(Instant(MINUTE - 1), with_hooks=True)
    assert watch.is_due(Instant(MINUTE), with_hooks=True)
    levels.add(size=81)
    assert watch.is_due(Instant(0), with_hooks=False)


def test_reads_at_the_same_time_count_what_is_captured_meanwhile_once(broker: Broker, dlq: DeadLetterQueue) -> None:
    for number in range(3):
        dlq.enqueue(f"t{number}", {}, "down")
    levels = QueueLevels("captured")
    reads = [levels.refresh(broker.core) for _ in range(3)]
    effects = [next(read) for read in reads]
    answers = [perform_effect(broker.core, effect) for effect in effects]
    levels.add(size=1)
    for read, answer in zip(reads, answers, strict=True):
        with pytest.raises(StopIteration):
            read.send(answer)
    assert levels.size == 4


@given(
    levels=st.tuples(*(st.integers(0, 12),) * 4),
    max_size=st.integers(0, 10),
    percent=st.none() | st.floats(0, 100),
    exhausted=st.none() | st.integers(0, 5),
    rate=st.none() | st.floats(0, 1),
)
def test_alerts_are_made_whenever_one_is_over(
    levels: tuple[int, ...], max_size: int, percent: float | None, exhausted: int | None, rate: float | None
) -> None:
    thresholds = AlertThresholds(utilization_percent=percent, exhausted=exhausted, success_rate=rate, min_retries=1)
    queue = QueueLevels("q")
    queue.max_size = max_size
    queue.size, queue.exhausted, queue.succeeded, queue.failed = levels
    if any(alert.is_over for alert in queue.alerts(thresholds)):
        assert queue.may_alert(thresholds)
