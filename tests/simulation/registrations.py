"""What two stores are asked about registrations, kept results, and what workers hold."""

from __future__ import annotations

import random
from typing import Any

import msgspec
from tests.simulation.twins import QUEUES, Twins

from redrive import Broker
from redrive.contract import Call
from redrive.contract.admin_calls import AuditNote, Register, Registration, Unregister, VersionConflict
from redrive.contract.item_calls import NewItem, Put
from redrive.contract.queries import GetResult, ListRegistrations, ListWorkerLeases
from redrive.model.duration import SECOND
from redrive.model.ids import ItemId

KINDS = ("worker", "schedule")
NAMES = ("x", "y")


def change_registrations(twins: Twins, pick: random.Random) -> None:
    kind, name = pick.choice(KINDS), pick.choice(NAMES)
    noted = AuditNote("ann", f"register_{kind}", name)
    call: Call = Unregister(kind, name, pick.choice([None, noted]))
    if pick.random() < 0.8:
        call = Register(
            kind,
            name,
            pick.choice([b"", b"\x00v"]),
            pick.choice([None, 10 * SECOND]),
            pick.choice([None, None, 0, 1, 2, 3]),
            _some_puts(pick),
            pick.choice([None, None, noted]),
        )

    def carry_out(_: int, broker: Broker) -> Any:
        (result,) = broker.core.store.commit([call]).results
        return _shown(result)

    twins.ask(f"{call} with puts" if isinstance(call, Register) and len(call.puts) > 1 else f"{call}", carry_out)
    twins.ask("registrations", lambda _, broker: [_shown(each) for each in _listed(broker, kind)])


def look_at_work(twins: Twins, pick: random.Random) -> None:
    worker, limit = pick.choice(["w", "w", "v"]), pick.choice([1, 2, 1000])
    twins.read(f"held by {worker}", lambda _: ListWorkerLeases(worker, limit))
    if twins.ids[0]:
        position = pick.randrange(len(twins.ids[0]))
        twins.read(f"result {position}", lambda side: GetResult(ItemId(twins.ids[side][position])))


def look_at_all_results(twins: Twins) -> None:
    for position in range(len(twins.ids[0])):
        twins.read(f"result {position}", lambda side, p=position: GetResult(ItemId(twins.ids[side][p])))  # type: ignore[misc]


def _some_puts(pick: random.Random) -> tuple[Put, ...]:
    # Into one queue: those of several may be written in any order, and are then found in that.
    queue = pick.choice((*QUEUES, "nowhere"))
    items = [NewItem(b"1", "application/json", idempotency_key=pick.choice([None, "x"])) for _ in range(2)]
    return tuple(Put(queue, (item,)) for item in items[: pick.choice([0, 0, 1, 2])])


def _listed(broker: Broker, kind: str) -> tuple[Registration, ...]:
    found: tuple[Registration, ...] = broker.core.store.read(ListRegistrations(kind))
    return found


def _shown(result: Any) -> Any:
    """With its version, which is the same everywhere, and not that of a queue's settings."""
    if isinstance(result, VersionConflict):
        return "overtaken by", _shown(result.present)
    return msgspec.structs.astuple(result) if isinstance(result, Registration) else result
