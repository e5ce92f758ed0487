"""Events of one transaction: the lines and records that each would have alone, in order, written together."""

from __future__ import annotations

import io
import itertools
import json
import logging
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from tests.unit.test_telemetry_events import bare_logging

from redrive import App, Broker, Context, connect
from redrive.model.death import DeadReason
from redrive.model.failure import Failure
from redrive.model.item import Settled
from redrive.telemetry import event_line, events
from redrive.worker import Worker

SECRET = "hunter2hunter2"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
CORPUS: Sequence[Any] = (
    "plain",
    "",
    " ",
    "a = b",
    'a "quoted" word',
    "back\\slash \\n \\x1b",
    "two\nlines\r\n\x0b\x0c\x85\u2028\u2029",
    "tab\tand null\0and bell\a and delete\x7f",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b1m",
    "\ud800 lone \udfff surrogates",
    "\u202eturned\u202c\u200b hidden",
    "é 🦆 ß ｆｕｌｌ",
    "100 %s %d %(event)s {event}",
    f"password={SECRET}",
    f"postgresql://ann:{SECRET}@db/jobs and Authorization: Bearer {TOKEN}",
    f'{{"api_key": "{SECRET}", "rows": [1, 2]}}',
    "key-0123456789abcdef0123456789abcdef",
    "0123456789abcdef0123456789abcdef",
    "4111111111111111",
    "41111111111111114111111111111111",
    "4111111111111111" + "a" * 16,
    "x" * 255 + "é" * 2,
    "é" * 256,
    "p=" + "password=q " * 23,
    f"{'x' * 650} password={SECRET} {'x' * 2000}",
    "x" * 100_000,
    "\x1b" * 40_000,
    DeadReason.POLICY,
    1,
    1.0,
    -0.5,
    0.0,
    -0.0,
    float("nan"),
    True,
    "True",
    None,
    ["jobs", f"secret={SECRET}"],
    tuple(str(number) for number in range(100)),
    {"payload": SECRET},
    SECRET.encode(),
)
WRITTEN = {
    "plain": "plain",
    "": '""',
    "a = b": '"a = b"',
    'a "quoted" word': r'"a \"quoted\" word"',
    "back\\slash \\n \\x1b": r'"back\\slash \\n \\x1b"',
    "two\nlines\r\n\x0b\x0c\x85\u2028\u2029": r'"two\nlines\r\n\x0b\x0c\x85\u2028\u2029"',
    "tab\tand null\0and bell\a and delete\x7f": r'"tab\tand null' "\ufffd" r'and bell\x07 and delete\x7f"',
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b1m": '"red  "',
    "\ud800 lone \udfff surrogates": '"\ufffd lone \ufffd surrogates"',
    "\u202eturned\u202c\u200b hidden": r'"\u202eturned\u202c\u200b hidden"',
    "100 %s %d %(event)s {event}": '"100 %s %d %(event)s {event}"',
    f"password={SECRET}": '"password=[redacted]"',
    f'{{"api_key": "{SECRET}", "rows": [1, 2]}}': r'"{\"api_key\": \"[redacted]\", \"rows\": [1, 2]}"',
    "key-0123456789abcdef0123456789abcdef": "[redacted]",
    "4111111111111111": "[redacted]",
    "4111111111111111" + "a" * 16: "4111111111111111" + "a" * 16,
}
"""How lines have had these texts since before they were written together."""


@pytest.fixture
def log() -> events.Log:
    return events.logger("redrive.test")


def _emit_all(log: events.Log, *, repeated: int = 1) -> None:
    numbers = itertools.count()
    for _ in range(repeated):
        for value in CORPUS:
            log.warning("item_dead", item="01ab", text=value, last=7)
            log.warning("item_dead", item=f"{next(numbers):032x}", text=value, last=7)
        log.warning("item_dead", traceback=f"password={SECRET}\n" + "y" * 9000)
        log.warning("odd\tname \u202e", item=f"{next(numbers):032x}")


