"""put(transaction=…): the item exists if and only if the caller's own transaction commits, also where it is cut off."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import apsw
import pytest
from tests.acceptance.children import Say, run
from tests.acceptance.crashing import ACK
from tests.acceptance.faults import Fault, Faults
from tests.acceptance.operations import furnish, open_broker
from tests.acceptance.places import Broken, places

from redrive import Broker

FEWEST_POINTS = 5
MAX_POINTS = 500


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "redrive.db"
    with open_broker(path) as broker:
        furnish(broker)
    own = apsw.Connection(str(path))
    own.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
    own.close()
    return path


def _order(broker: Broker, path: Path, end: str, say: Say) -> None:
    own = apsw.Connection(str(path))
    own.pragma("synchronous", "FULL")
    own.execute("BEGIN IMMEDIATE")
    own.execute("INSERT INTO orders VALUES (1)")
    broker.put("jobs", "order 1", transaction=own, idempotency_key="order 1")
    broker.put_many("moving", ["order 1"], transaction=own)
    own.execute(end)
    say(ACK)


def _ordered(path: Path) -> bool:
    """Whether the order is there, and with it both items. Raises Broken where only a part is."""
    own = apsw.Connection(str(path))
    orders = own.execute("SELECT count(*) FROM orders").get
    own.close()
    items = sum(standing.payload == b'"order 1"' for standing in places(path))
    if items != 2 * orders:
        raise Broken(f"{orders} orders and {items} items")
    return bool(orders)


@pytest.mark.parametrize(("end", "there"), [("COMMIT", True), ("ROLLBACK", False)])
def test_item_exists_if_the_transaction_commits(path: Path, end: str, there: bool) -> None:
    with open_broker(path) as broker:
        _order(broker, path, end, lambda _: None)
        assert _ordered(path) is there
        broker.put("jobs", "after it")


@pytest.mark.parametrize("fault", [Fault.KILL, Fault.POWER_CUT])
def test_item_and_order_exist_or_neither_does_after_a_crash(path: Path, fault: Fault, tmp_path: Path) -> None:
    for point in range(1, MAX_POINTS):
        copy = tmp_path / f"{point}.db"
        copy.write_bytes(path.read_bytes())
        ended = run(partial(_crash, copy, fault, point))
        with open_broker(copy):
            assert _ordered(copy) or not ended.said, f"point {point}: acknowledged, and not there"
        if ended.said:
            break
    print(f"put within: {point - 1} points ({fault})")
    assert point > FEWEST_POINTS


def _crash(path: Path, fault: Fault, point: int, say: Say) -> None:
    faults = Faults(fault, seed=point)
    broker = open_broker(path)
    faults.arm(point)
    _order(broker, path, "COMMIT", say)
    if fault is Fault.POWER_CUT:
        faults.cut_power()
