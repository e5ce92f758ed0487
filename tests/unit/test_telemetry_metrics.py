"""Metrics: what a broker counts of its own work, what it reads of its queues, and how Prometheus sees both."""

from __future__ import annotations

import os
import re
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from redrive import AsyncBroker, Broker, Dead, DeadReason, Failure, RetryVerdict, connect, new_item
from redrive.contract.admin_calls import Register
from redrive.contract.item_calls import Put, Settle
from redrive.contract.queries import ListQueues, ListStats
from redrive.errors import LeaseLost, StoreFailed
from redrive.model.classify import ErrorClass
from redrive.model.judge import OutcomeKind
from redrive.telemetry import metrics as names
from redrive.telemetry.metrics import METRICS, Metrics, Sample, collector, serve_metrics
from redrive.testing import FakeClock

PAGE = Path(__file__).resolve().parents[2] / "docs/reference/metrics.md"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def broker(clock: FakeClock) -> Iterator[Broker]:
    with connect("memory://", maintenance=False, clock=clock) as broker:
        broker.create_queue("morgue")
        broker.create_queue("jobs", dead_queue="morgue", retry={"attempts": 2}, max_losses=1)
        broker.create_queue("gone", on_dead="drop")
        assert broker.metrics
        yield broker


class Seen:
    """All values that a registry gives, by the name of the sample and its labels but for namespace and store."""

    def __init__(self, *metrics: Metrics) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(collector(*metrics))

    def __call__(self, name: str, **labels: str) -> float | None:
        shared = {"namespace": "default", "store": "memory"}
        return self.registry.get_sample_value(name, {**shared, **labels})


@pytest.fixture
def seen(broker: Broker) -> Seen:
    return Seen(broker.metrics)


def test_page_lists_every_metric() -> None:
    lines = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    rows = [[cell.strip() for cell in line] for line in lines]
    documented = {row[0].strip("`"): (row[1], tuple(re.findall(r"`(\w+)`", row[2]))) for row in rows}
    assert documented == {metric.name: (metric.kind, metric.labels) for metric in METRICS}
    assert [row[0].strip("`") for row in rows] == [metric.name for metric in METRICS]
    assert all(row[3] for row in rows)


