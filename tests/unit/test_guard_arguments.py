"""A retry of a guarded call gets the arguments that the call got; or it is not captured, and a note says why."""

from __future__ import annotations

import asyncio
import collections
import copy
import datetime as dt
import decimal
import enum
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
import pytest

from redrive.capture import Captured, DeadLetterQueue


@dataclass
class Order:
    id: int
    lines: list[int] = field(default_factory=list)


@dataclass(eq=False)
class Handle:
    id: int
    parts: list[int]


class Frozen(msgspec.Struct, frozen=True):
    tags: list[str]


class Point(NamedTuple):
    x: int
    parts: list[int]


class Color(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    SMALL = "small"


class Unequal:
    """A value that does not let itself be compared."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]


class Sneaky(list[Any]):
    """A list whose methods lie."""

    def __iter__(self) -> Iterator[Any]:
        raise SystemExit


NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.timezone(dt.timedelta(hours=9)))
AS_JSON: list[Any] = [None, True, 7, 2**70, 1.5, "text", [1, [2]], {"a": {"b": []}}, Size.SMALL, {}, [], ""]
AS_JSON.append(collections.OrderedDict(a=1))
OTHERS: list[tuple[Any, Any]] = [
    (b"bytes", bytes),
    ({1, 2}, set[int]),
    (frozenset({1}), frozenset[int]),
    ((1, 2), tuple[int, ...]),
    ([(1, 2)], list[tuple[int, int]]),
    ({1: "a"}, dict[int, str]),
    ({"a": {2: "b"}}, dict[str, dict[int, str]]),
    (NOON, dt.datetime),
    (NOON.date(), dt.date),
    (dt.timedelta(seconds=1), dt.timedelta),
    (uuid.UUID(int=5), uuid.UUID),
    (decimal.Decimal("1.10"), decimal.Decimal),
    (Order(3, [1]), Order),
    ([Order(3)], list[Order]),
    (Frozen(["a"]), Frozen),
    (Point(1, [2]), Point),
    (Color.RED, Color),
    (bytearray(b"b"), bytearray),
]


@pytest.fixture
def dlq() -> Iterator[DeadLetterQueue]:
    with DeadLetterQueue("memory://") as dlq:
        yield dlq


def retried(dlq: DeadLetterQueue, annotation: Any, *given: Any, spoil: Callable[..., Any] = bool) -> Any:
    """Call a guarded function, which changes its arguments and fails. Return what a retry gets."""
    got: list[Any] = []

    def send(*values: Any) -> None:
        got.append(values)
        if len(got) == 1:
            for value in values:
                spoil(value)
            raise ConnectionError("down")

    def one(x: Any) -> None:
        send(x)

    one.__annotations__["x"] = annotation
    captured: Any = dlq.guard(name="one", on_failure="handle")(one)(*given)
    assert isinstance(captured, Captured)
    assert dlq.retry_task(captured.task_id)["success"]
    ((found,),) = got[1:]
    return found


def refused(annotation: Any, given: Any) -> str:
    """Call a guarded function that fails. Return why it is not captured."""

    def one(x: Any) -> None:
        raise ConnectionError("down")

    one.__annotations__["x"] = annotation
    with DeadLetterQueue("memory://") as dlq:
        with pytest.raises(ConnectionError, match="down") as caught:
            dlq.guard(name="one", on_failure="handle")(one)(given)
        assert dlq.list_tasks() == []
    (note,) = caught.value.__notes__
    return note


@pytest.mark.parametrize("given", AS_JSON, ids=repr)
def test_value_of_json_needs_no_annotation(dlq: DeadLetterQueue, given: Any) -> None:
    assert retried(dlq, Any, given) == given


@pytest.mark.parametrize(("given", "annotation"), OTHERS, ids=lambda value: repr(value)[:30])
def test_other_value_needs_its_annotation(dlq: DeadLetterQueue, given: Any, annotation: Any) -> None:
    assert refused(Any, given).endswith("annotate the parameter with its type")
    found = retried(dlq, annotation, given)
    assert (found, type(found)) == (given, type(given))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (b"b", "x is bytes, and would come back as str"),
        ([{"a": (1, 2)}], "x[0]['a'] is tuple, and would come back as list"),
        ({"a": {1: 2}}, "x['a'] has a key that is int, and would come back as str"),
        ([1, Order(2)], "x[1] is tests.unit.test_guard_arguments.Order, and would come back as dict"),
    ],
)
def test_note_names_the_place_and_not_the_value(given: Any, problem: str) -> None:
    assert f"{problem}; annotate the parameter with its type" in refused(Any, given)


def test_annotation_decides_what_a_call_gets(dlq: DeadLetterQueue) -> None:
    assert retried(dlq, Sequence[int], (1, 2)) == [1, 2]
    assert "x[0] is tuple" in refused(list, [(1, 2)])


def test_record_without_equality_comes_back_by_its_fields(dlq: DeadLetterQueue) -> None:
    found = retried(dlq, list[Handle], [Handle(1, [2])], spoil=lambda given: given[0].parts.append(3))
    assert [(type(each), each.id, each.parts) for each in found] == [(Handle, 1, [2])]


def test_value_that_raises_when_compared_is_refused() -> None:
    assert "x cannot be written as JSON" in refused(Any, Unequal())


CHANGES: list[tuple[Any, Any, Callable[[Any], Any]]] = [
    (list[int], [1], lambda x: x.append(2)),
    (Any, [[1]], lambda x: x[0].clear()),
    (Any, {"a": [1]}, lambda x: x["a"].append(2)),
    (Any, collections.defaultdict(list, a=[1]), lambda x: x["b"].append(2)),
    (set[int], {1}, lambda x: x.add(2)),
    (bytearray, bytearray(b"a"), lambda x: x.extend(b"b")),
    (tuple[list[int]], ([1],), lambda x: x[0].append(2)),
    (Order, Order(1, [1]), lambda x: (x.lines.append(2), setattr(x, "id", 9))),
    (dict[str, Order], {"a": Order(1)}, lambda x: x["a"].lines.append(1)),
    (Frozen, Frozen(["a"]), lambda x: x.tags.append("b")),
    (Point, Point(1, [2]), lambda x: x.parts.append(3)),
]


@pytest.mark.parametrize(("annotation", "given", "spoil"), CHANGES, ids=range(len(CHANGES)))
def test_retry_gets_the_arguments_as_they_were_before_the_call(
    dlq: DeadLetterQueue, annotation: Any, given: Any, spoil: Callable[[Any], Any]
) -> None:
    before = copy.deepcopy(given)
    found = retried(dlq, annotation, given, spoil=spoil)
    assert found == before != given


@pytest.mark.parametrize("kind", ["function", "coroutine function", "function that returns a coroutine", "by name"])
def test_every_kind_of_call_is_captured_as_it_was_given(dlq: DeadLetterQueue, kind: str) -> None:
    def change(items: list[int]) -> None:
        items.append(2)
        raise ConnectionError("down")

    async def change_later(items: list[int]) -> None:
        items.append(2)
        raise ConnectionError("down")

    async def fail() -> None:
        raise ConnectionError("down")

    def change_first(items: list[int]) -> Any:
        items.append(2)
        return fail()

    function: Any = {"coroutine function": change_later, "function that returns a coroutine": change_first}.get(kind)
    guarded = dlq.guard(name="change")(function or change)

    async def call() -> None:
        called = guarded(items=[1]) if kind == "by name" else guarded([1])
        await called

    with pytest.raises(ConnectionError):
        asyncio.run(call())
    assert dlq.list_tasks()[0].task["arguments"] == {"items": [1]}


def test_key_is_made_of_the_arguments_before_the_call(dlq: DeadLetterQueue) -> None:
    @dlq.guard(key=lambda order, **_: order["id"], on_failure="handle")
    def pay(order: dict[str, str], *, amount: int) -> None:
        order.clear()
        raise ConnectionError("down")

    assert pay({"id": "order-7"}, amount=1) == Captured("order-7")


def test_object_of_a_method_is_the_object_itself(dlq: DeadLetterQueue) -> None:
    seen: list[object] = []

    @dataclass
    class Shop:
        sold: list[int]

        @dlq.guard(key=lambda self, order: seen.append(self) or "one")
        def sell(self, order: list[int]) -> None:
            raise ConnectionError("down")

    shop = Shop([1])
    dlq.bind(shop.sell)
    with pytest.raises(ConnectionError):
        shop.sell([2])
    assert seen[0] is shop


class Mapped:
    """An attribute as of an ORM, whose state a copy of the object has in common with it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, record: Any, owner: type) -> Any:
        if record is None:
            raise AttributeError(self.name)
        return record.state[self.name]

    def __set__(self, record: Any, value: Any) -> None:
        vars(record).setdefault("state", {})[self.name] = value


