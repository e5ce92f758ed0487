"""Putting a task: with its own options, or with others for the moment."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

import msgspec

from redrive.errors import InvalidInput, shown
from redrive.model.given import listed
from redrive.model.limits import MAX_PUT
from redrive.model.payload import check_headers
from redrive.task.context import TaskItem
from redrive.task.handle import Handle
from redrive.task.options import PutOptions, check_options, template
from redrive.telemetry import tracing

if TYPE_CHECKING:
    from redrive.task.task import Task

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

TASK_HEADER = "task"
"""Names the task of an item."""


class Puts(Generic[P, R_co]):
    """How calls of one task are put. Arguments are those of its function, and are checked by its types now."""

    def __init__(self, task: Task[P, R_co], options: PutOptions) -> None:
        check_options("put", options, PutOptions)
        self._task = task
        self._given = options
        self._within: Any = options.get("within")
        self._template = template(TASK_HEADER, task.name, options)

    def options(self, **options: Unpack[PutOptions]) -> Puts[P, R_co]:
        """The same with these options: `send.options(delay="5m").put(…)`."""
        merged: PutOptions = {**self._given, **options}
        if "headers" in options:
            merged["headers"] = {**check_headers(self._given.get("headers", {})), **check_headers(options["headers"])}
        return Puts(self._task, merged)

    def item(self, *args: P.args, **kwargs: P.kwargs) -> TaskItem:
        """A call that is not put yet, for `put_many` and `context.put`."""
        payload = self._task.arguments.encode(args, kwargs)
        made, headers = self._template, tracing.inject(self._template.headers)
        return TaskItem(self._task.queue.name, msgspec.structs.replace(made, payload=payload, headers=headers))

    def put(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """Put one call. Raises `ArgumentsInvalid` where the function does not take these arguments."""
        return self.put_many((self.item(*args, **kwargs),))[0]

    async def put_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R_co]:
        """The same on an event loop."""
        return (await self.put_many_async((self.item(*args, **kwargs),)))[0]

    def put_many(self, items: Iterable[TaskItem]) -> list[Handle[R_co]]:
        """Put all of these calls, at most 10,000, or none: `send.put_many(send.item(to) for to in people)`."""
        made = self._checked(items)
        receipts = self._task.app.open().put_many(self._task.queue.name, made, within=self._within)
        return [Handle(self._task, receipt) for receipt in receipts]

    async def put_many_async(self, items: Iterable[TaskItem]) -> list[Handle[R_co]]:
        """The same on an event loop."""
        made = self._checked(items)
        broker = await self._task.app.open_async()
        receipts = await broker.put_many(self._task.queue.name, made, within=self._within)
        return [Handle(self._task, receipt) for receipt in receipts]

    def _checked(self, items: Iterable[TaskItem]) -> list[Any]:
        """The items, if all of them are calls of this task."""
        made = listed("items", items, MAX_PUT)
        if len(made) > MAX_PUT:
            raise InvalidInput(f"put_many takes at most {MAX_PUT:,} items, since all are put or none")
        for each in made:
            if type(each) is not TaskItem or (each.item.headers or {}).get(TASK_HEADER) != self._task.name:
                name = self._task.name
                raise InvalidInput(f"{name}.put_many takes what {name}.item(…) gives, not {shown(each, 60)}")
        return [each.item for each in made]
