"""Each of these plants a bug into breakers or gates, and a test of theirs must fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from redrive import Broker, connect
from redrive.broker import core, worker_session
from redrive.broker.failure_counts import FailureCounts
from redrive.broker.flow import commit_call
from redrive.broker.flows import breaker_control, breakers, settle
from redrive.contract.admin_calls import Hold, SetPaused
from redrive.model.breaker import ProbeOutcome
from redrive.stores.relational import leases
from redrive.testing.conformance.breaker_probes import ProbeConformance
from redrive.testing.conformance.breakers import HoldingConformance
from redrive.testing.fake_clock import FakeClock

Plant = Callable[[pytest.MonkeyPatch], None]
Check = Callable[["Stage"], None]


class Stage:
    """A file, and brokers on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = FakeClock()
        self.opened: list[Broker] = []

    def open_broker(self) -> Broker:
        url = f"sqlite:///{self.folder}/redrive.db"
        self.opened.append(connect(url, clock=self.clock, maintenance=False, durability="relaxed"))
        return self.opened[-1]


def uncounted_probes(patch: pytest.MonkeyPatch) -> None:
    """Each process thinks that the allowance is its own."""
    patch.setattr(leases, "count_leases", lambda gates, ids: gates)


def hold_that_a_person_ends(patch: pytest.MonkeyPatch) -> None:
    """A hold does not survive a retry or redrive."""

    def hold(ids: Any, held_by: str, **options: Any) -> Hold:
        return Hold(ids, held_by, queue_version=options["queue_version"])

    patch.setattr(breakers, "Hold", hold)


def state_in_memory(patch: pytest.MonkeyPatch) -> None:
    """What is open is known to one process, until it ends."""

    def remember(core: Any, queue: Any, changed: Any, gate: Any, *more: Any) -> Iterator[Any]:
        yield from ()
        core.breakers.remembered = (queue.name, changed, gate)
        return queue

    patch.setattr(breakers, "change_breakers", remember)


def pause_that_ends_with_the_breaker(patch: pytest.MonkeyPatch) -> None:
    closed = breaker_control.close_by_hand

    def close(core: Any, queue: str, *more: Any) -> Iterator[Any]:
        released = yield from closed(core, queue, *more)
        yield from commit_call(SetPaused(queue, False, "breaker"))
        return released

    patch.setattr(breaker_control, "close_by_hand", close)


def counted_probes(patch: pytest.MonkeyPatch) -> None:
    for module in (settle, worker_session):
        patch.setattr(module, "uncounted_return", lambda *given: None)


def failures_that_are_not_held(patch: pytest.MonkeyPatch) -> None:
    for module in (core, worker_session):
        patch.setattr(module, "held_verdict", lambda queue, verdict, failure: verdict)


def lost_probe_that_counts_as_running(patch: pytest.MonkeyPatch) -> None:
    judged = breakers.probe_outcome

    def outcome(breaker: Any, item: Any) -> ProbeOutcome:
        found = judged(breaker, item)
        return ProbeOutcome.RUNNING if found is ProbeOutcome.WAITING else found

    patch.setattr(breakers, "probe_outcome", outcome)


def old_failures_that_count_again(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FailureCounts, "restart", lambda self, queue, kind, at: None)


def unfenced_closing(patch: pytest.MonkeyPatch) -> None:
    """A breaker is forgotten before what it held is released."""
    closed = breakers.close
    patch.setattr(breakers, "close", lambda breaker, gate: (None, closed(breaker, gate)[1]))


def alone(name: str, suite: type[Any], **options: Any) -> Check:
    """A test of the suite that needs one broker."""
    return lambda stage: getattr(suite(), name)(stage.open_broker(), stage.clock, **options)


def shared(name: str, suite: type[Any]) -> Check:
    """A test of the suite that opens several."""
    return lambda stage: getattr(suite(), name)(stage.open_broker, stage.clock)


two_brokers = shared("test_two_brokers_let_one_probe_through", ProbeConformance)
probe = partial(alone, suite=ProbeConformance)
holding = partial(alone, suite=HoldingConformance)

PLANTED: list[tuple[Plant, Check]] = [
    (uncounted_probes, two_brokers),
    (hold_that_a_person_ends, holding("test_retry_by_a_person_does_not_end_the_hold")),
    (hold_that_a_person_ends, holding("test_hold_of_an_item_that_died_holds_again_after_its_redrive")),
    (state_in_memory, shared("test_open_breaker_survives_a_restart", ProbeConformance)),
    (pause_that_ends_with_the_breaker, holding("test_pause_by_a_person_is_not_ended_by_a_closing_breaker")),
    (counted_probes, probe("test_failed_probe_counts_nothing_and_doubles_the_time", kind="network")),
    (counted_probes, probe("test_failed_probe_counts_nothing_and_doubles_the_time", kind="queue")),
    (failures_that_are_not_held, holding("test_what_fails_while_it_is_open_is_held_from_its_failure_on")),
    (lost_probe_that_counts_as_running, probe("test_lost_probe_leaves_nothing_stuck", kind="queue")),
    (old_failures_that_count_again, probe("test_failures_from_before_the_closing_do_not_open_it_again")),
    (unfenced_closing, probe("test_one_probe_is_let_through_and_closes_it", kind="network")),
]


@pytest.mark.parametrize(("plant", "check"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_bug_is_found(plant: Plant, check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(tmp_path)
    plant(monkeypatch)
    try:
        with pytest.raises((AssertionError, ValueError)):
            check(stage)
    finally:
        for broker in stage.opened:
            broker.close()


@pytest.mark.parametrize("check", [check for _, check in PLANTED], ids=[plant.__name__ for plant, _ in PLANTED])
def test_without_the_bug_nothing_is_found(check: Check, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    check(stage)
    for broker in stage.opened:
        broker.close()