@dataclass
class Row:
    id: int
    lines: list[int] = Mapped()  # type: ignore[assignment]  # as a declarative mapping does


def test_call_does_not_write_to_an_object_whose_attributes_are_descriptors(dlq: DeadLetterQueue) -> None:
    @dlq.guard
    def give(row: Row) -> Row:
        return row

    lines = [1, 2]
    row = give(Row(1, lines))
    assert row.lines is lines


class Order(dict[str, Any]):
    """A mapping of a program, with attributes and a method."""

    __getattr__ = dict.__getitem__

    def __init__(self, id: int, **given: Any) -> None:
        super().__init__(id=id, **given)
        self.__dict__["shop"] = "north"

    def name(self) -> str:
        return f"{self.__dict__['shop']}-{self.id}-{len(self['lines'])}"


class Orders(list[Order]):
    """A list of a program, with a method."""

    def name(self) -> str:
        return self[0].name()


@pytest.mark.parametrize("given", [Order(7, lines=[1]), Orders([Order(7, lines=[1])])], ids=["dict", "list"])
def test_key_is_called_with_objects_of_the_classes_of_the_caller(dlq: DeadLetterQueue, given: Any) -> None:
    @dlq.guard(key=lambda order: order.name())
    def pay(order: Any) -> None:
        (order[0] if isinstance(order, Orders) else order)["lines"].clear()
        raise ConnectionError("down")

    with pytest.raises(ConnectionError) as failed:
        pay(given)
    assert [task.task_id for task in dlq.list_tasks()] == ["north-7-1"], failed.value.__notes__


