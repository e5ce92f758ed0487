"""`App`: the queues and tasks of a program, and the broker that they are put to. Creating one opens nothing."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeAlias, TypeVar, Unpack

from redrive.broker.async_broker import AsyncBroker
from redrive.broker.broker import Broker
from redrive.connect import connect, token_for
from redrive.errors import InvalidInput, short_repr
from redrive.model.declaration import lists_options
from redrive.model.limits import DEFAULT_URL, check_name
from redrive.model.options import ConnectOptions
from redrive.model.queue_options import QueueOptions
from redrive.model.sqlite_url import absolute_sqlite_url
from redrive.model.url import redact_url
from redrive.task.context import Context
from redrive.task.task import Task
from redrive.task.task_options import check_options
from redrive.task.task_queue import TaskQueue, create_declared_queues

URL_VARIABLE = "REDRIVE_URL"
"""Environment variable with the URL of the store, for an app without one."""

Middleware: TypeAlias = Callable[[Context], AbstractContextManager[None]]
_Function = TypeVar("_Function", bound=Callable[[Context], Iterator[None]])


class App:
    """The queues and tasks of a program. The first use opens the store and creates the queues.

    url: the store, as for `connect`; by default, that of the variable REDRIVE_URL, else `sqlite:///redrive.db`.
    token: the token for a server; by default, that of the variable REDRIVE_TOKEN. Ignored for other stores.
    The other options are those of `connect`.
    """

    def __init__(self, url: str | None = None, **options: Unpack[ConnectOptions]) -> None:
        check_options("an app", options, ConnectOptions)
        self._url = url
        self._token = options.pop("token", None)
        self._options = options
        self._tasks: dict[str, Task[..., Any]] = {}
        self.tasks: Mapping[str, Task[..., Any]] = MappingProxyType(self._tasks)
        """All tasks, by name."""
        self._queues: dict[str, TaskQueue] = {}
        self.middlewares: list[Middleware] = []
        """Context managers around each call of a handler, the first one outermost."""
        self._opening = threading.RLock()
        self._broker: Broker | None = None
        self._used: str | None = None
        """The store of `override_broker`, which replaces that of the URL; without a password."""
        self._declared: set[str] = set()
        """Queues that are declared in the open broker."""

    @property
    def queues(self) -> Mapping[str, TaskQueue]:
        """All queues that were declared, by name."""
        return MappingProxyType(self._queues)

    @lists_options(QueueOptions)
    def queue(self, name: str, **settings: Unpack[QueueOptions]) -> TaskQueue:
        """Declare a queue. The settings are those of `create_queue`, and are checked now.

        In the store it is created if it is missing; if it exists, the settings named here are set and the others
        stay. A second call with the same name and no settings returns the same queue.
        """
        name = check_name("queue", name)
        known = self._queues.get(name)
        if known is not None:
            if settings:
                raise InvalidInput(f"queue '{name}' is declared already; give all of its settings in one place")
            return known
        queue = TaskQueue(self, name, settings)
        self._queues[name] = queue
        return queue

    def middleware(self, function: _Function) -> _Function:
        """Call a function around each handler: a generator function (context) with one `yield`, where the handler runs.

        What the handler raises is raised at the `yield`; what the function raises is the failure.
        """
        is_generator: bool = inspect.isgeneratorfunction(function)
        if not is_generator:
            raise InvalidInput(
                f"middleware takes a function of the context with one yield in it, not {short_repr(function, 60)}"
            )
        self.middlewares.append(contextlib.contextmanager(function))
        return function

    def add(self, task: Task[..., Any]) -> None:
        """Add a declared task. Its name must be unique, because items name their task."""
        known = self._tasks.get(task.name)
        if known is not None:
            raise InvalidInput(
                f"there are two tasks of the name '{task.name}', in {known.function.__module__} and "
                f"{task.function.__module__}; give one of them another: @queue.task(name=…)"
            )
        self._tasks[task.name] = task

    def check(self) -> None:
        """Raise `InvalidArguments` if a task has a parameter that no item can provide, before any item is leased."""
        for task in self._tasks.values():
            task.arguments.check()

    def open(self) -> Broker:
        """Return the broker, opened if need be, with every declared queue in it."""
        broker = self._broker
        if broker is not None and len(self._declared) == len(self._queues):
            return broker
        with self._opening:
            if self._broker is None:
                broker = self._connect(self._named(), {})
                try:
                    self._declare_new(broker, set())
                except BaseException:
                    broker.close()
                    raise
                self._broker = broker
            else:
                self._declare_new(self._broker, self._declared)
            return self._broker

    async def open_async(self) -> AsyncBroker:
        """Return the same broker for an event loop, without blocking the loop."""
        broker = self._broker
        if broker is None or len(self._declared) != len(self._queues):
            broker = await asyncio.get_running_loop().run_in_executor(None, self.open)
        return AsyncBroker(broker.core)

    @property
    def broker(self) -> Broker:
        """The broker, opened if need be."""
        return self.open()

    @property
    def store_url(self) -> str:
        """The URL of the store, for display: without a password, a file with its absolute path."""
        return self._used or redact_url(absolute_sqlite_url(self._named(), Path.cwd()))

    @property
    def async_broker(self) -> AsyncBroker:
        """The broker for an event loop, on the same store. `await open_async()` opens it without blocking the loop."""
        return AsyncBroker(self.open().core)

    def create_queues(self, broker: Broker) -> None:
        """Create the declared queues in this broker, and set what their declarations name."""
        broker.run_flow(
            create_declared_queues(broker.core, {name: queue.settings for name, queue in self._queues.items()})
        )

    @contextlib.contextmanager
    def override_broker(self, where: str | Broker, **options: Unpack[ConnectOptions]) -> Iterator[Broker]:
        """Run on another store within this: a URL, with options as for `connect`, or a broker. For tests."""
        if isinstance(where, Broker):
            if options:
                raise InvalidInput(f"a broker is open already: {', '.join(options)} cannot be given with it")
            broker = where
        else:
            broker = self._connect(where, options)
        with contextlib.ExitStack() as stack:
            if broker is not where:
                stack.enter_context(broker)
            self.create_queues(broker)
            with self._opening:
                before = self._broker, self._declared, self._used
                url = redact_url(absolute_sqlite_url(str(where), Path.cwd()))
                used = broker.core.store.name if broker is where else url
                self._broker, self._declared, self._used = broker, set(self._queues), used
            try:
                yield broker
            finally:
                with self._opening:
                    self._broker, self._declared, self._used = before

    def close(self) -> None:
        """Close the broker, if it is open. The next use opens it again."""
        with self._opening:
            broker, self._broker, self._declared = self._broker, None, set()
        if broker is not None:
            broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, url: str, options: ConnectOptions) -> Broker:
        """Return a broker on the store of a URL. A token is passed to servers only."""
        if isinstance(url, str) and url.startswith(("http://", "https://")):
            options = {"token": self._token or token_for(url), **options}
        given: ConnectOptions = {**self._options, **options}
        return connect(url, **given)

    def _named(self) -> str:
        """Return the URL of the store."""
        return self._url or os.environ.get(URL_VARIABLE) or DEFAULT_URL

    def _declare_new(self, broker: Broker, known: set[str]) -> None:
        """Declare in the broker the queues that are not in `known`."""
        new = {name: queue.settings for name, queue in self._queues.items() if name not in known}
        broker.run_flow(create_declared_queues(broker.core, new))
        self._declared = known | new.keys()
