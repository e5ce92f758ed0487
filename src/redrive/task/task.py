"""`Task`: a function that workers run. It is put with its own options, or with others for one put."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, ParamSpec, TypeVar, Unpack, cast

import msgspec

from redrive.broker.validation import check_positive
from redrive.clock import Instant, SystemClock
from redrive.errors import InvalidInput, short_repr
from redrive.model.caller_input import checking_input, listed
from redrive.model.duration import MINUTE
from redrive.model.ids import make_id, make_token
from redrive.model.item import Lease
from redrive.model.limits import MAX_PUT, check_name
from redrive.model.options import INSTANTS, TaskItemDefaults
from redrive.model.payload import check_headers
from redrive.model.worker_info import TASK_HEADER
from redrive.task.arguments import Arguments
from redrive.task.context import Context, TaskItem
from redrive.task.hooks import Hooks
from redrive.task.periodic import periodic_from
from redrive.task.result_handle import TaskHandle
from redrive.task.task_options import PutOptions, TaskOptions, check_options, put_template
from redrive.telemetry import tracing

if TYPE_CHECKING:
    from redrive.task.app import App
    from redrive.task.task_queue import TaskQueue

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
C = ParamSpec("C")
T_co = TypeVar("T_co", covariant=True)


class TaskPutter(Generic[P, R_co]):
    """One task with options for its put. Arguments are those of its function, and each put checks them by its types."""

    def __init__(self, task: Task[P, R_co], options: PutOptions) -> None:
        check_options("put", options, PutOptions)
        self._task = task
        self._given = options
        self._transaction: Any = options.get("transaction")
        self._template = put_template(TASK_HEADER, task.name, options)

    def options(self, **options: Unpack[PutOptions]) -> TaskPutter[P, R_co]:
        """Return the same with these options: `send.options(delay="5m").put(…)`."""
        chosen = {name for name, value in options.items() if value is not None}
        replaced = {name for pair in INSTANTS.items() if chosen.intersection(pair) for name in pair}
        kept = {name: value for name, value in self._given.items() if name not in replaced}
        merged = cast(PutOptions, {**kept, **options})
        if "headers" in options:
            given = (self._given.get("headers"), options["headers"])
            before, added = ({} if each is None else check_headers(each) for each in given)
            merged["headers"] = {**before, **added}
        return TaskPutter(self._task, merged)

    def item(self, *args: P.args, **kwargs: P.kwargs) -> TaskItem:
        """Return a call that is not put yet, for `put_many` and `context.put`."""
        payload = self._task.arguments.encode(args, kwargs)
        made, headers = self._template, tracing.inject(self._template.headers)
        return TaskItem(self._task.queue.name, msgspec.structs.replace(made, payload=payload, headers=headers))

    def put(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]:
        """Put one call. Raises `InvalidArguments` if the function does not accept these arguments."""
        return self.put_many((self.item(*args, **kwargs),))[0]

    async def put_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[R_co]:
        """Put one call on an event loop, as `put` does."""
        return (await self.put_many_async((self.item(*args, **kwargs),)))[0]

    def put_many(self, items: Iterable[TaskItem]) -> list[TaskHandle[R_co]]:
        """Put all of these calls, at most 10,000, or none: `send.put_many(send.item(to) for to in people)`."""
        made = self._checked(items)
        receipts = self._task.app.open().put_many(self._task.queue.name, made, transaction=self._transaction)
        return [TaskHandle(self._task, receipt) for receipt in receipts]

    async def put_many_async(self, items: Iterable[TaskItem]) -> list[TaskHandle[R_co]]:
        """Put all of these calls or none on an event loop, as `put_many` does."""
        made = self._checked(items)
        broker = await self._task.app.open_async()
        receipts = await broker.put_many(self._task.queue.name, made, transaction=self._transaction)
        return [TaskHandle(self._task, receipt) for receipt in receipts]

    def _checked(self, items: Iterable[TaskItem]) -> list[Any]:
        """Return the items. Raises InvalidInput unless all of them are calls of this task."""
        made = listed("items", items, MAX_PUT)
        if len(made) > MAX_PUT:
            raise InvalidInput(f"put_many takes at most {MAX_PUT:,} items, since all are put or none")
        for each in made:
            if type(each) is not TaskItem or (each.item.headers or {}).get(TASK_HEADER) != self._task.name:
                name = self._task.name
                raise InvalidInput(f"{name}.put_many takes what {name}.item(…) gives, not {short_repr(each, 60)}")
        return [each.item for each in made]


class Task(TaskPutter[P, R_co], Generic[P, R_co]):
    """A function that workers run: `put` lets a worker call it.

    P are the parameters of the function except the context, and R_co is what it returns, awaited if need be.
    """

    def __init__(self, queue: TaskQueue, function: Callable[..., Any], options: TaskOptions) -> None:
        check_options("a task", options, TaskOptions)
        self.function = _checked(function)
        self.name = check_name("task", options.get("name") or getattr(function, "__name__", None))
        self.queue = queue
        self.is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        self.time_limit = _duration("time_limit", options)
        self.keep_result = _duration("keep_result", options)
        self.final_errors = _final_errors(options.get("final_errors", ()))
        self.capture_locals = options.get("capture_locals", False)
        self.hooks = Hooks(queue.hooks)
        self.arguments = Arguments(self.name, function)
        self.periodic = periodic_from(
            options.get("every"), options.get("cron"), options.get("timezone", "UTC"), options.get("on_missed", "once")
        )
        if self.periodic is not None and self.arguments.required:
            needed = ", ".join(self.arguments.required)
            raise InvalidInput(f"task '{self.name}' is periodic and gets no value for {needed}; give it a default")
        self.__doc__ = function.__doc__
        self.__wrapped__ = function
        of_items = {name: value for name, value in options.items() if name in TaskItemDefaults.__annotations__}
        super().__init__(self, cast(PutOptions, of_items))

    @property
    def app(self) -> App:
        """The app that it belongs to."""
        return self.queue.app

    def on_failure(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Call this after each failure of this task: hook(context, failure, settled)."""
        return self.hooks.on_failure(hook)

    def on_dead(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        """Call this after an item of this task died: hook(context, failure, settled)."""
        return self.hooks.on_dead(hook)

    def decode(self, lease: Lease, context: Context) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a call. Raises `Undecodable` or `InvalidArguments`."""
        return self.arguments.bind(lease.payload, lease.content_type, context)

    def call(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it in this thread as a worker would: with encoded and decoded arguments, a context, and the middleware
        around it. Returns what the function returns, raises what it raises. Nothing is put. For tests.
        """
        if self.is_async:
            if loop_runs():
                raise InvalidInput(f"an event loop runs in this thread: await {self.name}.call_async(…) instead")
            return asyncio.run(self.call_async(*args, **kwargs))
        context, given, named = self._called(*args, **kwargs)
        value: Any = None
        with self._around(context):
            value = self.function(*given, **named)
        return cast(R_co, value)

    async def call_async(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run it on an event loop, as `call` does. For coroutine functions and others."""
        context, given, named = self._called(*args, **kwargs)
        value: Any = None
        with self._around(context):
            value = self.function(*given, **named)
            if self.is_async:
                value = await value
        return cast(R_co, value)

    def _called(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Context, Sequence[Any], dict[str, Any]]:
        lease = _first_lease(self.item(*args, **kwargs))
        context = Context(lease, self)
        given, named = self.decode(lease, context)
        return context, given, named

    @contextlib.contextmanager
    def _around(self, context: Context) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for middleware in self.app.middlewares:
                stack.enter_context(middleware(context))
            yield

    def __repr__(self) -> str:
        return f"Task(name={self.name!r}, queue={self.queue.name!r})"


class TaskFunction(Task[P, R_co], Generic[P, R_co, C, T_co]):
    """A task that can be called as its function: C are all parameters of that, and T_co is what it returns."""

    def __call__(self, *args: C.args, **kwargs: C.kwargs) -> T_co:
        """Call the function directly, in this thread."""
        return cast(T_co, self.function(*args, **kwargs))


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function) or isinstance(function, type):
        raise InvalidInput(f"a task is a function, not {short_repr(function, 60)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"a task returns once, and {function.__qualname__} yields")
    return function


def _duration(name: Literal["time_limit", "keep_result"], options: TaskOptions) -> int | None:
    given = options.get(name)
    return None if given is None else check_positive(name, given)


def _final_errors(given: Any) -> tuple[type[BaseException] | str, ...]:
    with checking_input("final_errors"):
        errors = tuple(given) if isinstance(given, tuple | list | set | frozenset) else (given,)
    for each in errors:
        if not isinstance(each, str) and not (isinstance(each, type) and issubclass(each, BaseException)):
            raise InvalidInput(f"final_errors are exception classes and names of them, not {short_repr(each, 60)}")
    return errors


def _first_lease(made: TaskItem) -> Lease:
    """Return the lease that a worker would have at the first delivery of this item, which is in no store."""
    now = SystemClock().now()
    id = make_id(0, 0)
    return Lease(
        id=id,
        token=make_token(0, 0, 0),
        queue=made.queue,
        payload=made.item.payload,
        content_type=made.item.content_type,
        headers=made.item.headers or {},
        priority=made.item.priority,
        put_at=now,
        deliveries=1,
        attempts=1,
        failures=0,
        losses=0,
        redrives=0,
        leased_at=now,
        deadline=Instant(now + MINUTE),
        first_leased_at=now,
        expire_deadline=None,
        overrides=made.item.overrides,
        worker=None,
    )


def loop_runs() -> bool:
    """Return whether an event loop runs in this thread, so that no other can."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
