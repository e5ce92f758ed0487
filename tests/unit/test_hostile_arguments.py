"""Arguments that do anything when they are looked at: the call is refused, names the argument, and changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from typing import Any

import pytest

from redrive import App, AsyncBroker, Broker, connect
from redrive.broker.api.base import BrokerBase
from redrive.errors import InvalidInput, RedriveError
from redrive.testing import FakeClock, memory_broker

_SPECIAL = [
    "repr",
    "str",
    "bytes",
    "format",
    "hash",
    "bool",
    "len",
    "length_hint",
    "iter",
    "next",
    "contains",
    "getitem",
    "reversed",
    "call",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "int",
    "float",
    "index",
    "complex",
    "round",
    "trunc",
    "floor",
    "ceil",
    "add",
    "radd",
    "sub",
    "rsub",
    "mul",
    "rmul",
    "floordiv",
    "rfloordiv",
    "truediv",
    "rtruediv",
    "mod",
    "rmod",
    "divmod",
    "neg",
    "abs",
    "or",
    "ror",
    "and",
    "rand",
    "instancecheck",
    "fspath",
    "enter",
    "exit",
    "await",
    "aiter",
]


class Boom(Exception):
    """What hostile objects raise. Its own text cannot be read either."""

    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


def hostile(*bases: type, raises: type[BaseException] = Boom) -> type[Any]:
    """A class that raises whatever is asked of its instances."""

    def special(self: Any, *given: Any, **named: Any) -> Any:
        raise raises

    names = {f"__{name}__": special for name in _SPECIAL}
    others = ("items", "keys", "values", "get", "strip", "lower", "upper", "encode", "partition", "isascii", "split",
              "startswith", "astimezone", "total_seconds", "isoformat")  # fmt: skip
    return type("Hostile", bases, {**names, **dict.fromkeys(others, special), "__slots__": ()})


class Liar:
    """Equal to everything."""

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    def __hash__(self) -> int:
        return hash("dead")


class Masked:
    """Does not say what it is."""

    @property
    def __class__(self) -> Any:
        raise Boom


class HostileMapping(Mapping[str, str]):
    """A table that breaks while it is read."""

    def __getitem__(self, name: str) -> str:
        raise Boom

    def __iter__(self) -> Iterator[str]:
        yield "a"
        raise Boom

    def __len__(self) -> int:
        return 1


class EndlessMapping(Mapping[str, str]):
    """A table that never ends."""

    def __getitem__(self, name: str) -> str:
        return "x"

    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())

    def __len__(self) -> int:
        return 1


def broken() -> Iterator[Any]:
    """An iterator that breaks behind its first member."""
    yield "0" * 32
    raise Boom


KINDS: dict[str, Callable[[], Any]] = {
    "object": lambda: hostile(object)(),
    "text": lambda: hostile(str)("jobs"),
    "number": lambda: hostile(int)(0),
    "fraction": lambda: hostile(float)(0.0),
    "list": lambda: hostile(list)([1]),
    "table": lambda: hostile(dict)({"a": "b"}),
    "mapping": HostileMapping,
    "endless mapping": EndlessMapping,
    "liar": Liar,
    "masked": Masked,
    "iterator": broken,
    "endless": lambda: itertools.repeat("0" * 32),
    "endless pairs": lambda: itertools.repeat(("jobs", 1)),
}
ALSO_AWAITED = ("object", "text")
"""What both faces are tried with. They share what looks at arguments."""

_LEASE, _DEAD, _OPERATION = "a lease", "a dead letter", "an operation"
USES: dict[str, dict[str, Any]] = {
    "create_queue": {"name": "more", "lease_timeout": 5, "max_attempts": 3, "retry": {"attempts": 2}, "feed": "all",
                     "dead_queue": "jobs", "final_errors": ["X"], "error_rules": [], "on_dead": "keep", "search": True,
                     "retry_after": "delay", "redact": {"keys": ["iban"]}},
    "update_queue": {"name": "jobs", "actor": "ann", "max_size": 100, "keep_dead": "7d"},
    "get_queue": {"name": "jobs"},
    "delete_queue": {"name": "jobs", "confirm": 3, "actor": "ann"},
    "clear_queue": {"queue": "mails", "statuses": ["dead"], "final": False, "older_than": "9d", "confirm": 0,
                    "dry_run": False, "actor": "ann", "progress": print},
    "pause_queue": {"name": "jobs", "actor": "ann"},
    "resume_queue": {"name": "jobs", "actor": "ann"},
    "list_breakers": {"queue": "jobs"},
    "open_breaker": {"queue": "jobs", "kind": "network", "open_for": 60, "note": "why", "actor": "ann"},
    "close_breaker": {"queue": "jobs", "kind": "queue", "note": "why", "actor": "ann"},
    "on_breaker_change": {"hook": print},
    "stats": {"queue": "jobs"},
    "list_stats": {"names": ["jobs"]},
    "put": {"queue": "jobs", "value": 1, "delay": 1, "priority": 5, "expire_timeout": 60, "headers": {"a": "b"},
            "idempotency_key": "k", "content_type": None, "held_by": None, "max_attempts": 3, "max_losses": 3,
            "retry": {"attempts": 2}, "enqueue_at": None, "expire_at": None, "transaction": None},
    "put_many": {"queue": "jobs", "values": [1], "transaction": None},
    "put_failed": {"queue": "jobs", "value": 1, "error": "broke", "verdict": None, "headers": {},
                   "idempotency_key": "k", "content_type": None, "max_attempts": 3, "max_losses": 3,
                   "retry": {"attempts": 2}},
    "lease": {"queue": "jobs", "limit": 1, "wait": 0, "lease_timeout": 60, "worker": "w"},
    "lease_by_id": {"ids": [_DEAD], "include_dead": True, "lease_timeout": 60, "worker": "w"},
    "extend": {"lease": _LEASE, "timeout": 60},
    "complete": {"lease": _LEASE, "result": 1, "puts": [("jobs", 1)], "keep_result": 60},
    "result": {"id": _DEAD},
    "fail": {"lease": _LEASE, "error": "broke", "final": False, "verdict": None},
    "release": {"lease": _LEASE, "delay": 1, "counted": True, "error": "note"},
    "bury": {"lease": _LEASE, "note": "why", "error": None},
    "report_lost": {"lease": _LEASE, "error": "gone"},
    "get": {"id": _DEAD, "redacted": True},
    "get_many": {"ids": [_DEAD], "redacted": True},
    "find_by_key": {"queue": "jobs", "keys": ["k"], "redacted": True},
    "find": {"order": "newest", "limit": 5, "cursor": None, "redacted": True, "where": None, "queue": "jobs",
             "status": "dead", "since": "1h", "words": "broke", "headers": {"a": "b"}, "ids": [_DEAD], "held": False,
             "error_type": "X", "error_class": "network", "reason": "expired", "min_attempts": 1, "fingerprint": "f",
             "held_by": "ann", "operation": "o", "id_prefix": "7f", "origin_queue": "jobs", "until": "1s"},
    "count": {"where": None, "queue": "jobs", "status": "any"},
    "groups": {"queue": "jobs", "limit": 5},
    "feed": {"after": 0, "before": 9, "queue": "jobs", "id": _DEAD, "kinds": ["dead"], "operation": "o", "limit": 5},
    "follow": {"after": 0, "queue": "jobs", "id": _DEAD, "kinds": ["dead"], "operation": "o", "wait": 0},
    "audit": {"limit": 5, "before": 9},
    "export": {"where": None, "cursor": None, "redacted": True, "queue": "jobs"},
    "moves": {"limit": 5},
    "retry": {"ids": [_DEAD], "actor": "ann", "force": False},
    "redrive": {"ids": [_DEAD], "to": "mails", "payload": 1, "headers": {"a": "b"}, "edit": None, "edit_headers": None,
                "actor": "ann", "force": False, "note": "why"},
    "redrive_edited": {"ids": [], "edit": {"a": 1}, "edit_headers": None, "to": "mails", "rate": 100.0,
                       "canary": 0, "canary_success_ratio": 1.0, "wait": 1, "actor": "ann", "force": False,
                       "note": "why", "progress": None},
    "undo": {"ids": [_DEAD], "actor": "ann"},
    "move": {"ids": [_DEAD], "to": "mails", "actor": "ann", "force": False},
    "reschedule": {"ids": [_DEAD], "delay": 0, "enqueue_at": None, "actor": "ann", "note": "why"},
    "purge": {"ids": [_DEAD], "actor": "ann"},
    "complete_items": {"ids": [_DEAD], "actor": "ann", "force": False},
    "drop": {"ids": [_DEAD], "actor": "ann", "force": False},
    "archive": {"ids": [_DEAD], "actor": "ann"},
    "restore": {"ids": [_DEAD], "actor": "ann"},
    "fail_items": {"ids": [_DEAD], "error": "broke", "actor": "ann", "force": False},
    "bury_items": {"ids": [_DEAD], "note": "why", "actor": "ann", "force": False},
    "hold": {"ids": [_DEAD], "held_by": "ann", "lasting": True},
    "unhold": {"held_by": "ann", "ids": [_DEAD]},
    "import_items": {"lines": [b""], "queue": "jobs", "actor": "ann", "progress": None},
    "start_operation": {"verb": "redrive", "where": None, "to": None, "limit": 7, "rate": 5.0, "canary": 1,
              "canary_success_ratio": 0.5,
              "confirm": None, "note": "why", "actor": "ann", "paused": True, "queue": "jobs", "ids": [_DEAD]},
    "plan_operation": {"verb": "redrive", "where": None, "to": None, "limit": 7, "queue": "jobs"},
    "get_operation": {"id": _OPERATION},
    "list_operations": {"unfinished": True, "limit": 5},
    "pause_operation": {"id": _OPERATION, "actor": "ann"},
    "resume_operation": {"id": _OPERATION, "skip_canaries": False, "actor": "ann"},
    "cancel_operation": {"id": _OPERATION, "actor": "ann"},
    "set_operation_rate": {"id": _OPERATION, "rate": 5.0, "actor": "ann"},
    "undo_operation": {"id": _OPERATION, "actor": "ann"},
    "run_operation": {"id": _OPERATION, "wait": 0, "progress": None, "at_once": 5},
    "on_store": {"store": "memory"},
    "queue": {"name": "jobs"},
}  # fmt: skip
WITHOUT_ARGUMENTS = {"list_queues", "workers", "run_maintenance", "durability", "health", "close"}
ALSO_CALLED = {
    "id": ("item id", "operation id"), "ids": ("item id",), "value": ("payload",), "values": ("put_many", "payload"),
    "headers": ("header",), "payload": ("payload",), "result": ("payload",), "name": ("queue",), "to": ("queue",),
    "idempotency_key": ("idempotency key",), "where": ("Filter",), "lines": ("line",), "edit": ("payload",),
    "edit_headers": ("headers",), "verb": ("operation",), "final": (), "kinds": ("kinds",), "store": ("store",),
    "operation": ("operation",), "content_type": ("content type",), "lease": ("lease token",), "names": ("queue",),
    "keys": ("idempotency key",),
}  # fmt: skip


def test_every_method_and_argument_is_tried() -> None:
    methods = {name: each for name, each in inspect.getmembers(Broker, inspect.isfunction) if not name.startswith("_")}
    methods = {name: each for name, each in methods.items() if name not in vars(BrokerBase)}  # these take flows
    assert methods.keys() == USES.keys() | WITHOUT_ARGUMENTS
    for name, method in methods.items():
        parameters = inspect.signature(method).parameters.values()
        named = {each.name for each in parameters if each.kind is not each.VAR_KEYWORD} - {"self"}
        assert named <= USES.get(name, {}).keys(), name


@contextlib.contextmanager
def opened() -> Iterator[Broker]:
    with memory_broker(FakeClock()) as broker:
        broker.create_queue("jobs", feed="all")
        broker.create_queue("mails")
        broker.put_many("jobs", range(3))
        yield broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with opened() as broker:
        yield broker


def arguments_of(broker: Broker, name: str) -> dict[str, Any]:
    """Arguments that are right."""
    lease, dying = broker.lease("jobs", 2)
    broker.bury(dying)
    operation = broker.start_operation("redrive", queue="mails", paused=True)
    if name == "undo_operation":
        broker.cancel_operation(operation.id)
    real = {_LEASE: lease, _DEAD: dying.id, _OPERATION: operation.id}

    def filled(value: Any) -> Any:
        return [filled(each) for each in value] if type(value) is list else real.get(value, value) if type(
            value) is str else value  # fmt: skip

    return {argument: filled(value) for argument, value in USES[name].items()}


def called(broker: Broker, face: str, name: str, arguments: dict[str, Any]) -> Any:
    if face == "blocking":
        given = getattr(broker, name)(**arguments)
        if any(given is each for each in arguments.values()):  # a hook comes back to who decorates with it
            return None
        return list(itertools.islice(given, 3)) if isinstance(given, Iterator) else given

    async def call() -> Any:
        given = getattr(AsyncBroker(broker.core), name)(**arguments)
        if any(given is each for each in arguments.values()):
            return None
        if isinstance(given, AsyncIterator):
            return [each async for each in given]
        return await given if inspect.isawaitable(given) else given

    return asyncio.run(call())


def standing(broker: Broker) -> Any:
    """All that a call could have changed."""
    items = [broker.get(item.id) for item in broker.find(status="any", limit=100).items]
    return broker.list_queues(), items, broker.list_operations(), broker.audit()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", USES)
def test_hostile_arguments_are_refused_or_harmless(name: str, kind: str) -> None:
    for argument in USES[name]:
        for face in ("blocking", "awaited") if kind in ALSO_AWAITED else ("blocking",):
            with opened() as broker:
                _try(broker, face, name, argument, KINDS[kind]())


def _names(refusal: InvalidInput, argument: str) -> bool:
    return any(word in str(refusal) for word in (argument, *ALSO_CALLED.get(argument, ())))


def _try(broker: Broker, face: str, name: str, argument: str, given: Any) -> None:
    arguments = arguments_of(broker, name)
    before = standing(broker)
    try:
        called(broker, face, name, {**arguments, argument: given})
    except RedriveError as refusal:
        if isinstance(refusal, InvalidInput) and not _names(refusal, argument):
            raise AssertionError(f"{argument} is not named: {refusal}") from refusal
    except Exception as error:
        raise AssertionError(f"{argument}: an error that is not ours") from error
    else:
        return
    assert standing(broker) == before, argument


@pytest.mark.parametrize(
    ("name", "argument", "make"),
    [
        ("put", "value", lambda: hostile(dict)({"a": 1})),
        ("put", "headers", HostileMapping),
        ("put", "queue", lambda: hostile(object)()),
        ("put", "priority", lambda: hostile(int)(1)),
        ("put_many", "values", broken),
        ("complete", "puts", broken),
        ("drop", "ids", broken),
        ("feed", "kinds", broken),
        ("import_items", "lines", broken),
        ("create_queue", "retry", HostileMapping),
        ("put", "retry", HostileMapping),
    ],
)
def test_refusal_has_the_error_of_the_object_as_its_cause(
    broker: Broker, name: str, argument: str, make: Callable[[], Any]
) -> None:
    with pytest.raises(InvalidInput) as refusal:
        called(broker, "blocking", name, {**arguments_of(broker, name), argument: make()})
    if argument not in ("queue", "lines"):  # those are refused before anything is asked of them, or as a line
        assert isinstance(refusal.value.__cause__, Boom)
        assert "Boom" in str(refusal.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, asyncio.CancelledError])
@pytest.mark.parametrize(
    ("name", "argument"), [("put", "value"), ("put", "headers"), ("put_many", "values"), ("drop", "ids")]
)
def test_what_is_no_exception_passes_as_itself(
    broker: Broker, name: str, argument: str, error: type[BaseException]
) -> None:
    def interrupted() -> Iterator[Any]:
        yield "0" * 32
        raise error

    given = interrupted() if argument in ("values", "ids") else hostile(dict, raises=error)({"a": "b"})
    arguments = arguments_of(broker, name)
    with pytest.raises(error):
        called(broker, "blocking", name, {**arguments, argument: given})


def test_put_many_stops_reading_behind_the_limit(broker: Broker) -> None:
    read = itertools.count()
    with pytest.raises(InvalidInput, match="at most 10,000 items"):
        broker.put_many("jobs", (next(read) for _ in itertools.repeat(0)))
    assert next(read) == 10_001
    assert broker.stats("jobs").pending == 3


def test_table_without_an_end_in_a_retry_policy_is_refused(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match=r"retry\.by_type has more than 1,000 entries"):
        broker.put("jobs", 1, retry={"attempts": 2, "by_type": EndlessMapping()})
    assert broker.stats("jobs").pending == 3


def test_names_of_any_kind_of_text_are_kept_as_plain_texts(broker: Broker) -> None:
    class Name(str):
        __slots__ = ()

    receipt = broker.put(Name("jobs"), 1, headers={Name("a"): Name("b")}, idempotency_key=Name("k"), held_by=Name("h"))
    item = broker.get(Name(receipt.id))
    texts = [item.queue, item.idempotency_key, *item.held_by, *item.headers, *item.headers.values()]
    assert [type(text) for text in texts] == [str] * 5


@pytest.fixture
def app() -> Iterator[App]:
    app = App("memory://", maintenance=False)
    with app:
        yield app


@dataclasses.dataclass
class Picky:
    """Refuses itself in its own way."""

    size: int

    def __post_init__(self) -> None:
        raise Boom


def test_tasks_refuse_hostile_calls_and_put_nothing(app: App) -> None:
    @app.queue("jobs").task
    def send(to: Any = None, picky: Picky | None = None) -> None: ...

    with pytest.raises(InvalidInput, match="at most 10,000 items"):
        send.put_many(itertools.repeat(send.item("ann")))
    with pytest.raises(InvalidInput, match="items cannot be read: Boom"):
        send.put_many(broken())
    for kind, make in KINDS.items():
        if kind not in ("endless", "endless pairs", "endless mapping"):
            with contextlib.suppress(InvalidInput):
                send.item(make())
        with contextlib.suppress(InvalidInput):
            send.options(headers=make())
        with contextlib.suppress(InvalidInput):
            send.options(delay=make(), priority=make(), idempotency_key=make())
        with contextlib.suppress(InvalidInput):
            app.queue(make())
    with pytest.raises(InvalidInput, match=r"picky|what was given"):
        send.item(picky=object.__new__(Picky))
    assert app.broker.stats("jobs").pending == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "argument", ["url", "namespace", "store_name", "stores", "actor", "backoffs", "durability", "redact"]
)
def test_connect_refuses_hostile_arguments(argument: str, kind: str) -> None:
    given = {"url": "memory://", "maintenance": False, argument: KINDS[kind]()}
    with contextlib.suppress(RedriveError):
        connect(**given).close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["keys", "patterns", "allow"])
def test_connect_refuses_hostile_rules_for_redaction(name: str, kind: str) -> None:
    for given in (KINDS[kind](), [KINDS[kind]()]):
        with contextlib.suppress(RedriveError):
            connect("memory://", maintenance=False, redact={name: given}).close()
