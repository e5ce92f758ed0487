"""A verdict that met newer settings is judged again by these: once per round, only what is stale, and not forever."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from redrive import Broker
from redrive.broker.flow import Flow
from redrive.broker.flows.stale_settings import MAX_ROUNDS, judge_stale, judge_until_current
from redrive.broker.worker_session import Failed, open_worker_session
from redrive.contract.item_calls import StaleSettings
from redrive.errors import ItemNotFound, StoreFailed
from redrive.model.failure import failure_from_fields
from redrive.model.item import Settled, Status
from redrive.testing import memory_broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with memory_broker() as broker:
        broker.create_queue("jobs", retry={"attempts": 1})
        yield broker


def _see_older_settings(broker: Broker) -> None:
    """Another process lets items be retried, and this one has seen the queue before that."""
    seen = broker.core.cache_queue(broker.get_queue("jobs"))
    broker.update_queue("jobs", retry={"attempts": 3})
    broker.core.cache_queue(seen)


def _fail(broker: Broker) -> Status | None:
    return broker.fail(broker.lease("jobs")[0], "down").status


def _fail_in_session(broker: Broker) -> Status | None:
    end = Failed(failure_from_fields("Error", "down"))
    settled: Settled = open_worker_session(broker, None).step([(broker.lease("jobs")[0], end)], {}).settled[0]
    return settled.status


def _fail_manually(broker: Broker) -> Status | None:
    [item] = broker.find(queue="jobs", status="pending").items
    return broker.fail_items(item.id, "down").status


def _put_failed(broker: Broker) -> Status | None:
    return broker.get(broker.put_failed("jobs", 2, "down").id).status


@pytest.mark.parametrize("fail", [_fail, _fail_in_session, _fail_manually, _put_failed])
def test_failure_is_judged_by_the_settings_that_another_process_changed(
    broker: Broker, fail: Callable[[Broker], Status | None]
) -> None:
    broker.put("jobs", 1)
    _see_older_settings(broker)

    assert fail(broker) is Status.FAILED


def test_what_is_always_stale_is_given_up_after_a_bounded_number_of_rounds(broker: Broker) -> None:
    rounds = 0

    def judge() -> Flow[Any]:
        nonlocal rounds
        rounds += 1
        yield from ()
        return StaleSettings(broker.get_queue("jobs"))

    with pytest.raises(StoreFailed, match="changed 100 times"):
        broker.run_flow(judge_until_current(broker.core, judge))
    assert rounds == MAX_ROUNDS + 1


def test_only_what_is_stale_is_judged_again(broker: Broker) -> None:
    newest = broker.get_queue("jobs")
    asked: list[Sequence[str]] = []
    settled, refused = object(), ItemNotFound("c")
    results: dict[str, Any] = {"a": settled, "b": StaleSettings(newest), "c": refused, "d": StaleSettings(newest)}

    def judge(keys: Sequence[str]) -> Flow[dict[str, Any]]:
        asked.append(keys)
        yield from ()
        return {"b": "judged", "d": StaleSettings(newest)} if len(asked) == 1 else {"renamed": "judged"}

    broker.run_flow(judge_stale(broker.core, results, judge))

    assert asked == [["b", "d"], ["d"]]
    assert results == {"a": settled, "c": refused, "b": "judged", "renamed": "judged"}


def test_next_round_sees_the_settings_of_the_answer(broker: Broker) -> None:
    older = broker.get_queue("jobs")
    newer = broker.update_queue("jobs", retry={"attempts": 3})
    broker.core.cache_queue(older)
    seen: list[int] = []

    def judge() -> Flow[Any]:
        queue = yield from broker.core.queue("jobs")
        seen.append(queue.version)
        return "done" if queue.version == newer.version else StaleSettings(newer)

    assert broker.run_flow(judge_until_current(broker.core, judge)) == "done"
    assert seen == [older.version, newer.version]
