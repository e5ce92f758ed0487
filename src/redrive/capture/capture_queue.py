"""`CaptureQueue`: the part that the blocking and the async dead-letter queue share: settings, functions, capture."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import inf
from typing import Any

import msgspec

from redrive.broker.broker import Broker
from redrive.broker.core import Core
from redrive.broker.flow import Flow
from redrive.broker.flows import manual_changes, queues, settle
from redrive.broker.flows.deliveries import queue_name
from redrive.broker.flows.inspection import parse_choice
from redrive.capture import administration, flows
from redrive.capture.capture_alerts import AlertThresholds
from redrive.capture.capture_errors import CaptureDisabledError
from redrive.capture.capture_monitor import CaptureMonitor
from redrive.capture.capture_settings import read_settings, resolve_settings
from redrive.capture.captured_task import CALLBACK, ErrorCategory, category_of
from redrive.capture.failure_templates import Diagnosis, FailureTemplate, TemplateIndex, check_template, list_templates
from redrive.capture.flows import Capture, CaptureReceipt, check_priority, encode_metadata
from redrive.capture.retry_policies import BACKOFFS, BY_CATEGORY, CapturePolicy, Treatment, item_retry
from redrive.capture.retry_processor import CallbackApp
from redrive.errors import Forbidden, InvalidInput, InvalidPayload, QueueNotFound
from redrive.model.classify import ErrorClass
from redrive.model.failure import Failure
from redrive.model.item import Item, Overrides, Settled
from redrive.model.limits import DEFAULT_PRIORITY, MAX_STORABLE_BYTES, check_label, check_name
from redrive.model.payload import encode_payload
from redrive.model.retry_policy import DelayFunction
from redrive.model.state_machine import Verb
from redrive.task.context import Context
from redrive.worker.in_flight import InFlightLog
from redrive.worker.ipc import WorkerLaunch
from redrive.worker.program import WorkerProgram, refuse_options
from redrive.worker.worker import Worker


class DLQIntegrationStrategy(StrEnum):
    """The strategy that selects the failed calls to capture."""

    AUTOMATIC = "automatic"
    """All failed calls."""
    SELECTIVE = "selective"
    """Failed calls whose error is retried by its template or category."""
    MANUAL = "manual"
    """Only tasks that a program passes to `enqueue`."""
    DISABLED = "disabled"
    """No capture; `enqueue` raises CaptureDisabledError."""


QUEUE_SETTINGS: Mapping[str, Any] = {
    "max_attempts": 0,
    "max_losses": 5,
    "retry_after": "delay",
    "keep_completed": "1d",
    "archive_after": "7d",
    "idempotency_timeout": "item",
}
"""The settings of a capture queue: lost leases do not count as retries, a retry waits for the Retry-After of an error,
and an id can be used again once its task is completed."""


_OTHER_OPTIONS = {
    "--url": "it names its store; the module can take it from a variable: DeadLetterQueue(os.environ['CALLS'])",
    "--queue": "it has one queue; make another DeadLetterQueue for others",
    "--processes": "retries run in threads; to run several processes, run the command several times",
}


class CaptureProgram(WorkerProgram):
    """A dead-letter queue as a program of `redrive work`: the retry processor, with its supervisor."""

    CHANGE_OF_STORE = "make it on a file or a server, as in DeadLetterQueue('sqlite:///calls.db')"
    _queue: CaptureQueue

    @property
    def brokers(self) -> Sequence[Broker]:
        """The broker of the queue."""
        return (Broker(self._queue.core),)

    def make_worker(self, launch: WorkerLaunch, in_flight_log: InFlightLog | None) -> Worker:
        """Return the worker that runs retries. Raises InvalidInput if there is neither a callback nor a guard."""
        refuse_options(launch, "a DeadLetterQueue", _OTHER_OPTIONS)
        if not self._queue.app.tasks:
            raise InvalidInput(
                f"no function can run the tasks of '{self._queue.name}'; guard one in this module, or call "
                f"set_callback(…) there"
            )
        (broker,) = self.brokers
        broker.run_flow(self._queue.open())
        return Worker(
            self._queue.app,
            broker=broker,
            queues=[self._queue.name],
            concurrency=launch.concurrency,
            shutdown_timeout=launch.shutdown_timeout,
            name=None if in_flight_log is None else in_flight_log.worker,
            in_flight_log=in_flight_log,
            metrics=launch.metrics_port is not None,
        )


OWN_NAMES = frozenset(
    {"task_id", "task", "error", "retry_policy", "max_retries", "metadata", "error_category", "priority"}
)
"""The names of arguments of `enqueue`, which extra arguments of a callback cannot have."""


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raise InvalidInput if an extra argument has the name of an argument of `enqueue`."""
    if "depends_on" in extra:
        raise InvalidInput(
            "depends_on is not supported: a captured task waits for no other task; capture it when it fails"
        )
    if taken := sorted(OWN_NAMES.intersection(extra)):
        raise InvalidInput(
            f"a further argument of a task cannot have the name '{taken[0]}', which is one of enqueue itself; choose "
            f"another name, or put it into the task"
        )