class Stream(io.StringIO):
    """A stream that knows its writes."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def write(self, text: str, /) -> int:
        self.writes.append(text)
        return super().write(text)


class Keeper(logging.Handler):
    """A handler of a program: keeps records, and raises for those that it does not like."""

    def __init__(self, disliked: str = "\0") -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self._disliked = disliked

    def emit(self, record: logging.LogRecord) -> None:
        if self._disliked in record.getMessage():
            raise RuntimeError("the handler is broken")
        self.records.append(record)


def _without_times(text: str) -> str:
    return re.sub(r"20\d\d-\d\d-\d\dT[\d:.]+Z", "TIME", text)


@pytest.mark.parametrize("as_json", [False, True])
def test_lines_together_are_those_of_each_alone(log: events.Log, as_json: bool) -> None:
    alone, together = Stream(), Stream()
    for stream in (alone, together):
        with bare_logging():
            events.configure(json=as_json, stream=stream)
            if stream is alone:
                _emit_all(log, repeated=2)
                continue
            with events.together():
                _emit_all(log, repeated=2)
                assert not stream.writes
    assert _without_times(together.getvalue()) == _without_times(alone.getvalue())
    assert SECRET not in together.getvalue()
    assert len(together.getvalue().splitlines()) == 4 * len(CORPUS) + 4
    if as_json:
        names = {json.loads(line)["event"] for line in together.getvalue().splitlines()}
        assert names == {"item_dead", "odd\tname \u202e"}


@pytest.mark.parametrize("text", WRITTEN)
def test_text_is_written_as_ever(log: events.Log, text: str) -> None:
    alone, together = Keeper(), Keeper()
    with bare_logging() as root:
        root.handlers = [alone]
        log.warning("said", text=text)
        root.handlers = [together]
        with events.together():
            log.warning("said", text=text)
    assert [record.getMessage() for record in (*alone.records, *together.records)] == [f"said text={WRITTEN[text]}"] * 2


def test_records_together_are_those_of_each_alone(log: events.Log) -> None:
    alone, together = Keeper(), Keeper()
    with bare_logging() as root:
        root.handlers = [alone]
        _emit_all(log)
        root.handlers = [together]
        with events.together():
            _emit_all(log)
            assert not together.records
    assert [_facts(record) for record in together.records] == [_facts(record) for record in alone.records]
    assert len({id(record) for record in together.records}) == 2 * len(CORPUS) + 2
    assert SECRET not in repr([vars(record) for record in together.records])


def _facts(record: Any) -> tuple[Any, ...]:
    fields = {name: (type(value), str(value)) for name, value in record.fields.items()}
    return record.name, record.levelno, record.getMessage(), record.args, record.exc_info, record.event, fields


def test_ids_are_no_secrets(log: events.Log) -> None:
    """They are not looked at: nothing of this form may be anything else to those who look."""
    draw = random.Random(7)
    for alphabet in ("0123456789", "0123456789abcdef", "45", "abcdef", "4a"):
        for _ in range(200):
            text = "".join(draw.choices(alphabet, k=32))
            assert event_line._safe_text(text, event_line.MAX_VALUE_BYTES) == (text, text)


def test_lines_of_a_transaction_are_one_write(log: events.Log) -> None:
    stream = Stream()
    with bare_logging():
        events.configure(stream=stream)
        with events.together():
            for number in range(20):
                log.warning("item_dead", number=number)
    assert len(stream.writes) == 1
    assert [line.rpartition("=")[2] for line in stream.getvalue().splitlines()] == [str(number) for number in range(20)]


def test_no_write_is_more_than_a_pipe_takes_whole(log: events.Log) -> None:
    stream = Stream()
    with bare_logging():
        events.configure(stream=stream)
        with events.together():
            for number in range(200):
                log.warning("item_dead", text="é" * 300, number=number)
            log.warning("item_dead", traceback="x" * 7000)
    *ordinary, long = stream.writes
    assert 40 > len(ordinary) > 20
    assert max(len(text.encode()) for text in ordinary) <= events.MAX_WRITE_BYTES < len(long)
    assert all(text.endswith("\n") for text in stream.writes)


def test_line_that_the_stream_cannot_encode_costs_no_other(log: events.Log, capsys: pytest.CaptureFixture[str]) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, "ascii")
    with bare_logging():
        events.configure(stream=stream)
        with events.together():
            for text in ("one", "zwölf", "three"):
                log.warning("said", text=text)
    assert [line.rpartition(b"=")[2] for line in raw.getvalue().splitlines()] == [b"one", b"three"]
    reported = capsys.readouterr().err
    assert "UnicodeEncodeError" in reported
    assert "Message: '20" in reported
    assert "zwölf" in reported


def test_levels_and_filters_hold_for_lines_together(log: events.Log) -> None:
    stream, ours = Stream(), logging.getLogger("redrive.test")
    with bare_logging() as root:
        events.configure(stream=stream, level="WARNING")
        (handler,) = root.handlers
        no_spam = lambda record: record.event != "spam"  # noqa: E731
        with events.together():
            log.info("said", text="below the level of the logger")
        handler.setLevel("ERROR")
        with events.together():
            log.warning("said", text="below the level of the handler")
            log.error("heard")
        handler.setLevel("NOTSET")
        for filtered in (handler, ours):
            filtered.addFilter(no_spam)
            with events.together():
                log.warning("spam")
                log.warning("heard")
            filtered.removeFilter(no_spam)
        ours.propagate = False
        with events.together():
            log.warning("said", text="to nothing")
        ours.propagate = True
    assert [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()] == ["heard"] * 3


def test_disabled_level_forms_nothing(log: events.Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_line, "_shown", lambda *_: pytest.fail("looked at"))
    with bare_logging() as root:
        root.setLevel(logging.ERROR)
        with events.together():
            log.warning("said", text="x")
        assert not log.shows_warning


def test_other_handlers_beside_ours_get_records(log: events.Log) -> None:
    stream, keeper, ours = Stream(), Keeper(), logging.getLogger("redrive.test")
    with bare_logging():
        events.configure(stream=stream)
        ours.addHandler(keeper)
        with events.together():
            log.warning("first")
            log.warning("second")
        ours.removeHandler(keeper)
    assert [record.getMessage() for record in keeper.records] == ["first", "second"]
    assert len(stream.getvalue().splitlines()) == 2


class FailingFormatter(logging.Formatter):
    """Another one than ours, which raises for one event."""

    def format(self, record: logging.LogRecord) -> str:
        if record.getMessage() == "second":
            raise ValueError("not this one")
        return f"other {record.getMessage()}"


def test_formatter_of_a_program_gets_records_and_may_raise(log: events.Log, capsys: pytest.CaptureFixture[str]) -> None:
    stream = Stream()
    with bare_logging():
        events.configure(stream=stream)
        logging.getLogger().handlers[0].setFormatter(FailingFormatter())
        with events.together():
            for event in ("first", "second", "third"):
                log.warning(event)
    assert stream.getvalue().splitlines() == ["other first", "other third"]
    assert "ValueError: not this one" in capsys.readouterr().err


def test_order_of_loggers_and_levels_is_kept(log: events.Log) -> None:
    stream, other = Stream(), events.logger("redrive.other")
    with bare_logging():
        events.configure(stream=stream)
        with events.together():
            log.warning("first")
            other.warning("second")
            with events.together():
                log.info("third")
            log.warning("fourth")
    heads = [line.split(" ", 1)[1] for line in stream.getvalue().splitlines()]
    assert heads == [
        "WARNING redrive.test: first", "WARNING redrive.other: second",
        "INFO    redrive.test: third", "WARNING redrive.test: fourth",
    ]  # fmt: skip


def test_what_was_said_before_an_error_is_written(log: events.Log) -> None:
    stream = Stream()
    with bare_logging():
        events.configure(stream=stream)
        with pytest.raises(ZeroDivisionError), events.together():
            _say_and_fail(log)
        log.warning("after")
    assert [line.rpartition(" ")[2] for line in stream.getvalue().splitlines()] == ["said", "after"]


def _say_and_fail(log: events.Log) -> None:
    log.warning("said")
    raise ZeroDivisionError


@pytest.fixture
def app() -> App:
    return App("memory://")


@pytest.fixture
def broker(app: App) -> Iterator[Broker]:
    with connect("memory://") as broker, app.override_broker(broker):
        yield broker


def test_handler_that_raises_costs_no_result_of_a_call(
    app: App, broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []

    @app.queue("jobs", retry={"attempts": 1}).task
    def work(number: int) -> None:
        seen.append(f"ran {number}")
        raise ValueError(f"number {number}")

    @work.on_dead
    def died(context: Context, failure: Failure, settled: Settled) -> None:
        seen.append(f"died {failure.text[-1]}")

    handles = [work.put(number) for number in range(4)]
    keeper = Keeper(disliked="number 1")
    with bare_logging() as root:
        root.handlers = [keeper]
        Worker(app, concurrency=1).run(until_idle=True)
    assert [broker.get(handle.id).status for handle in handles] == ["dead"] * 4
    assert sorted(seen) == [*(f"died {number}" for number in range(4)), *(f"ran {number}" for number in range(4))]
    dead: list[Any] = [record for record in keeper.records if getattr(record, "event", "") == "item_dead"]
    assert [record.fields["error"] for record in dead] == [f"ValueError: number {number}" for number in (0, 2, 3)]
    assert "the handler is broken" in capsys.readouterr().err


def test_worker_writes_the_lines_of_a_transaction_together(app: App, broker: Broker) -> None:
    @app.queue("jobs", retry={"attempts": 1}).task
    def work(number: int) -> None:
        raise ValueError(f"password={SECRET} {number}")

    work.put_many(work.item(number) for number in range(100))
    stream = Stream()
    with bare_logging():
        events.configure(stream=stream)
        Worker(app).run(until_idle=True)
    lines = [line for line in stream.getvalue().splitlines() if " item_dead " in line]
    assert len(lines) == 100
    assert len(stream.writes) < 60
    assert SECRET not in stream.getvalue()
