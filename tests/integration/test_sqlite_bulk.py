"""Many items changed together leave behind what changing them one by one does."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from redrive import Broker, RedriveError, Settled, connect
from redrive.stores.relational import bulk_changes, manual_changes, operations
from redrive.testing import FakeClock

_ID = re.compile(r"\b[0-9a-f]{32}\b")
VERBS = ("retry", "redrive", "archive", "restore", "purge")


def furnish(broker: Broker, clock: FakeClock) -> list[str]:
    """Dead items of every kind: alike, with a key, an expiry or a long history of its own, moved, in a dead queue."""
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

    def renamed(value: object) -> str:
        return _ID.sub(lambda match: names.setdefault(match.group(), f"id{len(names)}"), repr(value))

    shown = renamed((ids, seen, stats, broker.groups(), leases))
    return shown + "\n".join(sorted(map(renamed, feed)))


def one_by_one(broker: Broker, verb: str, ids: list[str]) -> None:
    change: Callable[..., Any] = getattr(broker, verb)
    for id in ids:
        change([id], actor="ada")


def as_a_list(broker: Broker, verb: str, ids: list[str]) -> None:
    results = getattr(broker, verb)(ids, actor="ada")
    assert sum(isinstance(result, Settled) for result in results) > bulk_changes.BULK_THRESHOLD


@pytest.mark.parametrize("verb", VERBS)
def test_list_of_ids_is_changed_as_if_one_by_one(verb: str, tmp_path: Path) -> None:
    seen = []
    for name, way in (("one", one_by_one), ("list", as_a_list)):
        clock = FakeClock()
        url = f"sqlite:///{tmp_path / name}.db"
        with connect(url, clock=clock, maintenance=False, actor="test", durability="relaxed") as broker:
            ids = furnish(broker, clock)
            if verb in ("restore", "purge"):
                one_by_one(broker, "archive", ids)
            way(broker, verb, ids)
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
            if name == "walk":
                patch.setattr(operations, "bulk_step", lambda *_: None)
                patch.setattr(manual_changes, "find_uniform", lambda *_: {})
            elif queue == "plain":
                patch.setattr(operations, "select", None)  # nothing is looked at one by one
            ids = furnish(broker, clock)
            if verb in ("restore", "purge"):
                broker.archive(ids)
            confirm = {"confirm": broker.count(status="archived", queue=queue)} if verb == "purge" else {}
            operation = broker.run_operation(
                broker.start_operation(verb, queue=queue, reason=None, actor="ada", **confirm).id
            )
            assert operation.changed > bulk_changes.BULK_THRESHOLD
            seen.append((operation.changed, operation.skipped, everything(broker, ids)))
    assert seen[0] == seen[1]