def test_names_are_those_that_prometheus_wants() -> None:
    for metric in METRICS:
        assert re.fullmatch(r"redrive_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert list(metric.bounds) == sorted(metric.bounds)
        assert not {"namespace", "store", "le"} & set(metric.labels)


def test_every_metric_is_one_of_the_table() -> None:
    assert {value for value in vars(names).values() if isinstance(value, names.Metric)} == set(METRICS)


def test_puts_leases_and_completions_are_counted(broker: Broker, seen: Seen) -> None:
    broker.put("jobs", 1)
    broker.put_many("jobs", [2, 3])
    for _ in range(2):
        broker.put("jobs", 4, idempotency_key="k")
    first, second, *_ = broker.lease("jobs", 3)
    broker.complete(first, puts=[("morgue", 5)])
    broker.release(second, counted=False)
    assert seen("redrive_items_put_total", queue="jobs") == 4
    assert seen("redrive_items_put_total", queue="morgue") == 1
    assert seen("redrive_items_leased_total", queue="jobs") == 3
    assert seen("redrive_items_completed_total", queue="jobs") == 1
    assert seen("redrive_items_released_total", queue="jobs", counted="no") == 1


def test_breakers_are_counted_by_rule_and_never_by_fingerprint(broker: Broker, seen: Seen, clock: FakeClock) -> None:
    broker.update_queue("jobs", breakers={"queue": {}, "network": {}})
    assert seen("redrive_breakers", queue="jobs", breaker="network") == 0
    clock.advance("5s")
    for kind in ("network", "fingerprint:ab", "fingerprint:cd"):
        broker.open_breaker("jobs", kind)
    broker.close_breaker("jobs", "fingerprint:cd")
    broker.open_breaker("jobs", "fingerprint:ef")
    expected = {"queue": 0, "network": 1, "fingerprint": 2}
    assert {key: seen("redrive_breakers", queue="jobs", breaker=key) for key in expected} == expected
    changes = [
        (*(dict(sample.labels)[label] for label in ("breaker", "change")), sample.value)
        for metric in seen.registry.collect()
        for sample in metric.samples
        if sample.name == "redrive_breaker_changes_total"
    ]
    assert sorted(changes) == [("fingerprint", "closed", 1), ("fingerprint", "opened", 3), ("network", "opened", 1)]


def test_puts_of_a_registration_are_counted_once(broker: Broker, seen: Seen) -> None:
    call = Register("schedule", "nightly", b"", version=0, puts=(Put("jobs", (new_item(1),)),))
    for _ in range(2):
        broker.submit(call)
    assert seen("redrive_items_put_total", queue="jobs") == 1


def test_failures_retries_and_deaths_are_counted_by_the_queue_they_happened_in(broker: Broker, seen: Seen) -> None:
    broker.put("jobs", 1)
    broker.fail(broker.lease("jobs")[0], ValueError("x"))
    broker.fail(broker.lease("jobs")[0], ConnectionError("x"))
    assert seen("redrive_items_failed_total", queue="jobs", error_class="validation") == 1
    assert seen("redrive_items_failed_total", queue="jobs", error_class="network") == 1
    assert seen("redrive_items_retried_total", queue="jobs") == 1
    assert seen("redrive_items_dead_lettered_total", queue="jobs", reason="retries_exhausted") == 1
    assert seen("redrive_items_dead_lettered_total", queue="morgue", reason="retries_exhausted") is None


def test_dead_item_that_is_leased_dies_once(broker: Broker, clock: FakeClock, seen: Seen) -> None:
    id = broker.put("jobs", 1).id
    broker.fail(broker.lease("jobs")[0], "x", final=True)
    item = broker.get(id)
    broker.update_queue("jobs", dead_queue=None)
    broker.redrive(item.id, to="jobs")
    id = broker.fail(broker.lease("jobs")[0], "x", final=True).id
    broker.fail(broker.lease_by_id(id, include_dead=True), "x")
    broker.report_lost(broker.lease_by_id(id, include_dead=True), "gone")
    broker.lease_by_id([id], include_dead=True, lease_timeout="1s")
    clock.advance("1s")
    broker.run_maintenance()
    assert seen("redrive_items_dead_lettered_total", queue="jobs", reason="final_error") == 2
    assert seen("redrive_items_leased_total", queue="jobs") == 5
    assert seen("redrive_items_failed_total", queue="jobs", error_class="permanent") == 3
    assert seen("redrive_leases_lost_total", queue="jobs") == 2
    assert seen("redrive_items_retried_total", queue="jobs") is None


def test_item_that_takes_its_workers_with_it_is_counted_as_poison(broker: Broker, clock: FakeClock, seen: Seen) -> None:
    broker.put_many("jobs", [1, 2])
    lost, swept = broker.lease("jobs", 2, lease_timeout="1s")
    broker.report_lost(lost, "the worker process was killed by SIGSEGV")
    clock.advance("1s")
    broker.run_maintenance()
    assert broker.get(swept.id).death
    assert seen("redrive_leases_lost_total", queue="jobs") == 2
    assert seen("redrive_items_poisoned_total", queue="jobs") == 2
    assert seen("redrive_items_dead_lettered_total", queue="jobs", reason="worker_lost") == 2


def test_expiry_burials_and_releases_are_counted(broker: Broker, clock: FakeClock, seen: Seen) -> None:
    broker.put("jobs", 1, expire_timeout="1s")
    clock.advance("2s")
    broker.run_maintenance()
    broker.put_many("jobs", [2, 3])
    buried, released = broker.lease("jobs", 2)
    broker.bury(buried)
    broker.release(released)
    assert seen("redrive_items_dead_lettered_total", queue="jobs", reason="expired") == 1
    assert seen("redrive_items_dead_lettered_total", queue="jobs", reason="buried") == 1
    assert seen("redrive_items_released_total", queue="jobs", counted="yes") == 1


def test_judged_return_is_counted_as_a_return_and_not_as_a_failure(broker: Broker, seen: Seen) -> None:
    broker.put("jobs", 1)
    (lease,) = broker.lease("jobs")
    settle = Settle(lease.token, OutcomeKind.RETURNED, RetryVerdict(), broker.get_queue("jobs").version)
    failure = Failure("TooManyRequests", "later")
    meter = broker.core.meter
    assert meter is not None
    meter.settled("jobs", OutcomeKind.RETURNED, broker.submit(settle), failure)
    assert seen("redrive_items_released_total", queue="jobs", counted="no") == 1
    assert seen("redrive_items_failed_total", queue="jobs", error_class=str(failure.error_class)) is None


def test_item_that_was_put_as_failed_is_counted(broker: Broker, seen: Seen) -> None:
    failure = Failure("E", "x", error_class=ErrorClass.NETWORK)
    broker.put_failed("jobs", 1, failure)
    broker.put_failed("jobs", 1, failure, verdict=Dead(DeadReason.POLICY))
    assert seen("redrive_items_failed_total", queue="jobs", error_class="network") == 2
    assert seen("redrive_items_dead_lettered_total", queue="jobs", reason="policy") == 1


def test_what_is_brought_back_and_what_is_discarded_is_counted(broker: Broker, seen: Seen) -> None:
    broker.put_many("jobs", range(4))
    dead = [broker.fail(lease, "boom", final=True).id for lease in broker.lease("jobs", 4)]
    broker.redrive(dead[0])
    broker.drop(dead[1])
    broker.run_operation(broker.start_operation("redrive", queue="morgue", to="jobs").id)
    broker.put("gone", 1)
    broker.fail(broker.lease("gone")[0], "boom")
    assert seen("redrive_items_redriven_total", queue="jobs") == 3
    assert seen("redrive_items_discarded_total", queue="morgue", by="drop") == 1
    assert seen("redrive_items_discarded_total", queue="gone", by="on_dead") == 1


def test_operation_that_changes_nothing_counts_nothing(broker: Broker, seen: Seen) -> None:
    broker.run_operation(broker.start_operation("redrive", queue="morgue", to="jobs").id)
    assert seen("redrive_items_redriven_total", queue="jobs") is None


def test_outcome_that_comes_too_late_is_counted(broker: Broker, clock: FakeClock, seen: Seen) -> None:
    broker.put("jobs", 1)
    lease = broker.lease("jobs")[0]
    broker.complete(lease)
    for settle in (lambda: broker.complete(lease), lambda: broker.fail(lease, "boom")):
        with pytest.raises(LeaseLost):
            settle()
    assert seen("redrive_late_outcomes_total") == 2


def test_refused_call_counts_nothing(broker: Broker, seen: Seen) -> None:
    broker.update_queue("jobs", max_size=1)
    broker.put("jobs", 1)
    with pytest.raises(Exception, match="full"):
        broker.put("jobs", 2)
    assert seen("redrive_items_put_total", queue="jobs") == 1


def test_transactions_are_measured(broker: Broker, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    before = seen("redrive_commit_batch_size_count") or 0
    broker.put("jobs", 1)
    assert seen("redrive_commit_batch_size_count") == seen("redrive_commit_duration_seconds_count") == before + 1
    assert seen("redrive_commit_batch_size_bucket", le="1.0") == before + 1
    assert seen("redrive_commit_pending_calls") == 0

    def broken(*_: object) -> None:
        raise StoreFailed("memory", "no")

    monkeypatch.setattr(broker.core.store, "commit", broken)
    with pytest.raises(StoreFailed):
        broker.put("jobs", 1)
    assert seen("redrive_commits_failed_total") == 1


def test_what_cannot_be_counted_is_done_all_the_same(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise AssertionError("a mistake")

    monkeypatch.setattr(broker.core.meter, "committed", broken)
    monkeypatch.setattr("redrive.broker.instrumentation._count_ending", broken)
    broker.put("jobs", 1)
    assert broker.fail(broker.lease("jobs")[0], "boom").status == "failed"
    assert caplog.text.count("metrics_update_failed") == 4


def test_wake_ups_are_counted(broker: Broker, seen: Seen) -> None:
    waiting = threading.Thread(target=lambda: broker.lease("jobs", wait="60s"))
    waiting.start()
    while not broker.core.notify._waiters:
        threading.Event().wait(0.001)
    broker.put("jobs", 1)
    waiting.join()
    assert seen("redrive_wakeups_total") == 1


def test_depth_and_age_of_queues_are_read_when_somebody_looks(broker: Broker, clock: FakeClock, seen: Seen) -> None:
    broker.put_many("jobs", [1, 2, 3])
    broker.fail(broker.lease("jobs")[0], "boom", final=True)
    clock.advance("90s")
    assert seen("redrive_queue_items", queue="jobs", status="pending") == 2
    assert seen("redrive_queue_items", queue="morgue", status="pending") == 1
    assert seen("redrive_queue_dead_letters", queue="morgue") == 1
    assert seen("redrive_queue_oldest_ready_seconds", queue="jobs") == 90
    assert seen("redrive_queue_oldest_ready_seconds", queue="gone") == 0


def test_totals_of_queues_are_those_of_the_store(broker: Broker, clock: FakeClock, seen: Seen) -> None:
    broker.redrive(broker.put_failed("jobs", 1, "boom", verdict=Dead(DeadReason.POLICY)).id)
    (letter,) = [broker.put_failed("jobs", 2, "boom", verdict=Dead()).id]
    broker.archive(letter)
    broker.complete(broker.lease("jobs")[0])
    stats = broker.stats("jobs")
    for event in ("put", "completed", "failed", "dead", "redriven", "archived", "exhausted", "captured"):
        assert seen("redrive_queue_events_total", queue="jobs", event=event) == getattr(stats, f"{event}_total")
    assert (stats.redriven_total, stats.captured_total) == (1, 2)


def test_stats_of_all_queues_are_one_query(broker: Broker, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    read, asked = broker.core.store.read, []
    monkeypatch.setattr(broker.core.store, "read", lambda query: (asked.append(type(query)), read(query))[1])
    assert seen("redrive_queue_items", queue="gone", status="pending") == 0
    assert asked == [ListQueues, ListStats]


def test_queues_are_read_no_more_often_than_every_few_seconds(broker: Broker, clock: FakeClock, seen: Seen) -> None:
    assert seen("redrive_queue_items", queue="jobs", status="pending") == 0
    broker.put("jobs", 1)
    assert seen("redrive_queue_items", queue="jobs", status="pending") == 0
    clock.advance("5s")
    assert seen("redrive_queue_items", queue="jobs", status="pending") == 1


def test_store_that_does_not_answer_hides_nothing_else(broker: Broker, seen: Seen, caplog: Any) -> None:
    broker.put("jobs", 1)
    broker.close()
    assert seen("redrive_items_put_total", queue="jobs") == 1
    assert seen("redrive_queue_items", queue="jobs", status="pending") is None
    assert "metrics_read_failed" in caplog.text


def test_nothing_is_counted_before_somebody_asks() -> None:
    with connect("memory://", maintenance=False) as broker:
        broker.create_queue("jobs")
        broker.put("jobs", 1)
        assert broker.core.meter is None
        assert broker.core.committer.meter is None
        metrics = broker.metrics
        assert broker.metrics is metrics is AsyncBroker(broker.core).metrics
        broker.put("jobs", 2)
        assert Seen(metrics)("redrive_items_put_total", queue="jobs") == 1


def test_registration_does_not_read_the_store(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker.core.store, "read", lambda _: pytest.fail("read"))
    CollectorRegistry().register(collector(broker.metrics))


def test_two_brokers_of_one_program_are_told_apart() -> None:
    with connect("memory://", maintenance=False) as one, connect("memory://", namespace="b", maintenance=False) as two:
        for broker, count in ((one, 1), (two, 2)):
            assert broker.metrics
            broker.create_queue("jobs")
            broker.put_many("jobs", range(count))
        seen = Seen(one.metrics, two.metrics)
        assert seen("redrive_items_put_total", queue="jobs") == 1
        assert seen("redrive_items_put_total", queue="jobs", namespace="b") == 2


def test_counts_of_two_brokers_on_one_store_add_up_and_its_queues_do_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with connect(url, maintenance=False) as one, connect(url, maintenance=False) as two:
        registry = CollectorRegistry()
        registry.register(collector(one.metrics, two.metrics))
        one.create_queue("jobs")
        one.put("jobs", 1)
        two.put("jobs", 2)
        told = [sample for family in registry.collect() for sample in family.samples]
    assert len({(sample.name, *sample.labels.items()) for sample in told}) == len(told)
    found = {(sample.name, sample.labels.get("queue"), sample.labels.get("status")): sample.value for sample in told}
    assert found["redrive_items_put_total", "jobs", None] == 2
    assert found["redrive_queue_items", "jobs", "pending"] == 2
    assert found["redrive_commit_batch_size_count", None, None] == 3


def test_what_a_worker_measures_is_shown_too(seen: Seen, broker: Broker) -> None:
    for seconds in (0.004, 0.2, 9000.0):
        broker.metrics.observe(names.HANDLER_SECONDS, ("jobs", "send", "completed"), seconds)
    broker.metrics.watch(lambda: [Sample(names.RUNNING, (), 3), Sample(names.BUFFERED, (), 5)])
    of = {"queue": "jobs", "task": "send", "outcome": "completed"}
    assert seen("redrive_handler_duration_seconds_bucket", le="0.005", **of) == 1
    assert seen("redrive_handler_duration_seconds_bucket", le="0.25", **of) == 2
    assert seen("redrive_handler_duration_seconds_bucket", le="+Inf", **of) == 3
    assert seen("redrive_handler_duration_seconds_sum", **of) == pytest.approx(9000.204)
    assert (seen("redrive_worker_running"), seen("redrive_worker_prefetched")) == (3, 5)


def test_threads_lose_no_count() -> None:
    metrics = Metrics()

    def add() -> None:
        for _ in range(20_000):
            metrics.add(names.WAKEUPS)
            metrics.observe(names.COMMIT_CALLS, (), 1)

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = {sample[0].name: sample[2] for sample in metrics.read()}
    assert read["redrive_wakeups_total"] == 80_000
    assert sum(read["redrive_commit_batch_size"].counts) == 80_000  # type: ignore[union-attr]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_forked_child_counts_from_0(broker: Broker) -> None:
    broker.put("jobs", 1)
    assert broker.metrics.lock.acquire()  # as if another thread were counting in this moment
    child = os.fork()
    if not child:
        counted = [sample for sample in broker.metrics.read() if sample[0] is names.PUT]
        os._exit(0 if not counted else 1)
    broker.metrics.lock.release()
    assert os.waitpid(child, 0)[1] == 0


def test_metrics_are_served_to_this_machine_only(broker: Broker) -> None:
    broker.put("jobs", 1)
    server = serve_metrics(broker.metrics, 0)
    try:
        assert server.host == "127.0.0.1"
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            text = answer.read().decode()
        assert 'redrive_items_put_total{namespace="default",queue="jobs",store="memory"} 1.0' in text
        assert "process_resident_memory_bytes" in text
        address = server._server.server_address[0]
        assert address == "127.0.0.1"
    finally:
        server.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=1)


def test_label_cannot_be_broken_out_of(broker: Broker) -> None:
    broker.metrics.observe(names.HANDLER_SECONDS, ("jobs", 'a"} 1\nevil 2', "completed"), 0.1)
    server = serve_metrics(broker.metrics, 0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            assert not [line for line in answer.read().decode().splitlines() if line.startswith("evil")]
    finally:
        server.close()
