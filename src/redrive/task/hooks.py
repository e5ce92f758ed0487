"""Hooks: functions of the program that are called when a delivery failed or completed, and when its item died."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from redrive.errors import InvalidInput, short_repr
from redrive.model.failure import Failure
from redrive.model.item import Settled
from redrive.task.context import Context
from redrive.telemetry import events

_log = events.logger("redrive.task")

Hook: TypeAlias = Callable[[Context, Failure | None, Settled], object]
_Hook = TypeVar("_Hook", bound=Callable[..., Any])


class Hooks:
    """The hooks of a queue, or those of a task, which come after those of its queue."""

    def __init__(self, before: Hooks | None = None) -> None:
        self._before = before
        self._failure: list[Hook] = []
        self._dead: list[Hook] = []
        self._completed: list[Hook] = []

    def on_failure(self, hook: _Hook) -> _Hook:
        """Call it after each failure, whether the item is retried or dead."""
        self._failure.append(_checked(hook))
        return hook

    def on_dead(self, hook: _Hook) -> _Hook:
        """Call it after an item died at the end of a delivery."""
        self._dead.append(_checked(hook))
        return hook

    def on_completed(self, hook: _Hook) -> _Hook:
        """Call it after each completion."""
        self._completed.append(_checked(hook))
        return hook

    def __bool__(self) -> bool:
        return bool(self._failure or self._dead or self._before)

    @property
    def has_completed(self) -> bool:
        """True if any of them is called for completions."""
        return bool(self._completed) or (self._before is not None and self._before.has_completed)

    def call(self, context: Context, failure: Failure | None, settled: Settled, *, is_completed: bool = False) -> None:
        """Call the hooks for a delivery, after its commit. An error in a hook is logged and changes nothing."""
        if self._before is not None:
            self._before.call(context, failure, settled, is_completed=is_completed)
        hooks = list(self._failure) if failure is not None else []
        if settled.dead_reason is not None:
            hooks += self._dead
        for hook in self._completed if is_completed else hooks:
            try:
                hook(context, failure, settled)
            except KeyboardInterrupt:
                raise
            except BaseException:  # also SystemExit: the other hooks are still called
                name = getattr(hook, "__qualname__", type(hook).__name__)
                _log.exception("hook_failed", hook=name, item=context.id, queue=context.queue, task=context.task.name)


def _checked(hook: _Hook) -> _Hook:
    if not callable(hook):
        raise InvalidInput(f"a hook is a function (context, failure, settled), not {short_repr(hook, 60)}")
    if inspect.iscoroutinefunction(hook):
        raise InvalidInput(f"hook {hook.__qualname__} is a coroutine function; a hook is a plain one")
    return hook
