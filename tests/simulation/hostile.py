"""Calls and queries that are well typed and mean harm: whatever the types of `redrive.store` can hold.

Most of a call makes sense, so that it gets far; some of it does not.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cache
from random import Random
from typing import Any, Literal, Union

import msgspec

from redrive.clock import Instant
from redrive.contract import Call, Query
from redrive.errors import InvalidInput
from redrive.model.arrival import MoveRoute
from redrive.model.feed import FeedKind
from redrive.model.ids import ItemId, Token
from redrive.model.item import Item, Status
from redrive.model.queue import QueueSettings

QUEUES = ("jobs", "mails", "morgue")
NASTY_TEXTS = (
    "",
    "jobs@elsewhere",
    "morgue@",
    "@",
    "nothing",
    "a\0b",
    "x" * 129,
    "x" * 300,
    "y" * 100_000,
    "\x1b[31mred",
    "ünï",
    "\ud800",
    "../../etc/passwd",
    "'; DROP TABLE redrive_item; --",
    "worker",
    "token",
    "default",
    "dead-newest-" + "f" * 16,
    "put-oldest-" + "0" * 15 + "1",
    "f" * 32,
    "0" * 32,
)
NASTY_IDS = ("0" * 32, "f" * 32, "7" + "f" * 31, "0" * 16 + "8" + "0" * 15, "", "g" * 32, "0" * 31, "\0" * 32)
NASTY_NUMBERS = (0, 1, -1, 10, 1001, 10_001, 2**31 - 1, 2**31, 2**53, 2**63 - 1, -(2**63), 2**64 - 1)
NASTY_INSTANTS = (0, 1, -1, 2**53 - 1, 2**53, 2**63 - 1, -(2**63))
NASTY_FLOATS = (0.0, -1.0, 1e-300, 1e300, float("nan"), float("inf"))
NASTY_BYTES = (b"{not json", b"\xff\0", b"[" * 2000 + b"]" * 2000, b"[1" + b"0" * 5000 + b"]", b"x" * 2_000_000)
TAME = {
    "kind": ("worker", "schedule", "anything"),
    "content_type": ("application/json", "application/octet-stream", "text/plain"),
    "store": ("elsewhere", "there"),
    "user": ("jobs@elsewhere",),
    "words": ("wrong", "wor*"),
    "fingerprint": ("abc",),
    "error_type": ("Error",),
    "idempotency_key": ("key-1", "key-2"),
    "id_prefix": ("0", "00ff"),
}
DURATIONS = (0, 1, 1_000_000, 60_000_000)
NAMES_OF_QUEUES = frozenset({"queue", "name", "to", "dead_queue", "origin_queue"})
NAMES_OF_DURATIONS = frozenset({"delay", "timeout", "expire_timeout", "keep", "lease_timeout", "base", "cap", "delays"})


class Mischief:
    """Makes calls. What exists is told to it, so that it can name that."""

    def __init__(self, random: Random, queues: Sequence[str] = QUEUES) -> None:
        self.random = random
        self.queues = queues
        self.share = 0.0
        """How much of a call is nasty."""
        self.now = Instant(0)
        self.ids: list[str] = []
        self.tokens: list[str] = []
        self.operations: list[str] = []
        self.versions: list[int] = [1]
        self.items: list[Item] = []

    def call(self) -> Any:
        """Any call or query."""
        self.share = self.random.choice((0.0, 0.03, 0.1, 0.5))
        kinds = (*typing.get_args(Call), *typing.get_args(Query))
        while True:
            made = self.struct(self.random.choice(kinds))
            if made is not None:
                return made

    def struct(self, kind: type[Any]) -> Any:
        """A value of a struct. None where it cannot even be made, and no message can bring it."""
        hints = hints_of(kind)
        given = {
            field.name: self.value(hints[field.name], field.name)
            for field in msgspec.structs.fields(kind)
            if field.required or self.random.random() < 0.3
        }
        try:
            return kind(**given)
        except InvalidInput:
            return None

    def value(self, hint: Any, name: str = "") -> Any:
        """A value of that type, for a field of that name."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (Union, types.UnionType):
            return self.value(self.random.choice(arguments), name)
        if origin is tuple and arguments[-1] is Ellipsis:
            return tuple(self.value(arguments[0], name) for _ in range(self.random.choice((0, 1, 1, 2, 5))))
        if origin is tuple:
            return tuple(self.value(each, name) for each in arguments)
        if origin in (Mapping, dict):
            pairs = range(self.random.choice((0, 1, 2)))
            keys = "queue" if name == "verdicts" else "key"
            return {self.value(arguments[0], keys): self.value(arguments[1], name) for _ in pairs}
        if origin is Literal:
            return self.one_of(arguments)
        if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
            return self.part(hint)
        return self.leaf(hint, name)

    def part(self, kind: type[Any]) -> Any:
        """A struct inside a call. Items are such as there are, with something wrong about them."""
        if kind is Item and self.items:
            item, hints = self.random.choice(self.items), hints_of(Item)
            names = self.random.sample(Item.__struct_fields__, self.random.choice((0, 1, 2)))
            if self.random.random() < 0.5:
                item = msgspec.structs.replace(item, status=Status.MOVING)
            return msgspec.structs.replace(item, **{name: self.value(hints[name], name) for name in names})
        if kind is MoveRoute and self.random.random() < 0.8:
            kind_of = self.random.choice((FeedKind.DEAD, FeedKind.REDRIVEN, FeedKind.MOVED))
            return MoveRoute("jobs@here", self.now, kind_of, Status.PENDING)
        if kind is QueueSettings and self.random.random() < 0.5:
            dead_queue = self.random.choice(self.queues)
            return self.random.choice(
                (QueueSettings(), QueueSettings(dead_queue=dead_queue), QueueSettings(max_size=3))
            )
        while True:
            made = self.struct(kind)
            if made is not None:
                return made

    def leaf(self, hint: Any, name: str) -> Any:
        nasty = self.random.random() < self.share
        if hint is ItemId:
            return self.one_of(NASTY_IDS if nasty else self.ids or NASTY_IDS)
        if hint is Token:
            return self.one_of([each * 2 for each in NASTY_IDS] if nasty or not self.tokens else self.tokens)
        if hint is Instant:
            return self.one_of(NASTY_INSTANTS if nasty else (self.now - 1, self.now, self.now + 60_000_000))
        if hint is type(None):
            return None
        if hint is str:
            return self.one_of(NASTY_TEXTS) if nasty else self.text(name)
        if hint is bool:
            return self.random.random() < 0.5
        if hint is int:
            return self.one_of(NASTY_NUMBERS) if nasty else self.number(name)
        if hint is float:
            return self.one_of(NASTY_FLOATS if nasty else (0.5, 1.0, 100.0))
        if hint is bytes:
            return self.one_of(NASTY_BYTES if nasty else (b"", b"null", b'{"a": 1}'))
        assert issubclass(hint, Enum)
        return self.one_of(list(hint))

    def text(self, name: str) -> str:
        if name == "id":
            return self.one_of(self.operations or self.ids or NASTY_IDS)
        if name in NAMES_OF_QUEUES:
            return self.one_of(self.queues)
        return self.one_of(TAME.get(name, ("ann", "bob", "some text")))

    def number(self, name: str) -> int:
        if name == "version":
            return self.one_of(self.versions)
        if name in NAMES_OF_DURATIONS or name.startswith(("keep_", "idempotency_", "archive_")):
            return self.one_of(DURATIONS)
        return self.random.randrange(6)

    def one_of(self, pool: Sequence[Any]) -> Any:
        return self.random.choice(pool)


@cache
def hints_of(kind: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(kind)
