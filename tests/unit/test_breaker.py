"""The rules and states of breakers, without a store."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive import Failure, connect
from redrive.broker.breaker_monitor import Sweep
from redrive.broker.failure_counts import FailureCounts
from redrive.clock import Instant
from redrive.contract.queries import FindItems
from redrive.errors import InvalidInput, InvalidSetting, RedriveError
from redrive.model.breaker import (
    MAX_FINGERPRINT_BREAKERS,
    BreakerRule,
    BreakerState,
    BreakerStatus,
    ProbeOutcome,
    breaker_changes,
    breaker_gate,
    check_kind,
    open_breaker,
    parse_breaker_rules,
    probe_outcome,
    queue_of_holder,
    reopen,
)
from redrive.model.classify import ErrorClass
from redrive.model.death import DeadReason
from redrive.model.duration import HOUR, MINUTE, SECOND
from redrive.model.feed import FeedEntry, FeedKind
from redrive.model.gate import lease_limit
from redrive.model.ids import ItemId
from redrive.model.item import Counters, HistoryEntry, HistoryEvent, Item, Status
from redrive.model.queue import Queue, QueueSettings, QueueStats
from redrive.model.queue_options import parse_settings, validate_settings
from redrive.stores.memory.store import MemoryStore
from redrive.testing import FakeClock
from redrive.testing.drain import memory_broker

NOW = Instant(10 * HOUR)
ID = ItemId("0" * 32)


def at(seconds: float) -> Instant:
    return Instant(NOW + int(seconds * SECOND))


def failed(seconds: float, error_class: str = "network", kind: FeedKind = FeedKind.FAILED, **more: object) -> FeedEntry:
    return FeedEntry(
        1,
        at(seconds),
        kind,
        "jobs",
        ID,
        error_class=ErrorClass(error_class),
        fingerprint="ab",
        **more,  # type: ignore[arg-type]
    )


def queue(**breakers: BreakerRule) -> Queue:
    return Queue("jobs", QueueSettings(breakers=breakers), 1, False, NOW, False)


def openings(counts: FailureCounts, seconds: float, **breakers: BreakerRule) -> list[str]:
    return [kind for kind, _ in counts.openings(queue(**breakers), at(seconds))]


def test_twenty_failures_are_the_default_unless_a_share_is_given() -> None:
    assert BreakerRule().opening_reason(19, 10_000) is None
    assert BreakerRule().opening_reason(20, 20) == "20 failures within 1m"
    assert BreakerRule(share=0.5).opening_reason(5_000, 10_001) is None
    assert BreakerRule(share=0.5).opening_reason(19, 19) is None
    assert BreakerRule(share=0.5).opening_reason(10, 20) == "10 of 20 deliveries failed within 1m"
    assert BreakerRule(share=0.5, failures=7).opening_reason(7, 10_000) == "7 failures within 1m"


def test_states_follow_time() -> None:
    breaker = open_breaker("network", BreakerRule(), "why", NOW)
    assert breaker.state(at(29.9)) is BreakerState.OPEN
    assert breaker.state(at(30)) is BreakerState.HALF_OPEN
    assert msgspec.structs.replace(breaker, is_closing=True).state(NOW) is BreakerState.CLOSING


def test_time_is_doubled_up_to_ten_minutes_and_never_made_shorter() -> None:
    breaker = open_breaker("queue", BreakerRule(), "why", NOW)
    durations = []
    for _ in range(7):
        breaker = reopen(breaker, NOW)
        durations.append(breaker.open_for // SECOND)
    assert durations == [60, 120, 240, 480, 600, 600, 600]
    long = reopen(open_breaker("queue", BreakerRule(open_for=HOUR), "why", NOW), NOW)
    assert (long.open_for, long.until) == (HOUR, at(3600))


def test_probes_that_still_run_are_counted_in_the_gate_after_a_reopening() -> None:
    rule = BreakerRule(probes=3)
    breaker = reopen(open_breaker("queue", rule, "why", NOW), NOW)
    gate = breaker_gate(breaker, rule, (ID,))
    assert lease_limit((gate,), at(59), 9) == 0
    assert lease_limit((gate,), at(60), 9) == 2


def test_failures_count_by_class_fingerprint_and_queue() -> None:
    counts = FailureCounts()
    for second in range(3):
        counts.add(failed(second))
        counts.add(failed(second, "validation"))
    rule = BreakerRule(failures=3)
    assert openings(counts, 3, network=rule, transient=rule) == ["network"]
    assert openings(counts, 3, fingerprint=rule) == ["fingerprint:ab"]
    assert openings(counts, 3, queue=BreakerRule(failures=6)) == ["queue"]
    assert openings(counts, 3, queue=BreakerRule(failures=7)) == []
    assert openings(counts, 61.5, network=rule) == []


def test_of_a_thousand_fingerprints_at_the_same_time_a_hundred_open() -> None:
    counts = FailureCounts()
    for number in range(1_000):
        counts.add(msgspec.structs.replace(failed(1), fingerprint=f"{number:016x}"))
    kinds = openings(counts, 2, fingerprint=BreakerRule(failures=1))
    assert len(kinds) == len(set(kinds)) == MAX_FINGERPRINT_BREAKERS


def test_what_is_no_failure_does_not_count() -> None:
    counts = FailureCounts()
    counts.add(failed(1, kind=FeedKind.RETURNED))
    counts.add(failed(1, kind=FeedKind.LOST))
    counts.add(failed(1, kind=FeedKind.DEAD, reason=DeadReason.EXPIRED))
    counts.add(FeedEntry(1, at(1), FeedKind.FAILED, "jobs", ID))
    assert openings(counts, 2, queue=BreakerRule(failures=1)) == []
    counts.add(failed(1, kind=FeedKind.DEAD, reason=DeadReason.RETRIES_EXHAUSTED))
    assert openings(counts, 2, queue=BreakerRule(failures=1)) == ["queue"]


def test_failures_from_before_a_closing_do_not_count() -> None:
    counts = FailureCounts()
    counts.add(failed(1))
    counts.add(FeedEntry(2, at(2), FeedKind.BREAKER_CLOSED, "jobs", None, breaker="network"))
    assert openings(counts, 3, network=BreakerRule(failures=1)) == []
    counts.add(failed(4))
    assert openings(counts, 5, network=BreakerRule(failures=1)) == ["network"]


def test_what_is_no_longer_needed_is_forgotten() -> None:
    counts = FailureCounts()
    for queue in ("jobs", "gone"):
        counts.add(msgspec.structs.replace(failed(0), queue=queue))
        counts.restart(queue, "network", at(0))
    counts.restart("jobs", "resource", at(-2 * 3600))
    counts.forget({"jobs"}, at(1))
    assert (list(counts._failures), list(counts._counts_from)) == (["jobs"], [("jobs", "network")])


def test_breaker_that_has_closed_leaves_nothing_in_the_process() -> None:
    clock = FakeClock()
    with connect("memory://", clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs", breakers={"network": {}})
        broker.create_queue("others", retry={"attempts": 2})
        for name in ("jobs", "others"):
            broker.put(name, 1)
            broker.fail(broker.lease(name)[0], ConnectionError("down"))
        broker.open_breaker("jobs", "network")
        monitor = broker.core.breakers
        clock.advance("1s")
        broker.run_maintenance()
        assert len(monitor.sweeps) == 1
        broker.close_breaker("jobs", "network")
        clock.advance("1s")
        broker.run_maintenance()
        assert monitor.sweeps == {}
        assert list(monitor.counts._failures) == ["jobs"], "the other queue has no rule"


def test_status_says_since_when_it_is_open_and_when_it_was_opened() -> None:
    status = BreakerStatus("jobs", "queue", BreakerState.OPEN, NOW, "why", at(30), 2)
    assert re.fullmatch(r"breaker queue of jobs: open since .+ \(why\); 2 items waiting, next probe .+", str(status))
    half_open = msgspec.structs.replace(status, state=BreakerState.HALF_OPEN, waiting=0)
    assert re.fullmatch(r"breaker queue of jobs: half-open, opened .+ \(why\); nothing waits", str(half_open))


def test_mistakes_are_answered_with_what_was_probably_meant() -> None:
    with pytest.raises(InvalidSetting, match=r"not 50; 50 % is 0\.5"):
        parse_settings({"breakers": {"queue": {"share": 50}}})
    with pytest.raises(InvalidSetting, match=r"must be a table like \{network=\{failures=20\}\}"):
        parse_settings({"breakers": "network"})
    with pytest.raises(InvalidInput, match=r"'netwrk' is no kind of breaker \(did you mean network\?\)"):
        check_kind("netwrk")


def test_share_counts_completions_since_the_window_began() -> None:
    counts = FailureCounts()
    stats = QueueStats("jobs", 0, 0, 0, 0, 0, 0, 0, None, 0, 1_000, 0, 0, NOW)
    counts.add_stats(stats)
    for second in range(20):
        counts.add(failed(second))
    rule = BreakerRule(share=0.5)
    assert openings(counts, 20, network=rule) == ["network"]
    counts.add_stats(msgspec.structs.replace(stats, at=at(20), completed_total=1_021))
    assert openings(counts, 20, network=rule) == []


def item(status: Status, *history: HistoryEntry) -> Item:
    return Item(ID, "jobs", status, b"", "application/json", {}, 5, NOW, Counters(), history=history)


def entry(seconds: float, event: HistoryEvent, failure: Failure | None = None) -> HistoryEntry:
    return HistoryEntry(at(seconds), event, "jobs", 1, failure)


def test_outcomes_of_probes() -> None:
    breaker = msgspec.structs.replace(open_breaker("network", BreakerRule(), "why", NOW), probing_since=at(30))
    down = Failure("ConnectionError", "down", error_class=ErrorClass.NETWORK)
    other = Failure("ValueError", "bad")
    cases = [
        (item(Status.ACTIVE), ProbeOutcome.RUNNING),
        (item(Status.COMPLETED, entry(40, HistoryEvent.RETURNED, down)), ProbeOutcome.PASSED),
        (item(Status.PENDING), ProbeOutcome.WAITING),
        (item(Status.FAILED, entry(29, HistoryEvent.FAILED, down)), ProbeOutcome.WAITING),
        (item(Status.PENDING, entry(30, HistoryEvent.RETURNED, down)), ProbeOutcome.FAILED),
        (item(Status.PENDING, entry(31, HistoryEvent.LOST)), ProbeOutcome.WAITING),
        (item(Status.DEAD, entry(31, HistoryEvent.FAILED, down)), ProbeOutcome.FAILED),
        (item(Status.DEAD, entry(31, HistoryEvent.FAILED, other)), ProbeOutcome.PASSED),
        (item(Status.DEAD, entry(31, HistoryEvent.BURIED)), ProbeOutcome.GONE),
        (item(Status.ARCHIVED), ProbeOutcome.GONE),
    ]
    for probe, outcome in cases:
        assert probe_outcome(breaker, probe) is outcome


@pytest.mark.parametrize("name", ["jobs", "a:fingerprint", "breaker:b:network", "x:fingerprint:ab"])
@pytest.mark.parametrize("kind", ["network", "fingerprint:0af3"])
def test_holder_names_the_queue_whose_operators_may_release_what_it_holds(name: str, kind: str) -> None:
    assert queue_of_holder(open_breaker(kind, BreakerRule(), "", NOW).holder(name)) == name


@pytest.mark.parametrize("name", ["ann", "breaker", "breaker:jobs", "breaker::network", "my-breaker:jobs:network", ""])
def test_other_holders_are_of_no_queue(name: str) -> None:
    assert queue_of_holder(name) is None


def test_changes_between_two_states() -> None:
    one = open_breaker("network", BreakerRule(), "why", NOW)
    closing = msgspec.structs.replace(one, is_closing=True)
    assert [*breaker_changes((), (one,))] == [(True, one)]
    assert [*breaker_changes((one,), (closing,))] == [(False, one)]
    assert [*breaker_changes((closing,), ())] == []
    assert [*breaker_changes((one,), ())] == [(False, one)]
    assert [*breaker_changes((closing,), (one,))] == [(True, one)]


def test_rules_survive_the_wire_and_are_checked_again() -> None:
    settings = parse_settings({"breakers": {"network": {"failures": 5, "window": "10s"}, "queue": {"share": 1}}})
    sent = msgspec.json.decode(msgspec.json.encode(settings), type=QueueSettings)
    assert validate_settings(sent) == settings
    with pytest.raises(RedriveError):
        validate_settings(QueueSettings(breakers={"queue": BreakerRule(open_for=0)}))
    with pytest.raises(RedriveError):
        validate_settings(QueueSettings(breakers={"bogus": BreakerRule()}))


_WORDS = st.text() | st.sampled_from(["queue", "network", "failures", "share", "window"])
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda more: st.lists(more) | st.dictionaries(_WORDS, more),
)


@given(_VALUES)
def test_anything_is_a_rule_or_a_clear_error(value: object) -> None:
    with suppress(RedriveError):
        rules = parse_breaker_rules("breakers", value)
        assert parse_breaker_rules("breakers", rules) == rules


def test_durations_of_rules_have_bounds() -> None:
    assert parse_breaker_rules("breakers", {"queue": {"window": "1h"}})["queue"].window == HOUR
    assert parse_breaker_rules("breakers", {"queue": {"open_for": 60}})["queue"].open_for == MINUTE
    for rule in ({"window": "61m"}, {"window": "500ms"}, {"open_for": "2d"}, {"probes": 101}, {"failures": 10_001}):
        with pytest.raises(RedriveError, match="must be"):
            parse_breaker_rules("breakers", {"queue": rule})


def test_page_that_two_threads_read_turns_a_sweep_once() -> None:
    sweep = Sweep()
    seen = []
    while (place := sweep.place) is not None:
        seen.append(place)
        for _ in range(2):
            sweep.turn(place, "more" if place[1] is None else None)
    assert seen == [(status, cursor) for status in (Status.FAILED, Status.PENDING) for cursor in (None, "more")]


def test_person_opens_no_more_breakers_for_fingerprints_than_a_queue_may_have() -> None:
    with memory_broker() as broker:
        broker.create_queue("jobs")
        for number in range(MAX_FINGERPRINT_BREAKERS):
            broker.open_breaker("jobs", f"fingerprint:{number:x}")
        with pytest.raises(InvalidInput, match="100 breakers for fingerprints"):
            broker.open_breaker("jobs", "fingerprint:ffff")
        assert broker.open_breaker("jobs", "fingerprint:0").kind == "fingerprint:0"
        assert broker.open_breaker("jobs", "network").kind == "network"


def test_breakers_that_open_together_share_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read, searches = FakeClock(), MemoryStore.read, 0

    def counted(store: MemoryStore, query: Any) -> Any:
        nonlocal searches
        searches += isinstance(query, FindItems)
        return read(store, query)

    monkeypatch.setattr(MemoryStore, "read", counted)
    with connect("memory://", clock=clock, maintenance=False) as broker:
        broker.create_queue("jobs", retry={"attempts": 9, "base": "1h"}, breakers={"fingerprint": {"failures": 1}})
        broker.put_many("jobs", range(50))
        for number, lease in enumerate(broker.lease("jobs", 50)):
            broker.fail(lease, Failure("ValueError", "no", fingerprint=f"{number:016x}"))
        broker.run_maintenance()
        assert len(broker.list_breakers()) == 50
        assert searches <= 4
