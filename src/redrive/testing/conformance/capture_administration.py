"""Capture for operators: settings of a config file, and tasks that are read, retried, archived and restored."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from redrive import Broker, Status
from redrive.broker.flows import queues, registrations
from redrive.broker.flows.registrations import CAPTURE_KIND
from redrive.capture import (
    CaptureDisabledError,
    CaptureFullError,
    DeadLetterQueue,
    DeadLetterStatus,
    TaskNotFoundError,
    administration,
    flows,
)
from redrive.capture.capture_settings import CaptureSettings, variable_of
from redrive.capture.flows import TaskFilter
from redrive.capture.task_view import task_view
from redrive.config.apply import ApplyResult, apply
from redrive.config.loader import parse
from redrive.errors import InvalidConfig, InvalidSetting, ItemActive, QueueNotFound, WrongStatus
from redrive.model.duration import DAY
from redrive.model.masked_item import mask_item
from redrive.model.state_machine import Verb
from redrive.testing.conformance.suite import OpenBroker, Suite
from redrive.testing.fake_clock import FakeClock

FILE = Path("/srv/shop/redrive.toml")
WHOLE = """
[capture]
max_size = 100
default_retry_policy = "linear"
default_max_retries = 5
retry_interval_seconds = 30
retry_processor_enabled = false