def test_nan_of_decimal_comes_back(dlq: DeadLetterQueue) -> None:
    @dlq.guard
    def price(value: Decimal) -> None:
        raise ConnectionError("down")

    with pytest.raises(ConnectionError):
        price(Decimal("NaN"))
    assert len(dlq.list_tasks()) == 1


@dataclass(slots=True)
class Slotted:
    id: int
    lines: list[int]


@dataclass
class Mixed(Slotted):
    tags: list[str]


def test_copy_has_the_slots_and_the_other_fields_of_a_record(dlq: DeadLetterQueue) -> None:
    found = retried(dlq, Mixed, Mixed(1, [1], ["a"]), spoil=lambda given: (given.lines.clear(), given.tags.clear()))
    assert found == Mixed(1, [1], ["a"])


@pytest.mark.parametrize("make", [lambda: Sneaky([1]), lambda: object(), lambda: [[...]], lambda: deep()])
def test_call_is_not_touched_by_arguments_that_cannot_be_copied(dlq: DeadLetterQueue, make: Callable[[], Any]) -> None:
    @dlq.guard
    def give(x: Any) -> Any:
        return x

    given = make()
    assert give(given) is given


def deep() -> list[Any]:
    """A list that is nested deeper than any stack, and in itself."""
    found: list[Any] = []
    found.append(found)
    return found


def test_execute_with_dlq_captures_the_task_as_it_was_given(dlq: DeadLetterQueue) -> None:
    def call(task: dict[str, Any], repos: list[str]) -> None:
        task.clear()
        repos.append("changed")
        raise ConnectionError("down")

    id = dlq.execute_with_dlq(call, {"type": "sweep"}, repos=["a"])["dlq_task_id"]
    task = dlq.get_task(id)
    assert task is not None
    assert (task.task, task.repos) == ({"type": "sweep"}, ["a"])
