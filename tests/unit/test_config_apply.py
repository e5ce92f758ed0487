"""A file is applied whole or not at all, also where the store changes its mind, or somebody is faster."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from redrive import App, Broker, QueueSettings, connect
from redrive.broker.flows import queues, registrations
from redrive.config.apply import ApplyResult, apply
from redrive.config.loader import parse
from redrive.contract import Call
from redrive.contract.admin_calls import CreateQueue, DeleteQueue, Register, Unregister, UpdateQueue
from redrive.errors import InvalidConfig, InvalidSetting, OutcomeUnknown, RedriveError, StoreUnavailable
from redrive.model.breaker import BreakerRule

FILE = Path("/srv/shop/redrive.toml")
BEFORE = "[queue.a]\nmax_size = 1\n[queue.b]\nmax_size = 1\n[capture.a]\nmax_size = 100\n[capture.b]\n"
AFTER = (
    "[queue.a]\nmax_size = 2\n[queue.b]\nmax_size = 2\nkeep_dead = '1d'\n[queue.c]\n"
    "[capture.a]\nmax_size = 200\n[capture.c]\n"
)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with connect("memory://", maintenance=False) as broker:
        apply(broker, parse(BEFORE, FILE))
        yield broker


def state(broker: Broker) -> Any:
    captures = {each.name: each.value for each in broker.run_flow(registrations.list_registrations("capture"))}
    managed = broker.run_flow(queues.list_managed())
    return {queue.name: queue.settings for queue in broker.list_queues()}, managed, captures


def once(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, change: Callable[[Sequence[Call]], Sequence[Call]]
) -> list[int]:
    """The first batch that changes queues is changed before it is committed."""
    commit, met = broker.core.committer.commit, list[int]()

    def committed(calls: Sequence[Call]) -> list[Any]:
        if not met and any(isinstance(call, UpdateQueue) for call in calls):
            met.append(len(calls))
            calls = change(calls)
        return commit(calls)

    monkeypatch.setattr(broker.core.committer, "commit", committed)
    return met


@pytest.mark.parametrize("refused", ["a", "b"])
def test_refusal_by_the_store_puts_everything_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    before = state(broker)

    def broken(calls: Sequence[Call]) -> list[Call]:
        return [
            UpdateQueue(call.name, with_dead_queue(call), call.version, call.actor)
            if isinstance(call, UpdateQueue) and call.name == refused
            else call
            for call in calls
        ]

    once(broker, monkeypatch, broken)
    with pytest.raises(InvalidConfig, match=f"queue.{refused}.dead_queue: 'nowhere' does not exist"):
        apply(broker, parse(AFTER, FILE))
    assert state(broker) == before


def with_dead_queue(call: UpdateQueue) -> Any:
    return replace(call.settings, dead_queue="nowhere")


def test_change_by_somebody_else_meanwhile_is_met_and_kept(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = broker.core.committer.commit

    def overtaken(calls: Sequence[Call]) -> Sequence[Call]:
        queue = broker.get_queue("a")
        commit([UpdateQueue("a", replace(queue.settings, max_losses=9), queue.version, "ada")])
        return calls

    once(broker, monkeypatch, overtaken)
    assert apply(broker, parse(AFTER, FILE)) == ApplyResult(created=("c",), updated=("a", "b"))
    settings = broker.get_queue("a").settings
    assert (settings.max_size, settings.max_losses) == (2, 9)


def test_process_that_applies_the_same_file_a_moment_later_undoes_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit = broker.core.committer.commit
    sent: list[Call] = []

    def overtaken(calls: Sequence[Call]) -> Sequence[Call]:
        commit(calls)  # another process has planned the same, and is faster
        created.append(broker.get_queue("c").created_at)
        monkeypatch.setattr(broker.core.committer, "commit", lambda calls: sent.extend(calls) or commit(calls))
        return calls

    created: list[int] = []
    once(broker, monkeypatch, overtaken)
    with caplog.at_level(logging.WARNING, "redrive"):
        applied = apply(broker, parse(AFTER, FILE))
    assert applied.updated == ()  # the other one did that
    assert not sent  # after the first batch there was nothing to do, and nothing was taken back
    assert broker.get_queue("c").created_at == created[0]
    assert not caplog.records
    assert {name: each.max_size for name, each in state(broker)[0].items()} == {"a": 2, "b": 2, "c": None}


def test_queue_that_somebody_deletes_meanwhile_is_made_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = broker.core.committer.commit

    def overtaken(calls: Sequence[Call]) -> Sequence[Call]:
        commit([DeleteQueue("a", None, "ada")])
        return calls

    once(broker, monkeypatch, overtaken)
    apply(broker, parse(AFTER, FILE))
    assert broker.get_queue("a").settings.max_size == 2


def test_setting_that_vanished_has_its_default_also_where_somebody_was_faster(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = broker.core.committer.commit

    def overtaken(calls: Sequence[Call]) -> Sequence[Call]:
        queue = broker.get_queue("a")
        commit([UpdateQueue("a", replace(queue.settings, max_losses=9), queue.version, "ada")])
        return calls

    once(broker, monkeypatch, overtaken)
    apply(broker, parse("[queue.a]\nkeep_dead = '1d'\n[queue.b]\nmax_size = 1\n", FILE))
    settings = broker.get_queue("a").settings
    assert (settings.max_size, settings.max_losses) == (None, 9)


def test_what_is_wrong_is_put_back_also_after_somebody_was_faster(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = broker.core.committer.commit

    def overtaken(calls: Sequence[Call]) -> Sequence[Call]:
        queue = broker.get_queue("a")
        # From now on "b" is the dead queue of another one, and cannot have one itself.
        commit([UpdateQueue("a", replace(queue.settings, dead_queue="b"), queue.version, "ada")])
        return calls

    once(broker, monkeypatch, overtaken)
    before = state(broker)
    file = "[queue.a]\nmax_size = 2\n[queue.b]\nmax_size = 1\ndead_queue = 'd'\n[queue.d]\n[queue.e]\n"
    with pytest.raises(InvalidConfig, match=r"queue\.b"):
        apply(broker, parse(file, FILE))
    after = state(broker)
    assert after[0].keys() == before[0].keys()
    assert after[0]["b"] == before[0]["b"]
    assert after[1] == before[1]


def test_queue_that_somebody_else_creates_meanwhile_is_taken_over(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = broker.core.committer.commit

    def overtaken(calls: Sequence[Call]) -> Sequence[Call]:
        commit([CreateQueue("c", QueueSettings(max_losses=9))])
        return calls

    once(broker, monkeypatch, overtaken)
    apply(broker, parse(AFTER.replace("[queue.c]", "[queue.c]\nmax_size = 3"), FILE))
    settings = broker.get_queue("c").settings
    assert (settings.max_size, settings.max_losses) == (3, 9)


@pytest.mark.parametrize("error", [StoreUnavailable("x", "gone"), OutcomeUnknown("x", "broke off")])
def test_trouble_of_the_store_comes_through(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, error: RedriveError
) -> None:
    before = state(broker)

    def broken(calls: Sequence[Call]) -> Sequence[Call]:
        raise error

    once(broker, monkeypatch, broken)
    with pytest.raises(type(error)):
        apply(broker, parse(AFTER, FILE))
    assert state(broker) == before
    assert apply(broker, parse(AFTER, FILE)).updated == ("a", "b")


def test_all_changes_are_one_batch_with_who_manages_them(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[Sequence[Call]] = []

    def seen(calls: Sequence[Call]) -> Sequence[Call]:
        batches.append(calls)
        return calls

    once(broker, monkeypatch, seen)
    apply(broker, parse(AFTER, FILE))
    assert [type(call) for call in batches[0]] == [
        *(UpdateQueue, UpdateQueue, CreateQueue),
        *(Register, Register),
        *(Unregister, Register, Register),
    ]


def test_what_was_done_is_told(broker: Broker, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "redrive"):
        apply(broker, parse("[queue.a]\nmax_size = 3\n[queue.new]\n", FILE))
        apply(broker, parse("[queue.a]\nmax_size = 3\n[queue.new]\n", FILE))
    assert [record.getMessage() for record in caplog.records] == [
        "config_applied file=/srv/shop/redrive.toml created=new updated=a released=b"
    ]


def test_declaration_of_an_app_does_not_change_what_a_file_manages(broker: Broker) -> None:
    app = App()
    app.queue("a", max_size=5)
    with pytest.raises(InvalidSetting, match="max_size of queue 'a' is managed by"):
        app.create_queues(broker)
    same = App()
    same.queue("a", max_size=1, lease_timeout="3m")
    same.create_queues(broker)
    assert broker.get_queue("a").settings.lease_timeout == 180_000_000


def test_dead_queue_in_another_store_is_told_first(tmp_path: Path) -> None:
    text = f"""
    name = "main"
    [stores]
    archive = "sqlite:///{tmp_path}/archive.db"
    [queue.a]
    dead_queue = "morgue@archive"
    """
    config = parse(text, FILE)
    with connect("memory://", store_name="main", stores=config.store.stores, maintenance=False) as broker:
        with pytest.raises(
            InvalidConfig, match=r"queue\.a\.dead_queue: 'morgue@archive' does not exist; create it first"
        ):
            apply(broker, config)
        assert broker.list_queues() == ()
        broker.on_store("archive").create_queue("morgue")
        apply(broker, config)
        assert broker.on_store("archive").get_queue("morgue").source_queues == ("a@main",)
        apply(broker, parse("name = 'main'\n[queue.a]\n", FILE))
        assert broker.on_store("archive").get_queue("morgue").source_queues == ()


OTHER = Path("/srv/other/redrive.toml")


def test_file_that_another_file_contradicts_is_refused_with_its_name(broker: Broker) -> None:
    before = state(broker)
    for text, keys in (
        ("[queue.a]\nmax_size = 2\n", ["queue.a"]),
        ("[queue.a]\nmax_size = 1\nkeep_dead = '1d'\n[queue.c]\n", ["queue.a"]),
        ("[queue.a]\n[queue.b]\n[queue.c]\n", ["queue.a", "queue.b"]),
        ("[queue.a]\nmax_size = 1\n[capture.a]\nmax_size = 101\n", ["capture.a"]),
    ):
        with pytest.raises(InvalidConfig, match=f"is managed by {FILE} with other settings") as refusal:
            apply(broker, parse(text, OTHER))
        assert [problem.key for problem in refusal.value.problems] == keys
        assert "redrive config apply --take-over" in str(refusal.value)
        assert state(broker) == before
    assert apply(broker, parse(BEFORE, FILE)).is_empty


def test_file_with_the_same_settings_runs_beside_the_first(broker: Broker) -> None:
    before = state(broker)
    assert apply(broker, parse(BEFORE, OTHER)).is_empty
    assert apply(broker, parse("", OTHER)).is_empty
    assert state(broker) == before


def test_file_takes_over_on_request(broker: Broker) -> None:
    with pytest.raises(InvalidConfig):
        apply(broker, parse(AFTER, OTHER))
    apply(broker, parse(AFTER, OTHER), take_over=True)
    assert broker.get_queue("a").settings.max_size == 2
    assert apply(broker, parse(AFTER, OTHER)).is_empty
    with pytest.raises(InvalidConfig, match=f"is managed by {OTHER}"):
        apply(broker, parse(BEFORE, FILE))
    released = apply(broker, parse("", FILE)).released
    assert released == ()


def test_file_that_another_one_overtakes_is_refused_and_put_back(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_first(calls: Sequence[Call]) -> Sequence[Call]:
        monkeypatch.undo()
        apply(broker, parse("[queue.free]\nmax_size = 7\n", OTHER))
        return calls

    broker.create_queue("free")
    once(broker, monkeypatch, other_first)
    with pytest.raises(InvalidConfig, match=f"free: is managed by {OTHER}"):
        apply(broker, parse(f"{BEFORE}[queue.free]\nmax_size = 8\n", FILE))
    assert broker.get_queue("free").settings.max_size == 7
    assert broker.run_flow(queues.list_managed())["free"].file == str(OTHER)


def test_dead_queue_in_a_store_that_is_away_waits_on_request(tmp_path: Path) -> None:
    text = f"""
    name = "main"
    [stores]
    archive = "sqlite:///{tmp_path}/later/archive.db"
    [queue.a]
    max_size = 5
    dead_queue = "morgue@archive"
    [queue.b]
    dead_queue = {{ default = "morgue@archive", permission = "locked" }}
    [queue.locked]
    """
    config = parse(text, FILE)
    with connect("memory://", store_name="main", stores=config.store.stores, maintenance=False) as broker:
        with pytest.raises(StoreUnavailable):
            apply(broker, config)
        assert broker.list_queues() == ()
        first = apply(broker, config, defer=True)
        assert (first.created, list(first.deferred)) == (("a", "b", "locked"), ["a", "b"])
        assert "later" in first.deferred["a"]
        assert (broker.get_queue("a").settings.max_size, broker.get_queue("a").settings.dead_queue) == (5, None)
        (tmp_path / "later").mkdir()
        broker.on_store("archive").create_queue("morgue")
        second = apply(broker, config, defer=True)
        assert (second.updated, second.deferred) == (("a", "b"), {})
        assert broker.get_queue("a").settings.dead_queue == "morgue@archive"
        assert broker.on_store("archive").get_queue("morgue").source_queues == ("a@main", "b@main")


def test_breakers_of_the_file_are_applied_to_its_queues_and_end_with_its_table(broker: Broker) -> None:
    common = "[breakers]\nnetwork = { failures = 9 }\n"
    queues_of_file = "[queue.a]\n[queue.b.breakers]\nqueue = {}\n[capture.c]\n"
    apply(broker, parse(common + queues_of_file, FILE))
    rules = {each.name: each.settings.breakers for each in broker.list_queues()}
    everywhere = {"network": BreakerRule(failures=9)}
    assert rules == {"a": everywhere, "b": {"queue": BreakerRule()}, "c": everywhere}
    with pytest.raises(InvalidSetting, match="is managed by"):
        broker.update_queue("a", breakers={})
    apply(broker, parse(queues_of_file, FILE))
    rules = {each.name: each.settings.breakers for each in broker.list_queues()}
    assert rules == {"a": {}, "b": {"queue": BreakerRule()}, "c": {}}


def test_breaker_in_the_way_of_a_setting_of_the_store_is_told_at_the_queue(broker: Broker) -> None:
    broker.create_queue("quiet", feed="none")
    with pytest.raises(InvalidConfig, match=r"redrive\.toml:3: queue\.quiet\.breakers: count the failures"):
        apply(broker, parse("[breakers]\nqueue = {}\n[queue.quiet]\n", FILE))
