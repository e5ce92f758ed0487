"""Values as JSON: complete, and settings as they can be written again."""

from __future__ import annotations

from typing import Any

import pytest

from redrive import connect
from redrive.cli.forms import form, instant, settings_form
from redrive.clock import Instant
from redrive.model.queue import QueueSettings, settings_from

SETTINGS: list[dict[str, Any]] = [
    {},
    {"lease_timeout": "2m", "max_attempts": 7, "max_losses": 0, "max_size": 3, "max_payload_size": 10},
    {"retry": {"attempts": 3, "cooldown": "30s"}},
    {"retry": {"attempts": 5, "delay": "exponential", "base": "1s", "cap": "1h", "jitter": True, "classes": True}},
    {"retry": {"attempts": 4, "delays": ["1s", "1m"]}},
    {"retry": {"attempts": 4, "function": "later"}},
    {"retry": {"attempts": 4, "by_class": {"network": "1m"}, "by_type": {"ValueError": "never"}}},
    {"final_errors": ["ValueError"], "error_rules": [{"error_class": "network", "words": ["reset"]}]},
    {"dead_queue": {"network": "later", "default": "dead"}, "on_dead": "drop", "search": False, "feed": "none"},
    {"expire_timeout": "1d", "idempotency_timeout": "90s", "keep_completed": "1h", "keep_dead": "90d"},
    {"archive_after": "1h30m", "keep_archived": "250ms", "feed": ["dead", "lost"]},
]


@pytest.mark.parametrize("written", SETTINGS, ids=str)
@pytest.mark.parametrize("changed_only", [True, False])
def test_settings_can_be_written_again(written: dict[str, Any], changed_only: bool) -> None:
    settings = settings_from(written)
    told = settings_form(settings, changed_only=changed_only)
    assert settings_from(told) == settings
    assert set(told) == set(written if changed_only else QueueSettings.__struct_fields__)


def test_instants_are_rfc_3339_with_microseconds() -> None:
    assert instant(Instant(1_782_875_575_000_123)) == "2026-07-01T03:12:55.000123Z"


def test_item_has_every_field_and_its_payload_as_it_is() -> None:
    with connect("memory://") as broker:
        broker.create_queue("q")
        json, text, data = (
            form(broker.get(broker.put("q", value, content_type=kind).id))
            for value, kind in (({"a": [1, None]}, None), ("grüß".encode(), "text/plain"), (b"\xff", None))
        )
    assert json["payload"] == {"a": [1, None]}
    assert text["payload_text"] == "grüß"
    assert data["payload_base64"] == "/w=="
    assert json["status"] == "pending"
    assert json["counters"] == {"deliveries": 0, "attempts": 0, "failures": 0, "losses": 0, "redrives": 0}
    assert json["put_at"].endswith("Z")
    assert json["ended_at"] is None
    assert "payload" not in text


def test_group_has_its_hours_and_its_advice() -> None:
    with connect("memory://") as broker:
        broker.create_queue("q")
        broker.put("q", 1)
        broker.fail(broker.lease("q")[0], ConnectionError("no"))
        told = form(broker.groups()[0])
    ((hour, count),) = told["hours"].items()
    assert hour.endswith(":00:00.000000Z")
    assert count == 1
    assert told["queues"] == {"q": 1}
    assert "redrive" in told["advice"]
