"""Declarations of a program on a dead-letter queue, blocking or async: policies, templates, hooks, guards, callback."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar, overload

from redrive.capture.capture_hooks import ALERT, TaskEvent, running_loop
from redrive.capture.capture_queue import CaptureProgram, DLQIntegrationStrategy
from redrive.capture.captured_task import ErrorCategory
from redrive.capture.failure_templates import FailureTemplate
from redrive.capture.guard import GuardOptions, HandledGuard, bind_method, guard_function
from redrive.model.duration import DurationInput
from redrive.model.retry_policy import DelayFunction

F = TypeVar("F", bound=Callable[..., Any])


class Declarations(CaptureProgram):
    """The methods of a dead-letter queue that need no store."""

    _is_failure: Callable[[Any], bool]

    @property
    def name(self) -> str:
        """The queue of the captured tasks."""
        return self._queue.name

    @property
    def strategy(self) -> DLQIntegrationStrategy:
        """The strategy that selects the failed calls to capture."""
        return self._queue.strategy

    def set_strategy(self, strategy: DLQIntegrationStrategy | str) -> None:
        """Change the strategy of this object, for failures from now on."""
        self._queue.set_strategy(strategy)

    def add_policy(self, name: str, function: DelayFunction) -> None:
        """Add a retry policy: a function from the number of failures so far, 1 at the first, to seconds.

        Tasks store the name of the policy. A process that does not know the name uses an exponential delay.
        """
        self._queue.add_policy(name, function)

    @property
    def templates(self) -> tuple[FailureTemplate, ...]:
        """The templates for common failures, in the order of comparison: added ones first, then the built-in ones."""
        return self._queue.templates

    def add_template(self, template: FailureTemplate) -> None:
        """Add a template for common failures. Errors are compared with it before the built-in ones."""
        self._queue.add_template(template)

    def classify_error(self, error: BaseException | str) -> ErrorCategory:
        """Return the category of an error."""
        return self._queue.diagnose(error).category

    def on_captured(self, hook: F) -> F:
        """Call this function with a task after each captured failure. Use it as a decorator, like all hooks below."""
        return self._queue.monitor.hooks.add(TaskEvent.CAPTURED, hook)

    def on_retried(self, hook: F) -> F:
        """Call this function with a task after each retry in this process, successful or not."""
        return self._queue.monitor.hooks.add(TaskEvent.RETRIED, hook)

    def on_succeeded(self, hook: F) -> F:
        """Call this function with a task after a retry in this process succeeded."""
        return self._queue.monitor.hooks.add(TaskEvent.SUCCEEDED, hook)

    def on_exhausted(self, hook: F) -> F:
        """Call this function with a task that is exhausted: it is not retried automatically any more."""
        return self._queue.monitor.hooks.add(TaskEvent.EXHAUSTED, hook)

    def on_alert(self, hook: F) -> F:
        """Call this function with an `Alert` when a threshold is crossed, in the first process that notices it."""
        return self._queue.monitor.hooks.add(ALERT, hook)

    @overload
    def guard(self, function: F, /) -> F: ...
    @overload
    def guard(
        self,
        function: None = None,
        /,
        *,
        policy: str | None = None,
        max_retries: int | None = None,
        on_failure: Literal["raise"] = "raise",
        key: Callable[..., str] | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: str | int | None = None,
        timeout: DurationInput | None = None,
        on_cancel: Literal["ignore", "capture"] = "ignore",
    ) -> Callable[[F], F]: ...
    @overload
    def guard(
        self,
        function: None = None,
        /,
        *,
        policy: str | None = None,
        max_retries: int | None = None,
        on_failure: Literal["handle"],
        key: Callable[..., str] | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: str | int | None = None,
        timeout: DurationInput | None = None,
        on_cancel: Literal["ignore", "capture"] = "ignore",
    ) -> HandledGuard: ...
    def guard(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        policy: str | None = None,
        max_retries: int | None = None,
        on_failure: Literal["raise", "handle"] = "raise",
        key: Callable[..., str] | None = None,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        priority: str | int | None = None,
        timeout: DurationInput | None = None,
        on_cancel: Literal["ignore", "capture"] = "ignore",
    ) -> Any:
        """Capture the failures of a function: a decorator, with or without options. Retries call the function itself.

        policy, max_retries: by default those of the template or the category of the error. on_failure: raise the error,
        or return `Captured(task_id)` (`handle`). key: a function of the arguments that returns the task id; by default
        each failed call is a separate task. name: the name that a retry finds the function by; by default its module
        and name. timeout: for coroutine functions; a call that takes longer fails. on_cancel: ignore or capture a
        cancelled call. A method needs a key, and an object for its retries: see `bind`.
        """
        options = GuardOptions(policy, max_retries, on_failure, key, name, metadata, priority, timeout, on_cancel)
        if function is not None:
            return guard_function(self._queue, function, options)
        return lambda given: guard_function(self._queue, given, options)

    def bind(self, method: Callable[..., Any]) -> None:
        """Set the object on which retries call a method that is guarded in its class: `dlq.bind(shop.charge)`, once.

        Until then, a failed call of the method cannot be captured.
        """
        bind_method(self._queue, method)

    def set_callback(self, callback: Callable[..., Any]) -> None:
        """Set the function that retries tasks which name no function: `callback(task, **extra)`."""
        self._queue.app.set_callback(callback, is_failure=self._is_failure, loop=running_loop())
