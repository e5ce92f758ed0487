"""Values as JSON: what a command prints is what a server answers, and settings can be written again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.servers.asgi import Client
from tests.terminal.cli import Cli, kill

from redrive import connect
from redrive.cli.output import changed_settings, to_json_value
from redrive.model.masked_item import MASKED_TYPE, mask_item
from redrive.model.queue_options import parse_settings
from redrive.server.application import application
from redrive.wire.json_views import view_of

SETTINGS: list[dict[str, Any]] = [
    {},
    {"lease_timeout": "2m", "max_attempts": 7, "max_losses": 0, "max_size": 3, "max_payload_size": 10},
    {"retry": {"attempts": 3, "cooldown": "30s"}},
    {"retry": {"attempts": 5, "delay": "exponential", "base": "1s", "cap": "1h", "jitter": True, "classes": True}},
    {"retry": {"attempts": 4, "delays": ["1s", "1m"]}},
    {"retry": {"attempts": 4, "function": "later"}},
    {"retry": {"attempts": 4, "by_class": {"network": "1m"}, "by_type": {"ValueError": "never"}}},
    {"final_errors": ["ValueError"], "error_rules": [{"error_class": "network", "contains": ["reset"]}]},
    {"dead_queue": {"network": "later", "default": "dead"}, "on_dead": "drop", "search": False, "feed": "none"},
    {"expire_timeout": "1d", "idempotency_timeout": "90s", "keep_completed": "1h", "keep_dead": "90d"},
    {"idempotency_timeout": "item"},
    {"archive_after": "1h30m", "keep_archived": "250ms", "feed": ["dead", "lost"]},
]


@pytest.mark.parametrize("written", SETTINGS, ids=str)
@pytest.mark.parametrize("view", [changed_settings, view_of])
def test_settings_can_be_written_again(written: dict[str, Any], view: Callable[[Any], Any]) -> None:
    settings = parse_settings(written)
    assert parse_settings(as_json(view(settings))) == settings


@pytest.mark.parametrize("written", SETTINGS, ids=str)
def test_settings_that_are_as_usual_are_left_out(written: dict[str, Any]) -> None:
    assert set(changed_settings(parse_settings(written))) == set(written)


def as_json(view: Any) -> Any:
    return json.loads(json.dumps(view))


class Both:
    """A store with all kinds of things in it, for commands and for a server."""

    def __init__(self, url: str) -> None:
        self.cli = Cli(url)
        with self.cli.broker() as broker:
            broker.create_queue("later")
            broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"}, dead_queue="later", keep_dead="90d")
            for value, kind in (({"a": [1, None]}, None), ("grüß".encode(), "text/plain"), (b"plain", None)):
                broker.put("jobs", value, content_type=kind, headers={"kind": "mail", "tenant": "blue"})
            kill(broker, "jobs", [1, 2], ConnectionError("refused"))
            broker.archive([broker.find(status="dead", limit=1).items[0].id])
            broker.pause_queue("later")
            self.ids = [item.id for item in broker.find(status="any", archived=True).items]
            self.operation = broker.start_operation("redrive", queue="later", rate=5, note="try").id

    def answer(self, call: str, **arguments: Any) -> Any:
        """What a server answers."""

        async def ask() -> Any:
            app = application(self.cli.url, maintenance=False)
            try:
                return await Client(app).ok(call, **arguments)
            finally:
                await app.close()

        return asyncio.run(ask())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(f"sqlite:///{tmp_path_factory.mktemp('both')}/store.db")


def test_item_is_printed_as_a_server_answers_it(both: Both) -> None:
    assert len(both.ids) == 5
    for id in both.ids:
        assert both.cli.json("dead", "show", id) == both.answer("items.get", id=id)


def test_page_is_printed_as_a_server_answers_it(both: Both) -> None:
    listed = both.cli.json("queue", "list", "jobs", "--oldest", "--limit", "2")
    assert listed == both.answer("items.list", queue="jobs", limit=2)
    assert "cursor" in listed
    assert both.cli.json("dead", "list") == both.answer("dead.find")


def test_queue_is_printed_as_a_server_answers_it(both: Both) -> None:
    both.cli("breaker", "open", "later", "--class", "network")
    for name in ("jobs", "later"):
        shown, answer = both.cli.json("queue", "show", name), both.answer("queues.info", name=name)
        assert (shown.pop("workers"), shown.pop("external")) == ([], None)
        for stats in (shown["stats"], answer["stats"]):
            del stats["at"]
            stats.pop("oldest_age")  # it grows
        assert shown == answer


def test_group_operation_feed_and_audit_are_printed_as_a_server_answers_them(both: Both) -> None:
    assert both.cli.json("dead", "groups")["groups"] == both.answer("dead.groups")["groups"]
    assert (
        both.cli.json("operation", "show", both.operation)
        == both.answer("operations.info", id=both.operation)["operation"]
    )
    assert both.cli.json("queue", "logs") == both.answer("feed.read")
    printed = both.cli.json("audit")
    assert [each.pop("namespace") for each in printed] == ["default"] * len(printed)
    assert printed == both.answer("audit.list")["entries"]


def test_plan_is_printed_as_a_server_answers_it(both: Both) -> None:
    printed = both.cli.json("dead", "archive", "--all", "--dry-run")
    assert printed.pop("dry_run") is True
    assert printed == both.answer("dead.archive", all=True, dry_run=True)["plan"]


def test_item_that_is_gone_is_removed_as_a_server_says(tmp_path: Path) -> None:
    cli = Cli(f"sqlite:///{tmp_path}/store.db")
    cli("queue", "create", "jobs")
    id = cli.json("queue", "push", "jobs", "1")["id"]
    (done,) = cli.json("queue", "done", id)
    assert done["status"] == "removed"


def test_item_whose_payload_may_not_be_seen_says_so() -> None:
    with connect("memory://") as broker:
        broker.create_queue("q")
        shown = to_json_value(mask_item(broker.get(broker.put("q", 1, headers={"a": "b"}).id)))
    assert shown["hidden"] is True
    assert not {"payload", "encoding", "content_type", "headers"} & shown.keys()
    assert MASKED_TYPE not in str(shown)
