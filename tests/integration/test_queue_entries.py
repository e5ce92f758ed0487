"""Feed entries of a queue, which are of no item: on every store, over HTTP, and on the command line.

Pausing a queue writes such an entry here, by the function of the rules, in the transaction of the pause.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.mounted import Mounts, Uncounted
from tests.terminal.cli import Cli

from redrive import Broker, FeedKind, connect, connect_async
from redrive.contract.admin_calls import SetPaused
from redrive.stores.rules.dispatch import CALL_RULES
from redrive.stores.rules.feed import append_queue_event
from redrive.stores.rules.state import State
from redrive.testing.conformance.actions import Background, kill
from redrive.testing.fake_clock import FakeClock

WHY = "20 failures within 1m, the last with password=hunter2"


@pytest.fixture(autouse=True)
def entries_of_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that is paused or resumed has an entry of its breaker."""
    set_paused = CALL_RULES[SetPaused]

    def with_entry(state: State, call: SetPaused) -> Any:
        kind = FeedKind.BREAKER_OPENED if call.paused else FeedKind.BREAKER_CLOSED
        append_queue_event(state, kind, call.name, title=WHY, actor=call.actor, breaker="network")
        return set_paused(state, call)

    monkeypatch.setitem(CALL_RULES, SetPaused, with_entry)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server_url(tmp_path: Path, clock: FakeClock) -> Iterator[str]:
    """A server in a thread of this process."""
    mounts = Mounts()
    yield mounts.mount(
        lambda namespace: connect_async(
            f"sqlite:///{tmp_path}/redrive.db", namespace=namespace, clock=Uncounted(clock), maintenance=False
        )
    )
    mounts.close()


@pytest.fixture(params=["memory", "sqlite", "postgres", "redis", "http"])
def broker(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> Iterator[Broker]:
    match request.param:
        case "memory":
            url = "memory://"
        case "sqlite":
            url = f"sqlite:///{tmp_path}/redrive.db"
        case "http":
            url = request.getfixturevalue("server_url")
        case _:
            url = request.getfixturevalue(f"{request.param}_url")
    with connect(url, clock=clock, maintenance=False) as broker:
        yield broker


def test_entry_of_a_queue_names_the_breaker_and_no_item(broker: Broker, clock: FakeClock) -> None:
    broker.create_queue("jobs")
    broker.pause_queue("jobs", actor="ada")
    clock.advance("1s")
    broker.resume_queue("jobs", actor="bob")
    opened, closed = broker.feed().entries
    assert (opened.kind, opened.queue, opened.id, opened.source_id) == ("breaker_opened", "jobs", None, None)
    assert (opened.breaker, opened.actor, opened.error_class, opened.fingerprint) == ("network", "ada", None, None)
    assert (closed.kind, closed.id, closed.breaker, closed.actor) == ("breaker_closed", None, "network", "bob")
    assert (opened.at, closed.at) == (clock.now() - 1_000_000, clock.now())
    assert opened.number < closed.number


def test_title_is_redacted_as_any_other(broker: Broker) -> None:
    broker.create_queue("jobs")
    broker.pause_queue("jobs")
    title = broker.feed().entries[0].title or ""
    assert title.startswith("20 failures within 1m")
    assert "hunter2" not in title


def test_entry_of_a_queue_is_read_by_queue_and_kind_and_never_by_item(broker: Broker) -> None:
    broker.create_queue("jobs")
    broker.create_queue("mails")
    id = kill(broker).id
    broker.pause_queue("jobs")
    broker.pause_queue("mails")
    kinds = [entry.kind.value for entry in broker.feed(queue="jobs").entries]
    assert kinds == ["dead", "breaker_opened"]
    assert [entry.queue for entry in broker.feed(kinds="breaker_opened").entries] == ["jobs", "mails"]
    assert [entry.kind.value for entry in broker.feed(id=id).entries] == ["dead"]
    assert broker.feed(id="0" * 32).entries == ()


def test_queue_that_does_not_keep_the_kind_has_no_entry(broker: Broker) -> None:
    broker.create_queue("jobs", feed=["dead", "breaker_closed"])
    broker.pause_queue("jobs")
    broker.resume_queue("jobs")
    assert [entry.kind.value for entry in broker.feed().entries] == ["breaker_closed"]


def test_follower_gets_it(broker: Broker, clock: FakeClock) -> None:
    broker.create_queue("jobs")
    entries = broker.follow(queue="jobs", kinds="breaker_opened")
    waiting = Background(lambda: next(iter(entries)))
    clock.until_waiting()
    broker.pause_queue("jobs")
    clock.advance("1s")
    assert waiting.result().kind is FeedKind.BREAKER_OPENED


def test_entries_of_a_queue_are_forgotten_with_the_others(broker: Broker, clock: FakeClock) -> None:
    broker.create_queue("jobs")
    broker.pause_queue("jobs")
    clock.advance("8d")
    broker.run_maintenance()
    assert broker.feed().entries == ()


def test_logs_have_a_line_without_an_item(tmp_path: Path) -> None:
    cli = Cli(f"sqlite:///{tmp_path}/redrive.db")
    cli("queue", "create", "jobs")
    with cli.broker() as broker:
        id = kill(broker).id
    cli("queue", "pause", "jobs")
    dead, opened = cli("queue", "logs").stdout.splitlines()
    at, rest = dead.split(f"  {id[:8]}  ")
    assert rest.startswith("dead in jobs")
    assert opened.startswith(at[:10])
    assert f"{' ' * 12}breaker_opened in jobs for network by " in opened
    assert ": 20 failures within 1m" in opened
    entry = cli.json("queue", "logs", "--kind", "breaker_opened")["entries"][0]
    assert "id" not in entry
    assert (entry["queue"], entry["breaker"]) == ("jobs", "network")
    assert "error_class" in cli.json("queue", "logs", "--kind", "dead")["entries"][0]
