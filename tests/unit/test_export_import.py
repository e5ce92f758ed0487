"""Items as lines of JSON, out of one broker and into another."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from redrive import Broker, ImportResult, Item
from redrive.broker.flows.export_import import PAGE, encode_line
from redrive.contract.queries import FindItems, GetQueue
from redrive.errors import InvalidInput, QueueNotFound
from redrive.testing import memory_broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with memory_broker() as broker:
        broker.create_queue("jobs", keep_completed="1h")
        yield broker


@pytest.fixture
def other() -> Iterator[Broker]:
    with memory_broker() as broker:
        broker.create_queue("jobs")
        broker.create_queue("kept")
        yield broker


def dead(broker: Broker, *values: Any, **options: Any) -> list[str]:
    ids = [broker.put("jobs", value, **options).id for value in values]
    for lease in broker.lease("jobs", limit=len(values)):
        broker.fail(lease, ValueError("no"))
    return ids


def items_in(lines: list[bytes]) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, lines) if "cursor" not in line]


VALUES = [
    {"a": [1, 2.5, None, "ü"]},
    "text",
    None,
    2**80,
    b"\x00\xff bytes",
    b"bytes that are text",
]


def test_what_is_exported_is_imported_as_it_was(broker: Broker, other: Broker) -> None:
    ids = dead(broker, *VALUES, headers={"trace": "1"}, priority=7)
    lines = list(broker.export(redacted=False))
    assert all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert other.import_items(lines) == ImportResult(len(VALUES), 0)
    for id, item in zip(ids, other.find(order="oldest").items, strict=True):
        was = broker.get(id)
        assert (item.source_id, item.payload, item.content_type) == (id, was.payload, was.content_type)
        assert (item.headers, item.priority, item.put_at) == ({"trace": "1"}, 7, was.put_at)
        assert (item.counters, item.history, item.deaths) == (was.counters, was.history, was.deaths)


def test_payload_is_readable_where_it_can_be(broker: Broker) -> None:
    dead(broker, {"a": 1}, b"text", b"\xff")
    pretty = broker.put("jobs", b'{\n "a": 1}', content_type="application/json").id
    broken = broker.put("jobs", b"{", content_type="application/json").id
    lines = {line["id"]: line for line in items_in(list(broker.export(status="any")))}
    payloads = [[line[key] for key in line if key.startswith("payload")] for line in lines.values()]
    assert payloads[:3] == [[{"a": 1}], ["text"], [base64.b64encode(b"\xff").decode()]]
    assert lines[pretty]["payload_text"] == '{\n "a": 1}'
    assert lines[broken]["payload_text"] == "{"
    assert all(line["format"] == 1 for line in lines.values())


def test_import_again_ignores_what_is_there(broker: Broker, other: Broker) -> None:
    dead(broker, *range(5))
    lines = list(broker.export())
    assert other.import_items(lines[:3]) == ImportResult(3, 0)
    assert other.import_items(lines) == ImportResult(2, 3)
    assert other.count() == 5


def test_export_goes_on_from_a_cursor(broker: Broker) -> None:
    ids = dead(broker, *range(PAGE * 2 + 10))
    lines = list(broker.export())
    assert [line["id"] for line in items_in(lines)] == ids
    cursors = [number for number, line in enumerate(lines) if b'"cursor"' in line]
    assert len(cursors) == 2
    rest = list(broker.export(cursor=json.loads(lines[cursors[0]])["cursor"]))
    assert rest == lines[cursors[0] + 1 :]


def test_export_reads_only_what_is_asked_for(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    dead(broker, *range(PAGE * 3))
    reads = []
    real = broker.core.store.read
    monkeypatch.setattr(broker.core.store, "read", lambda query: reads.append(query) or real(query))
    lines = broker.export()
    for _ in range(PAGE):
        next(lines)
    assert [type(query) for query in reads] == [FindItems, GetQueue]  # the second for the rules of the queue


def test_import_into_another_queue_reports_progress(broker: Broker, other: Broker) -> None:
    dead(broker, *range(1000))
    dead(broker, *range(500))
    seen: list[ImportResult] = []
    assert other.import_items(broker.export(), queue="kept", progress=seen.append) == ImportResult(1500, 0)
    assert seen == [ImportResult(1000, 0), ImportResult(1500, 0)]
    assert (other.stats("kept").dead, other.stats("jobs").dead) == (1500, 0)


def test_results_and_results_only_are_base64(broker: Broker) -> None:
    broker.put("jobs", 1)
    broker.complete(broker.lease("jobs")[0], result={"done": True})
    (line,) = items_in(list(broker.export(status="completed")))
    assert base64.b64decode(line["result"]["payload"]) == b'{"done":true}'
    assert msgspec.json.decode(base64.b64decode(line["result"]["payload"])) == {"done": True}


def test_hidden_secrets_are_not_imported_as_work(broker: Broker, other: Broker) -> None:
    dead(broker, {"n": 1}, {"password": "x"})
    lines = list(broker.export())
    assert [line.get("redacted", False) for line in items_in(lines)] == [False, True]
    with pytest.raises(InvalidInput, match=r"line 2: its secrets were hidden by the export.*redacted=False"):
        other.import_items(lines)
    assert other.import_items(broker.export(redacted=False)).imported == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (b"not json", "line 2: "),
        (b"[1]", "line 2: "),
        (b'{"id": "1"}', "line 2: has format None"),
        ({"format": 2}, "line 2: has format 2"),
        ({"id": "xyz"}, "line 2: item id 'xyz'"),
        ({"queue": "a b"}, "line 2: queue 'a b'"),
        ({"status": "lost"}, "line 2: Invalid enum value 'lost'"),
        ({"priority": 11}, "line 2: priority must be"),
        ({"headers": {"a": "b\0"}}, "line 2: header 'a'"),
        ({"put_at": -5}, "line 2: put_at -5"),
        ({"payload_text": "twice"}, "line 2: needs one of payload"),
        ({"payload": None, "payload_base64": "?"}, "line 2: "),
        ({"held_by": ""}, "line 2: held_by"),
    ],
)
def test_mistakes_name_the_line(broker: Broker, other: Broker, change: Any, problem: str) -> None:
    dead(broker, 1)
    (line,) = items_in(list(broker.export()))
    if isinstance(change, dict):
        change = json.dumps({key: value for key, value in {**line, **change}.items() if value is not None})
    with pytest.raises(InvalidInput, match=problem):
        other.import_items([b"\n", change])
    assert other.count(status="any") == 0


def test_one_holder_as_a_text_is_read(broker: Broker, other: Broker) -> None:
    dead(broker, 1)
    (line,) = items_in(list(broker.export()))
    waiting = {**line, "status": "pending", "deaths": [], "history": [], "held_by": "ann"}
    assert other.import_items([json.dumps(waiting)]).imported == 1
    assert other.find(status="pending").items[0].held_by == ("ann",)


def test_mistake_says_what_was_imported_before_it(broker: Broker, other: Broker) -> None:
    dead(broker, 1)
    (line,) = items_in(list(broker.export()))
    lines = [json.dumps({**line, "id": f"{number:032x}"}) for number in range(1_002)]
    lines[1_001] = lines[1_001][:50]
    with pytest.raises(InvalidInput, match=r"line 1002: .*; 1,000 were imported before it and 0 ignored\. Fix"):
        other.import_items(lines)
    assert other.count() == 1_000


def test_cursor_of_an_export_is_a_text(broker: Broker) -> None:
    with pytest.raises(InvalidInput, match="a cursor is the text"):
        broker.export(cursor=3)  # type: ignore[arg-type]


def test_import_takes_lines(broker: Broker) -> None:
    assert broker.import_items([]) == ImportResult()
    assert broker.import_items(["", " \n", '{"format":1,"cursor":"x"}']) == ImportResult()
    for wrong in (b"{}", "{}", 7, None):
        with pytest.raises(InvalidInput, match="import_items takes lines"):
            broker.import_items(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="line 1 is int"):
        broker.import_items([1])  # type: ignore[list-item]


def test_queue_that_is_missing_is_named(broker: Broker) -> None:
    dead(broker, 1)
    with memory_broker() as empty, pytest.raises(QueueNotFound, match="'jobs'"):
        empty.import_items(broker.export())


def test_every_field_of_an_item_is_in_its_line_or_has_its_default(broker: Broker) -> None:
    (id,) = dead(broker, {"a": 1}, headers={"b": "c"})
    broker.redrive(id)
    item = broker.get(id, redacted=False)
    line = json.loads(encode_line(item))
    for name, default in zip(reversed(Item.__struct_fields__), reversed(Item.__struct_defaults__), strict=False):
        assert name in line or getattr(item, name) in (default, ())


@pytest.mark.parametrize(
    "change",
    [
        {"counters": {"deliveries": 2**70}},
        {"counters": {"redrives": -1}},
        {"history_omitted": -1},
        {"history_omitted": 2**63},
        {"deaths": []},
    ],
)
def test_numbers_that_no_store_can_count_with_are_refused(broker: Broker, other: Broker, change: Any) -> None:
    (id,) = dead(broker, 1)
    broker.redrive(id)
    (line,) = items_in(list(broker.export(status=None)))
    with pytest.raises(InvalidInput):
        other.import_items([json.dumps({**line, **change})])
    assert other.count(status=None) == 0