[capture.workflows]
enabled = false
"""


def applied(broker: Broker, text: str, file: Path = FILE, *, take_over: bool = False) -> ApplyResult:
    """Apply the text of a file."""
    return apply(broker, parse(text, file), take_over=take_over)


def registered(broker: Broker) -> dict[str, bytes]:
    """Return the registrations of capture queues."""
    return {each.name: each.value for each in broker.run_flow(registrations.list_registrations(CAPTURE_KIND))}


def settings_of(broker: Broker, queue: str = "captured") -> CaptureSettings:
    """Return the settings that a program gets."""
    return broker.run_flow(administration.get_settings(broker.core, queue))


def change(broker: Broker, task_id: str, verb: Verb, actor: str | None = None) -> DeadLetterStatus:
    """Change a task by its id."""
    item = broker.run_flow(administration.get_item(broker.core, "captured", task_id))
    return broker.run_flow(administration.change(broker.core, item, verb, actor))


class CaptureFileConformance(Suite):
    """The section `[capture]` of a config file."""

    def test_capture_settings_of_the_file_hold_for_programs(self, broker: Broker) -> None:
        assert applied(broker, WHOLE) == ApplyResult(created=("captured", "workflows"))
        dlq = DeadLetterQueue(broker)
        task = dlq.enqueue("a", 1, "down")
        assert (task.retry_policy, task.max_retries) == ("linear", 5)
        statistics = dlq.get_statistics()
        assert (statistics["max_size"], statistics["retry_interval_seconds"]) == (100, 30)
        assert settings_of(broker) == CaptureSettings(
            max_size=100,
            default_retry_policy="linear",
            default_max_retries=5,
            retry_interval_seconds=30,
            retry_processor_enabled=False,
        )
        with pytest.raises(CaptureDisabledError, match="'workflows' is disabled"):
            DeadLetterQueue(broker, "workflows").enqueue("a", 1, "down")

    def test_argument_and_variable_precede_capture_settings_of_the_file(
        self, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        applied(broker, WHOLE)
        monkeypatch.setenv(variable_of("default_retry_policy"), "immediate")
        task = DeadLetterQueue(broker, default_max_retries=1).enqueue("a", 1, "down")
        assert (task.retry_policy, task.max_retries) == ("immediate", 1)

    def test_capture_size_of_the_file_is_a_limit(self, broker: Broker) -> None:
        applied(broker, WHOLE)
        dlq = DeadLetterQueue(broker)
        for number in range(100):
            dlq.enqueue(f"task-{number}", number, "down")
        with pytest.raises(CaptureFullError, match="has 100 tasks, and max_size is 100"):
            dlq.enqueue("one more", 1, "down")

    def test_capture_queue_of_the_file_has_the_settings_of_one_and_those_of_its_table(self, broker: Broker) -> None:
        applied(broker, "[capture]\n[queue.captured]\nlease_timeout = '2m'\nkeep_completed = '3d'\n")
        settings = broker.get_queue("captured").settings
        assert (settings.max_losses, settings.idempotency_timeout) == (5, "item")
        assert (settings.archive_after, settings.keep_completed) == (7 * DAY, 3 * DAY)
        applied(broker, "[capture]\n[queue.captured]\nlease_timeout = '2m'\n")
        assert broker.get_queue("captured").settings.keep_completed == DAY

    def test_capture_queue_of_the_file_is_managed_by_it(self, broker: Broker) -> None:
        applied(broker, "[capture]\n")
        with pytest.raises(InvalidSetting, match=r"'captured' is managed by .*redrive\.toml: remove it there first"):
            broker.delete_queue("captured")

    def test_same_file_again_registers_nothing(self, broker: Broker) -> None:
        applied(broker, WHOLE)
        before = registered(broker)
        assert applied(broker, WHOLE).is_empty
        assert registered(broker) == before

    def test_changed_capture_setting_is_an_update(self, broker: Broker) -> None:
        applied(broker, "[capture]\nmax_size = 100\n")
        assert applied(broker, "[capture]\nmax_size = 200\n") == ApplyResult(updated=("captured",))
        assert settings_of(broker).max_size == 200

    def test_capture_setting_that_vanished_has_its_default_and_the_queue_stays(self, broker: Broker) -> None:
        applied(broker, WHOLE)
        DeadLetterQueue(broker).enqueue("a", 1, "down")
        released = applied(broker, "[queue.captured]\n")
        assert released == ApplyResult(updated=("captured",), released=("workflows",))
        assert registered(broker) == {}
        assert settings_of(broker) == CaptureSettings()
        assert len(DeadLetterQueue(broker).list_tasks()) == 1

    def test_other_file_takes_capture_settings_over_on_request_and_the_first_removes_nothing(
        self, broker: Broker
    ) -> None:
        other = Path("/srv/old/redrive.toml")
        applied(broker, "[capture]\nmax_size = 100\n", other)
        with pytest.raises(InvalidConfig, match=r"/srv/old/redrive\.toml"):
            applied(broker, "[capture]\nmax_size = 200\n")
        assert settings_of(broker).max_size == 100
        applied(broker, "[capture]\nmax_size = 200\n", take_over=True)
        assert applied(broker, "", other).is_empty
        assert settings_of(broker).max_size == 200

    def test_capture_queue_of_a_file_that_is_gone_is_released_with_its_settings(self, broker: Broker) -> None:
        applied(broker, WHOLE)
        assert broker.run_flow(queues.release_queue("captured")) is True
        assert set(registered(broker)) == {"workflows"}
        assert broker.run_flow(queues.release_queue("captured")) is False

    def test_file_that_is_refused_registers_nothing(self, broker: Broker) -> None:
        applied(broker, "[capture]\nmax_size = 100\n[queue.dead]\n[queue.jobs]\ndead_queue = 'dead'\n")
        before = registered(broker)
        with pytest.raises(InvalidConfig, match="jobs"):
            applied(broker, "[capture]\nmax_size = 200\n[capture.new]\n[queue.more]\ndead_queue = 'jobs'\n")
        assert registered(broker) == before
        assert {queue.name for queue in broker.list_queues()} == {"captured", "dead", "jobs"}

    def test_every_process_reads_capture_settings(self, broker: Broker, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        applied(broker, WHOLE)
        assert DeadLetterQueue(open_broker()).get_statistics()["max_size"] == 100


class CaptureAdministrationConformance(Suite):
    """The operations of the command line and a server on captured tasks."""

    @pytest.fixture
    def filled(self, broker: Broker) -> DeadLetterQueue:
        """Create a queue with a task that waits and one that is exhausted."""
        dlq = DeadLetterQueue(broker)
        dlq.enqueue("waits", {"n": 1}, "Connection timeout", metadata={"password": "hunter2"}, repos=["a"])
        dlq.enqueue("exhausted", {"n": 2}, PermissionError("no"), max_retries=0)
        return dlq

    def test_no_read_creates_a_capture_queue(self, broker: Broker) -> None:
        core = broker.core
        for flow in (
            administration.get_settings(core, "captured"),
            administration.get_item(core, "captured", "a"),
            administration.list_items(core, "captured", TaskFilter(), 10, None),
            administration.statistics(core, "captured"),
        ):
            with pytest.raises(QueueNotFound):
                broker.run_flow(flow)
        assert broker.list_queues() == ()

    def test_task_is_found_by_its_id_and_by_that_of_its_item(self, broker: Broker, filled: DeadLetterQueue) -> None:
        task = filled.get_task("waits")
        assert task is not None
        broker.create_queue("other")
        elsewhere = broker.put("other", 1).id
        for name in ("waits", task.item_id):
            assert broker.run_flow(administration.get_item(broker.core, "captured", name)).id == task.item_id
        for wrong in ("unknown", elsewhere, "0" * 32):
            with pytest.raises(TaskNotFoundError, match=f"'captured' has no task '{wrong}'"):
                broker.run_flow(administration.get_item(broker.core, "captured", wrong))

    def test_view_has_what_the_task_has_without_secrets(
        self, broker: Broker, filled: DeadLetterQueue, clock: FakeClock
    ) -> None:
        view = task_view(broker.run_flow(administration.get_item(broker.core, "captured", "waits")))
        task = filled.get_task("waits")
        assert task is not None
        for name in ("task_id", "item_id", "task", "extra", "error", "retry_policy", "max_retries", "error_category"):
            assert getattr(view, name) == getattr(task, name), name
        assert task.next_retry_at is not None
        assert view.next_retry_at is not None
        assert datetime.fromisoformat(view.next_retry_at) == task.next_retry_at
        assert datetime.fromisoformat(view.failed_at) == datetime.fromtimestamp(clock.now() / 1_000_000, UTC)
        assert (task.metadata, view.metadata) == ({"password": "hunter2"}, {"password": "[redacted]"})

    def test_hidden_view_has_the_category_and_policy_and_not_the_task(
        self, broker: Broker, filled: DeadLetterQueue
    ) -> None:
        item = broker.run_flow(administration.get_item(broker.core, "captured", "waits"))
        view = task_view(mask_item(item))
        assert (view.task_id, view.hidden) == (item.id, True)
        assert (view.error_category, view.retry_policy, view.max_retries) == ("network", "exponential", 3)
        assert (view.task, view.extra, view.metadata, view.result) == (None, None, None, None)

    def test_retry_makes_a_task_due_with_all_its_retries(self, broker: Broker, filled: DeadLetterQueue) -> None:
        assert change(broker, "waits", Verb.RETRY, "ann") is DeadLetterStatus.PENDING
        assert change(broker, "exhausted", Verb.RETRY, "ann") is DeadLetterStatus.PENDING
        assert change(broker, "exhausted", Verb.RETRY, "ann") is DeadLetterStatus.PENDING
        assert [(entry.actor, entry.verb) for entry in broker.audit()] == [("ann", "retry")] * 2
        assert sorted(lease.value["task"]["n"] for lease in broker.lease("captured", 5)) == [1, 2]
        with pytest.raises(ItemActive):
            change(broker, "waits", Verb.RETRY)

    def test_archived_task_is_restored_by_its_id(self, broker: Broker, filled: DeadLetterQueue) -> None:
        assert change(broker, "exhausted", Verb.ARCHIVE, "ann") is DeadLetterStatus.ARCHIVED
        with pytest.raises(WrongStatus):
            change(broker, "exhausted", Verb.ARCHIVE)
        assert change(broker, "exhausted", Verb.RESTORE, "ben") is DeadLetterStatus.EXHAUSTED
        assert [entry.actor for entry in broker.audit()] == ["ben", "ann"]

    def test_statistics_are_those_of_the_program(self, broker: Broker, filled: DeadLetterQueue) -> None:
        assert broker.run_flow(administration.statistics(broker.core, "captured")) == filled.get_statistics()
        assert broker.run_flow(flows.has_processor("captured")) is False
        assert broker.stats("captured").dead == len(broker.find(queue="captured", status=Status.DEAD).items)
