"""`TaskQueue`: a queue that an app declares, with its tasks. Missing queues are created in the store."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, overload

from redrive.broker.flow import Flow
from redrive.broker.flows import queues
from redrive.errors import QueueExists, QueueNotFound
from redrive.model.limits import check_name, is_remote
from redrive.model.queue_options import parse_settings
from redrive.task.context import Context
from redrive.task.hooks import Hooks
from redrive.task.task import Task, TaskFunction
from redrive.task.task_options import TaskOptions

if TYPE_CHECKING:
    from redrive.broker.core import Core
    from redrive.task.app import App

P = ParamSpec("P")
R = TypeVar("R")


class TaskQueue:
    """A declared queue. It is in the store once the app has opened."""

    def __init__(self, app: App, name: str, settings: Mapping[str, Any]) -> None:
        self.app = app
        self.name = check_name("queue", name)
        parse_settings(settings)
        self.settings = dict(settings)
        """The settings that the declaration names, not parsed."""
        self.hooks = Hooks()

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...
    @overload
    def task(self, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...
    def task(self, function: Callable[..., Any] | None = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task of this queue: `@emails.task`, or `@emails.task(time_limit="30s")`.

        A parameter annotated `Context` receives the context and is no argument. Type checkers know that if it is the
        first one.
        """
        decorator = TaskDecorator(self, options)
        return decorator if function is None else decorator(function)

    def on_failure(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Call this after each failure of a task of this queue: hook(context, failure, settled)."""
        return self.hooks.on_failure(hook)

    def on_dead(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Call this after an item of a task of this queue died: hook(context, failure, settled)."""
        return self.hooks.on_dead(hook)

    def __repr__(self) -> str:
        return f"TaskQueue(name={self.name!r})"


class TaskDecorator:
    """The decorator `@queue.task(…)`, which makes a function a task with these options."""

    def __init__(self, queue: TaskQueue, options: TaskOptions) -> None:
        self._queue = queue
        self._options = options

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], R], /
    ) -> TaskFunction[P, R, Concatenate[Context, P], R]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> TaskFunction[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> TaskFunction[P, R, P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        """Make the function a task of the queue."""
        task: Task[..., Any] = TaskFunction(self._queue, function, self._options)
        self._queue.app.add(task)
        return task


def create_declared_queues(core: Core, declared: Mapping[str, Mapping[str, Any]]) -> Flow[None]:
    """Create or update each queue. Settings that the declaration does not name stay unchanged.

    Dead queues come first, and one that is not declared is created with default settings if it is missing.
    """
    wanted = {name: queues.normalize_dead_queue(core, parse_settings(settings)) for name, settings in declared.items()}
    named = {name: [to for to in settings.dead_queues() if not is_remote(to)] for name, settings in wanted.items()}
    for name in _in_dependency_order(named):
        yield from _declare(core, name, declared.get(name, {}))


def _declare(core: Core, name: str, settings: Mapping[str, Any]) -> Flow[None]:
    try:
        queue = yield from queues.get(core, name)
    except QueueNotFound:
        try:
            yield from queues.create(core, name, settings)
            return
        except QueueExists:  # another process was faster
            queue = yield from queues.get(core, name)
    if queues.normalize_dead_queue(core, parse_settings(settings, base=queue.settings)) != queue.settings:
        yield from queues.update(core, name, settings, None)


def _in_dependency_order(named: Mapping[str, Iterable[str]]) -> list[str]:
    dead = dict.fromkeys(to for tos in named.values() for to in tos)
    return [*dead, *(name for name in named if name not in dead)]
