"""The words for the end of a delivery agree: contract, state machine, history, feed, log, metrics, workers."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from redrive import Broker
from redrive.broker.worker_session import Completed, Failed, Outcome, outcome_name
from redrive.contract.item_calls import Settle
from redrive.model.delivery_end import DEADLY_EVENTS, DELIVERY_ENDS, FEED_KIND_BY_EVENT
from redrive.model.failure import failure_from_fields
from redrive.model.feed import FeedKind
from redrive.model.item import Status
from redrive.model.judge import RETRY_STATUSES, Dead, OutcomeKind, RetryVerdict, Verdict
from redrive.model.state_machine import TRANSITIONS
from redrive.testing import memory_broker

_FAILURE = failure_from_fields("Error", "down")


def _verdict(kind: OutcomeKind) -> Verdict:
    statuses = RETRY_STATUSES[kind]
    return RetryVerdict(status=statuses[0]) if statuses else Dead()


def test_every_outcome_has_its_words() -> None:
    assert set(DELIVERY_ENDS) == set(OutcomeKind) == set(RETRY_STATUSES)


@pytest.mark.parametrize("kind", OutcomeKind)
def test_verb_allows_what_may_follow(kind: OutcomeKind) -> None:
    assert set(RETRY_STATUSES[kind]) <= set(TRANSITIONS[DELIVERY_ENDS[kind].verb][1])
    assert (DELIVERY_ENDS[kind].feed_kind is not None) is bool(RETRY_STATUSES[kind])


@pytest.mark.parametrize("kind", sorted(set(OutcomeKind) - {OutcomeKind.EXPIRED}))
def test_store_writes_what_the_table_says(kind: OutcomeKind) -> None:
    with memory_broker() as broker:
        broker.create_queue("jobs", max_losses=9)
        id = broker.put("jobs", 1).id
        version = broker.get_queue("jobs").version
        call = Settle(broker.lease("jobs")[0].token, kind, _verdict(kind), version, _FAILURE, worker_is_gone=True)
        settled = broker.submit(call)
        assert [entry.event for entry in broker.get(id).history] == [DELIVERY_ENDS[kind].event]
        is_dead = settled.status is Status.DEAD
        told = [entry.kind for entry in broker.feed().entries]
        assert told == [FeedKind.DEAD if is_dead else DELIVERY_ENDS[kind].feed_kind]
        assert broker.stats("jobs").failed_total == kind.is_failure


@pytest.mark.parametrize("kind", sorted(set(OutcomeKind) - {OutcomeKind.EXPIRED, OutcomeKind.BURIED}))
def test_metrics_count_every_outcome_that_is_no_death(kind: OutcomeKind) -> None:
    with memory_broker() as broker:
        assert broker.metrics is not None  # from now on they are counted
        _settle(broker, kind)
        counted = {metric.name for metric, labels, _ in broker.metrics.read() if labels[:1] == ("jobs",)}
        words = {"failed": "items_failed", "lost": "leases_lost"}
        word = words.get(DELIVERY_ENDS[kind].event, "items_released")
        assert f"redrive_{word}_total" in counted


def _settle(broker: Broker, kind: OutcomeKind) -> None:
    broker.create_queue("jobs")
    broker.put("jobs", 1)
    (lease,) = broker.lease("jobs")
    call = Settle(lease.token, kind, _verdict(kind), broker.get_queue("jobs").version, worker_is_gone=True)
    assert broker.core.meter is not None
    broker.core.meter.settled("jobs", kind, broker.submit(call), _FAILURE)


def test_outcomes_of_workers_have_the_words_of_the_contract() -> None:
    for outcome in get_args(Outcome):
        if outcome is not Completed:
            assert OutcomeKind(outcome_name(outcome(_FAILURE) if outcome is Failed else outcome())) in DELIVERY_ENDS


def test_log_has_an_event_for_each_entry_of_the_feed() -> None:
    page = (Path(__file__).parents[2] / "docs/reference/log-events.md").read_text()
    assert all(f"| `item_{kind}` |" in page for kind in (*FEED_KIND_BY_EVENT.values(), FeedKind.DEAD))


def test_words_that_are_derived() -> None:
    assert {event.value for event in DEADLY_EVENTS} == {"failed", "lost", "released", "expired", "buried"}
    assert all(event.value == kind.value for event, kind in FEED_KIND_BY_EVENT.items())