def encode_task(task: Any, extra: Mapping[str, Any]) -> bytes:
    """Return the payload of a task that the callback runs."""
    check_extra(extra)
    try:
        payload, _ = encode_payload({"task": task, "extra": dict(extra)}, None, MAX_STORABLE_BYTES)
    except InvalidPayload as problem:
        raise InvalidPayload(problem.path, f"{problem.problem}; a task is captured as JSON") from None
    return payload


class CaptureQueue:
    """The part of a dead-letter queue that is the same for threads and event loops: flows, settings and functions."""

    def __init__(
        self,
        core: Core,
        name: str,
        given: Mapping[str, Any],
        strategy: DLQIntegrationStrategy | str,
        jitter: bool,
        alerts: AlertThresholds,
    ) -> None:
        self.core = core
        self.name = queue_name(name)
        self.app = CallbackApp(self.name)
        self.set_strategy(strategy)
        self.settings = resolve_settings(given, None)
        self._given = given
        self._jitter = jitter
        self._functions: dict[str, DelayFunction] = {}
        self._overrides: dict[Treatment, Overrides] = {}
        self._added_templates: list[FailureTemplate] = []
        self._templates = TemplateIndex(list_templates())
        self.is_open = False
        self.monitor = CaptureMonitor(core, self.name, alerts)
        self.app.on_retried(self._retried)

    def set_strategy(self, strategy: DLQIntegrationStrategy | str) -> None:
        """Change the strategy, for failures from now on."""
        self.strategy = parse_choice("strategy", DLQIntegrationStrategy, strategy)

    def set_interval(self, seconds: float) -> None:
        """Set the poll interval that statistics report. A worker polls every second, and due tasks wake it."""
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < inf:
            raise InvalidInput(f"check_interval_seconds is a number above 0, not {seconds!r:.40}")
        self.settings = msgspec.structs.replace(self.settings, retry_interval_seconds=max(1, round(seconds)))

    def add_policy(self, name: str, function: DelayFunction) -> None:
        """Add a retry policy: a function from the number of failures so far, from 1 on, to seconds."""
        if check_name("policy", name) in BACKOFFS:
            raise InvalidInput(f"the policy '{name}' is built in; choose another name")
        if not callable(function):
            raise InvalidInput(f"a policy is a function from a number of failures to seconds, not {function!r:.60}")
        self._functions[name] = function
        self.core.add_backoff(name, function)

    def check_options(
        self,
        policy: str | None,
        max_retries: int | None,
        metadata: Mapping[str, Any] | None,
        priority: str | int | None,
    ) -> None:
        """Raise for invalid options of a guard, with which no failure could be captured."""
        default = BY_CATEGORY[ErrorCategory.TRANSIENT]
        treatment = Treatment(policy or default.policy, default.max_retries if max_retries is None else max_retries)
        item_retry(treatment, self._functions, jitter=False)
        check_priority(priority)
        if metadata is not None:
            encode_metadata(metadata)

    @property
    def templates(self) -> tuple[FailureTemplate, ...]:
        """The templates for common failures, in the order of comparison."""
        return self._templates.templates

    def add_template(self, template: FailureTemplate) -> None:
        """Add a template. Errors are compared with it before the built-in ones. Raises InvalidInput for a used name."""
        checked = check_template(template)
        item_retry(checked.treatment, self._functions, jitter=False)  # raises if the policy does not exist
        if any(known.name == checked.name for known in self.templates):
            raise InvalidInput(f"there is a template '{checked.name}' already; choose another name")
        self._added_templates.append(checked)
        self._templates = TemplateIndex((*self._added_templates, *list_templates()))

    def diagnose_call(self, error: BaseException) -> Diagnosis | None:
        """Return the diagnosis of the error of a failed call; None if the strategy does not capture it."""
        is_selective = self.strategy is DLQIntegrationStrategy.SELECTIVE
        if not self.settings.enabled or not (is_selective or self.strategy is DLQIntegrationStrategy.AUTOMATIC):
            return None
        found = self.diagnose(error)
        return None if is_selective and found.treatment.policy == CapturePolicy.NEVER else found

    def diagnose(self, error: BaseException | Failure | str, category: ErrorCategory | str | None = None) -> Diagnosis:
        """Return the diagnosis of an error; `category` takes precedence over the category of the error itself."""
        failure, templates = settle.failure_of(error, (), None, self.core.clock.now()), self._templates
        if category is not None:
            wanted = parse_choice("error_category", ErrorCategory, category)
            failure = msgspec.structs.replace(failure, error_class=ErrorClass(wanted.value))
            templates = templates.by_category[wanted]
        template = templates.find(error, failure)
        found = category_of(failure.error_class) if template is None else template.category
        if found is not category_of(failure.error_class) or failure.error_class is ErrorClass.POISON:
            failure = msgspec.structs.replace(failure, error_class=ErrorClass(found.value))
        treatment = BY_CATEGORY[found] if template is None else template.treatment
        return Diagnosis(failure, found, treatment, template)

    def describe(
        self,
        task_id: str,
        name: str,
        payload: bytes,
        found: Diagnosis,
        *,
        policy: str | None = None,
        max_retries: int | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: str | int | None = None,
        by_category: bool = True,
    ) -> Capture:
        """Return the data to capture of a failed call. Defaults come from the template or the category of the error, or
        without `by_category` from the settings of the queue. Raises InvalidInput for invalid arguments."""
        treatment, settings = found.treatment, self.settings
        if not by_category:
            treatment = Treatment(settings.default_retry_policy, settings.default_max_retries)
        if policy is not None:  # an explicit policy applies even if errors of this category are not retried
            treatment = Treatment(str(policy), treatment.max_retries or settings.default_max_retries)
        if max_retries is not None:
            treatment = Treatment(treatment.policy, max_retries)
        return Capture(
            check_label("task_id", task_id),
            name,
            payload,
            found,
            str(treatment.policy),
            self._overrides_of(treatment),
            None if metadata is None else encode_metadata(metadata),
            DEFAULT_PRIORITY if priority is None else check_priority(priority),
        )

    def _overrides_of(self, treatment: Treatment) -> Overrides:
        """Return the retry policy as a setting of an item. Tasks with equal treatments share one object."""
        if type(treatment.max_retries) is int and treatment in self._overrides:
            return self._overrides[treatment]
        made = Overrides(retry=item_retry(treatment, self._functions, jitter=self._jitter))
        return self._overrides.setdefault(treatment, made)

    def describe_task(
        self,
        task_id: str,
        task: Any,
        extra: Mapping[str, Any],
        error: BaseException | Failure | str,
        *,
        category: ErrorCategory | str | None = None,
        **options: Any,
    ) -> Capture:
        """Return the data to capture of a task that was passed to `enqueue`. Raises CaptureDisabledError."""
        if self.strategy is DLQIntegrationStrategy.DISABLED or not self.settings.enabled:
            raise CaptureDisabledError(self.name)
        payload = encode_task(task, extra)
        return self.describe(task_id, CALLBACK, payload, self.diagnose(error, category), by_category=False, **options)

    def capture_call(
        self, error: BaseException, task: Any, extra: Mapping[str, Any], task_id: str | None, **options: Any
    ) -> Flow[str | None]:
        """Capture a failed call that the callback retries, and return its task id; None if the strategy does not
        capture it."""
        yield from self.open()
        found = self.diagnose_call(error)
        if found is None:
            self.monitor.not_captured(self.strategy, error)
            return None
        id = flows.new_task_id("call") if task_id is None else task_id
        given = self.describe(id, CALLBACK, encode_task(task, extra), found, **options)
        yield from self.capture(given)
        return given.task_id

    def capture(self, given: Capture) -> Flow[CaptureReceipt]:
        """Put a failed task. The queue is created again if it was deleted after `open`."""
        levels = self.monitor.levels
        try:
            done = yield from flows.capture(self.core, levels, given)
        except QueueNotFound:  # it was deleted after `open`
            self.core.evict_queue(self.name)
            self.is_open = False
            yield from self.open()
            done = yield from flows.capture(self.core, levels, given)
        failure = given.diagnosis.failure
        self.monitor.captured(done.id, done.headers, failure.type, is_new=done.is_new, is_exhausted=done.is_exhausted)
        return done

    def archive(self, task_id: str, verb: Verb) -> Flow[bool]:
        """Archive or restore a task. Returns False if it does not exist."""
        item: Item | None = yield from flows.find_item(self.core, self.name, task_id)
        if item is not None:
            yield from manual_changes.change(self.core, verb, item.id, None)
            self.monitor.archived(item.id, item.headers, is_undone=verb is Verb.RESTORE)
        return item is not None

    def clear(self, confirm: int | None) -> Flow[int]:
        """Drop all tasks that wait or are exhausted; with `confirm`, remove them permanently. Returns their number."""
        count = (yield from administration.clear(self.core, self.name, confirm)).cleared
        self.monitor.cleared(count, is_final=confirm is not None)
        return count

    def statistics(self) -> Flow[dict[str, Any]]:
        """Return counts of tasks, and check the alerts."""
        interval = self.settings.retry_interval_seconds
        found: dict[str, Any] = yield from flows.statistics(self.core, self.monitor.levels, interval)
        self.monitor.watch()
        return found

    def _retried(self, context: Context, failure: Failure | None, settled: Settled) -> None:
        """Report the committed outcome of a retry of this process."""
        if failure is None:
            self.monitor.succeeded(context.id, context.headers)
        else:
            is_exhausted = settled.dead_reason is not None
            self.monitor.failed(context.id, context.headers, failure.type, is_exhausted=is_exhausted)

    def open(self) -> Flow[None]:
        """Create the queue if it does not exist, and read the settings of a config file, once.

        Raises QueueNotFound if the caller may not create it.
        """
        if self.is_open:
            return
        yield from queues.ensure(self.core, self.name, QUEUE_SETTINGS)
        self.settings = yield from read_settings(self.name, self._given)
        self.monitor.levels.max_size = self.settings.max_size
        with contextlib.suppress(Forbidden):  # a worker that does not capture does not need the levels
            yield from self.monitor.levels.refresh(self.core)  # once here, as many captures may start concurrently
        self.is_open = True
