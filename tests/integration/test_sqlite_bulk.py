"""Many items changed together leave behind what changing them one by one does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from redrive import Broker, RedriveError, Settled, connect
from redrive.contract.admin_calls import ManualChange, StepOperation
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.replies import REPLY_TO
from redrive.model.death import DeadReason
from redrive.model.duration import MINUTE
from redrive.model.failure import failure_from_fields
from redrive.model.item import Overrides, Status
from redrive.model.judge import Dead, RetryVerdict
from redrive.model.payload import JSON
from redrive.stores.relational import batch, bulk_changes, puts, rule_execution
from redrive.stores.rules.dispatch import execute_calls
from redrive.testing import FakeClock

_ID = re.compile(r"\b[0-9a-f]{32}\b")
VERBS = ("retry", "redrive", "archive", "restore", "purge")


def furnish(broker: Broker, clock: FakeClock) -> list[str]:
    """Dead items of every kind: uniform, with a key, an expiry or a long history of its own, moved, in a dead queue."""
    broker.create_queue("morgue")
    broker.create_queue("jobs", expire_timeout="1d", feed="all")
    broker.create_queue("mails")
    broker.create_queue("small", max_size=2)
    broker.create_queue("moving", dead_queue="morgue")
    odd: list[dict[str, Any]] = [{"idempotency_key": "k"}, {"expire_timeout": "1h"}, {"priority": 9}]
    broker.create_queue("plain", expire_timeout="2d")
    for queue in ("jobs", "mails", "small", "moving", "plain"):
        for number, options in enumerate([*odd[queue == "plain" :], {}, {}, {}, {}]):
            broker.put(queue, number, **options)
            broker.fail(broker.lease(queue)[0], ValueError(f"boom in {queue}"), final=True)
    busy = broker.put("plain", "often").id
    for _ in range(55):
        broker.release(broker.lease("plain")[0], error="not now", counted=False)
    broker.bury_items(busy)
    moved = broker.put("jobs", "moved").id
    broker.bury_items(moved)
    broker.move(moved, "mails")
    clock.advance("1m")
    ids = [item.id for item in broker.find(order="oldest", limit=100).items]
    return [*ids, moved, ids[0], "f" * 32]


def everything(broker: Broker, ids: list[str]) -> str:
    """All that can be seen of it, with ids by the order of their appearance."""
    seen: list[Any] = []
    for id in dict.fromkeys(ids):
        try:
            seen.append(broker.get(id))
        except RedriveError as refusal:
            seen.append(refusal)
    stats = [broker.stats(queue.name) for queue in broker.list_queues()]
    feed = [(e.kind, e.queue, e.id, e.actor, e.operation) for e in broker.feed(limit=1_000).entries]
    leases = [lease.id for queue in broker.list_queues() for lease in broker.lease(queue.name, 100)]
    names: dict[str, str] = {}
    return renamed((ids, seen, stats, broker.groups(), leases), names) + renamed(feed, names)


def renamed(value: object, names: dict[str, str] | None = None) -> str:
    known = {} if names is None else names
    return _ID.sub(lambda match: known.setdefault(match.group(), f"id{len(known)}"), repr(value))


def one_by_one(broker: Broker, verb: str, ids: list[str]) -> None:
    change: Callable[..., Any] = getattr(broker, verb)
    for id in ids:
        change([id], actor="ada")


def as_a_list(broker: Broker, verb: str, ids: list[str]) -> None:
    results = getattr(broker, verb)(ids, actor="ada")
    assert sum(isinstance(result, Settled) for result in results) > bulk_changes.BULK_THRESHOLD


def refuse_rules(state: Any, call: Any) -> Any:
    """No change follows the rules, because a lane takes it. To start an operation is no change."""
    assert not isinstance(call, ManualChange | StepOperation)
    return execute_calls(state, call)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("uniform", [True, False])
def test_list_of_ids_is_changed_as_if_one_by_one(
    verb: str, uniform: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for name, way in (("one", one_by_one), ("list", as_a_list)):
        clock = FakeClock()
        url = f"sqlite:///{tmp_path / name}.db"
        with (
            monkeypatch.context() as patch,
            connect(url, clock=clock, maintenance=False, actor="test", durability="relaxed") as broker,
        ):
            ids = furnish(broker, clock)
            changed = [item.id for item in broker.find(queue="plain", limit=100).items] if uniform else ids
            if verb in ("restore", "purge"):
                one_by_one(broker, "archive", ids)
            if uniform and name == "list":
                patch.setattr(rule_execution, "_execute_or_refuse", refuse_rules)
            way(broker, verb, changed)
            patch.undo()
            seen.append(everything(broker, ids))
    assert seen[0] == seen[1]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("queue", ["plain", "jobs", "mails", None])
def test_sweep_of_an_operation_changes_what_a_walk_does(
    verb: str, queue: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    for name in ("sweep", "walk"):
        clock = FakeClock()
        url = f"sqlite:///{tmp_path / name}.db"
        with (
            monkeypatch.context() as patch,
            connect(url, clock=clock, maintenance=False, actor="test", durability="relaxed") as broker,
        ):
            ids = furnish(broker, clock)
            if verb in ("restore", "purge"):
                broker.archive(ids)
            if name == "walk":
                patch.setattr(batch.Batch, "has_lanes", False)
            elif queue == "plain":
                patch.setattr(rule_execution, "_execute_or_refuse", refuse_rules)
            confirm = {"confirm": broker.count(status="archived", queue=queue)} if verb == "purge" else {}
            operation = broker.run_operation(
                broker.start_operation(verb, queue=queue, reason=None, actor="ada", **confirm).id
            )
            patch.undo()
            assert operation.changed > bulk_changes.BULK_THRESHOLD
            seen.append((operation.changed, operation.skipped, everything(broker, ids)))
    assert seen[0] == seen[1]


BOOM = failure_from_fields("app.Boom", "boom")
LATER, NOW = RetryVerdict(MINUTE, Status.FAILED), RetryVerdict(0, Status.FAILED)
BORN: list[dict[str, Any]] = [
    {"idempotency_key": "a", "verdict": LATER, "headers": {"h": "x"}, "priority": 9},
    {"idempotency_key": "b", "verdict": NOW, "overrides": Overrides(max_losses=3), "note": "noted"},
    {"idempotency_key": "a", "verdict": LATER},
    {"idempotency_key": "c", "verdict": LATER, "expire_timeout": MINUTE},
    {"idempotency_key": "d", "verdict": Dead(DeadReason.FINAL_ERROR)},
    {"idempotency_key": "e", "verdict": LATER, "delay": MINUTE},
    {"idempotency_key": "f", "verdict": RetryVerdict(0, Status.PENDING)},
    {"idempotency_key": "g", "verdict": LATER, "headers": {REPLY_TO: "answers"}},
    {"idempotency_key": "h", "verdict": LATER, "held_by": "ada"},
    {"source_id": "0" * 32, "idempotency_key": "i", "verdict": LATER},
    {"verdict": LATER},
    {"idempotency_key": "j", "verdict": LATER},
    {"idempotency_key": "k", "verdict": LATER, "version": -1},
    {"idempotency_key": "l", "verdict": RetryVerdict(MINUTE, Status.FAILED, ("breaker",))},
]
"""Options of items that have failed once."""
DRAWN = {"id_suffix", "seq", "number", "death_no"}
"""Columns with numbers that are random, or keep an order only."""


def tables_of(file: Path) -> dict[str, list[Any]]:
    """Every row of every table, but the search index. Numbers that only keep an order stand for it."""
    connection = apsw.Connection(str(file))
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'redrive%'"
    ).fetchall()
    names = [name for (name,) in found if not name.startswith(("redrive_search", "redrive_meta"))]
    return {name: list(rows_of(connection, name)) for name in names}


def rows_of(connection: apsw.Connection, table: str) -> Iterator[Any]:
    """The rows of a table in order, with items by their order: rules and lanes draw other numbers."""
    items = {number: place for place, (number,) in enumerate(connection.execute("SELECT item_no FROM redrive_item"))}
    columns = [column[1] for column in connection.execute(f"PRAGMA table_info({table})")]
    orders = {"redrive_history": "item_no, entry", "redrive_feed": "number"}
    order = orders.get(table, "seq" if "seq" in columns else "1, 2")
    for row in connection.execute(f"SELECT * FROM {table} ORDER BY {order}"):
        values = {name: value for name, value in zip(columns, row, strict=True) if name not in DRAWN}
        if table == "redrive_history":
            del values["key"]
        yield values | ({"item_no": items[values["item_no"]]} if "item_no" in values else {})


@pytest.mark.parametrize("size", [1, len(BORN)])
@pytest.mark.parametrize(
    ("settings", "in_one_go"),
    [
        ({}, 5),
        ({"idempotency_timeout": "item"}, 5),
        ({"expire_timeout": "1d"}, 5),
        ({"feed": "all"}, 0),
        ({"max_size": 9}, 0),
    ],
)
def test_item_that_is_retried_has_the_rows_of_any_other(
    settings: dict[str, Any], in_one_go: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written in one go, or by the rules: the same rows, counts and answers."""
    seen = []
    put_retried = puts._put_retried
    for name in ("in one go", "by the rules"):
        taken: list[Any] = []

        def put_in_one_go(*given: Any, taken: list[Any] = taken) -> Any:
            taken.append(put_retried(*given))
            return taken[-1]

        monkeypatch.setattr(puts, "_put_retried", put_in_one_go)
        if name == "by the rules":
            monkeypatch.setattr(puts, "_is_retried", lambda *_: False)
        file = tmp_path / f"{name}.db"
        with connect(f"sqlite:///{file}", clock=FakeClock(), maintenance=False, durability="relaxed") as broker:
            broker.create_queue("answers")
            version = broker.create_queue("jobs", **settings).version
            items = [NewItem(b"{}", JSON, failure=BOOM, **{"version": version, **options}) for options in BORN]
            calls = [Put("jobs", (item,)) for item in items]
            commits = [broker.core.store.commit(calls[at : at + size]) for at in range(0, len(calls), size)]
        assert len(taken) == (in_one_go if name == "in one go" else 0)
        answers = [(each.results, {name: n for name, n in each.arrivals.items() if name[0] != "#"}) for each in commits]
        seen.append((renamed(answers), tables_of(file)))
    assert seen[0][0] == seen[1][0]
    for table, rows in seen[0][1].items():
        assert renamed(rows) == renamed(seen[1][1][table])
