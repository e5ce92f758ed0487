"""Events: one line each, through the program's own logging, without payloads and secrets, and all are documented."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from redrive import Broker, connect
from redrive.model.death import DeadReason
from redrive.telemetry import events
from redrive.testing import FakeClock

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src/redrive"
PAGE = ROOT / "docs/reference/log-events.md"
SECRET = "hunter2hunter2"
LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OF_AN_EXCEPTION = {"error_type", "error", "traceback"}


@pytest.fixture
def log() -> events.Log:
    return events.logger("redrive.test")


@contextmanager
def bare_logging() -> Iterator[logging.Logger]:
    """The root logger as in a program that has configured nothing."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    try:
        yield root
    finally:
        root.handlers = handlers
        root.setLevel(level)


def told(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    (record,) = caplog.records
    return record


def test_event_is_a_record_of_the_programs_own_logging(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "redrive"):
        log.info("item_found", item="01ab", queue="jobs", count=3, share=0.5, last=True, nothing=None)
    record: Any = told(caplog)
    assert (record.name, record.levelno) == ("redrive.test", logging.INFO)
    assert record.getMessage() == "item_found item=01ab queue=jobs count=3 share=0.5 last=true"
    assert (record.event, record.fields["count"]) == ("item_found", 3)


def test_enumerations_are_told_by_their_value(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    log.warning("item_dropped", reason=DeadReason.POLICY)
    assert told(caplog).getMessage() == "item_dropped reason=policy"


@pytest.mark.parametrize("text", ['a "b"', "two\nlines\r\n", "\x1b[31mred\x1b[0m", "\0\ud800", "100 %s %d", "", "é 🦆"])
def test_event_is_one_line_whatever_it_tells(log: events.Log, caplog: pytest.LogCaptureFixture, text: str) -> None:
    log.warning("said", text=text)
    line = told(caplog).getMessage()
    assert len(line.splitlines()) == 1
    assert line.startswith("said text=")
    assert line.isprintable()
    line.encode()


def test_long_text_is_cut(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    log.warning("said", text="x" * 50_000_000)
    assert len(told(caplog).getMessage()) < 1100


def test_nothing_of_a_payload_is_told(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    log.warning("said", payload={"a": "marker"}, raw=b"marker", thing=Exception("marker"), parts=[b"marker"])
    assert "marker" not in told(caplog).getMessage()
    assert "payload=<dict>" in told(caplog).getMessage()


def test_list_of_names_is_told(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    log.warning("said", queues=("jobs", "mails"), many=[str(n) for n in range(1000)])
    assert 'queues="jobs, mails"' in told(caplog).getMessage()
    assert "and 980 more" in told(caplog).getMessage()


def test_secrets_are_taken_out(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    url = f"postgresql://ann:{SECRET}@db/jobs"
    log.warning("said", url=url, error=f"cannot reach {url}: password={SECRET}", queues=[url])
    try:
        raise ValueError(f"{url} api_key={SECRET}")
    except ValueError:
        log.exception("broke")
    assert SECRET not in caplog.text
    assert SECRET not in repr([vars(record) for record in caplog.records])
    assert "postgresql://ann:[redacted]@db/jobs" in caplog.text


def test_secret_across_the_cut_is_taken_out(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    for before in range(600, 700):
        log.warning("said", text="x" * before + f" password={SECRET} " + "x" * 2000)
    assert SECRET[:4] not in caplog.text


def test_exception_that_nobody_foresaw_is_told_in_one_line(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("broke", queue="jobs")
    record: Any = told(caplog)
    assert record.levelno == logging.ERROR
    assert len(record.getMessage().splitlines()) == 1
    assert record.fields.keys() == {"queue", *OF_AN_EXCEPTION}
    assert (record.fields["error_type"], record.fields["error"]) == ("ValueError", "two\nlines")
    assert "Traceback" in record.fields["traceback"]


def test_what_nobody_listens_to_is_not_told(log: events.Log, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "redrive"):
        log.info("said")
        log.debug("said")
    assert not caplog.records


def test_programs_own_configuration_of_structlog_does_not_matter(
    log: events.Log, caplog: pytest.LogCaptureFixture
) -> None:
    import structlog

    structlog.configure(processors=[lambda *_: pytest.fail("asked")])
    try:
        log.warning("said")
    finally:
        structlog.reset_defaults()
    assert told(caplog).getMessage() == "said"


def test_configured_for_people(log: events.Log) -> None:
    stream = io.StringIO()
    with bare_logging():
        assert events.configure(stream=stream)
        log.info("worker_found", queue="jobs")
        logging.getLogger("app").info("hello %s", "ann")
    first, second = stream.getvalue().splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ INFO    redrive.test: worker_found queue=jobs", first)
    assert second.endswith("app: hello ann")


def test_configured_for_machines(log: events.Log) -> None:
    stream = io.StringIO()
    with bare_logging():
        assert events.configure(json=True, stream=stream)
        log.warning("said", queue="jobs", count=3, text="é\n")
        try:
            raise ValueError("x")
        except ValueError:
            log.exception("broke")
            logging.getLogger("app").exception("hello %s", "ann")
    ours, broke, foreign = map(json.loads, stream.getvalue().splitlines())
    assert ours.pop("timestamp").endswith("Z")
    assert ours == {
        "event": "said", "level": "warning", "logger": "redrive.test", "queue": "jobs", "count": 3, "text": "é\n",
    }  # fmt: skip
    assert broke["error_type"] == "ValueError"
    assert (foreign["event"], foreign["logger"]) == ("hello ann", "app")
    assert "ValueError: x" in foreign["exception"]


@pytest.mark.parametrize(("value", "is_json"), [("1", True), ("0", False), ("", False)])
def test_environment_says_whether_the_log_is_json(
    log: events.Log, monkeypatch: pytest.MonkeyPatch, value: str, is_json: bool
) -> None:
    monkeypatch.setenv(events.JSON_VARIABLE, value)
    stream = io.StringIO()
    with bare_logging():
        assert events.configure(stream=stream)
        log.info("said")
    assert stream.getvalue().startswith("{") is is_json


def test_what_a_program_sets_up_later_takes_the_place_of_ours(log: events.Log) -> None:
    ours, theirs = io.StringIO(), io.StringIO()
    with bare_logging():
        assert events.configure(stream=ours)
        with events.defer_to_app_logging():
            logging.basicConfig(stream=theirs, level="INFO", format="their %(message)s")
        log.info("said")
        with events.defer_to_app_logging():  # nothing of ours is left to give way
            pass
        log.info("again")
    assert (ours.getvalue(), theirs.getvalue()) == ("", "their said\ntheir again\n")


def test_ours_stays_where_a_program_sets_up_nothing(log: events.Log) -> None:
    stream = io.StringIO()
    with bare_logging():
        assert events.configure(stream=stream)
        with events.defer_to_app_logging():
            log.info("unheard")
        log.info("said")
    assert "redrive.test: said" in stream.getvalue()
    assert "unheard" not in stream.getvalue()


def test_programs_own_handlers_are_left_alone() -> None:
    mine = logging.NullHandler()
    with bare_logging() as root:
        root.addHandler(mine)
        assert not events.configure()
        assert root.handlers == [mine]


def test_structlog_is_loaded_with_the_first_event_only() -> None:
    program = "import sys, redrive; assert not {'structlog', 'prometheus_client', 'opentelemetry'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_broker_tells_no_payload_and_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "redrive"), connect("memory://", maintenance=False) as broker:
        _die(broker, {"password": SECRET, "order": "marker-4711"}, f"password={SECRET}")
    assert "item_dropped" in caplog.text
    assert SECRET not in caplog.text
    assert "marker-4711" not in caplog.text


def test_breaker_that_an_operator_opens_is_no_warning_and_a_hook_that_raises_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()

    def broken(change: object) -> None:
        raise ValueError("no such channel")

    with connect("memory://", maintenance=False, clock=clock) as broker, caplog.at_level(logging.INFO, "redrive"):
        broker.create_queue("jobs", breakers={"queue": {"failures": 1}})
        broker.on_breaker_change(broken)
        broker.run_maintenance()
        broker.open_breaker("jobs", "network")
        broker.put("jobs", 1)
        broker.fail(broker.lease("jobs")[0], ValueError("bad"))
        for _ in range(2):
            clock.advance("1s")
            broker.run_maintenance()
        for thread in threading.enumerate():
            if thread.name == "redrive-breaker-hook":
                thread.join()
    seen: list[Any] = [record for record in caplog.records if record.name == "redrive.breaker"]
    levels = {(each.event, each.fields["breaker"]): each.levelname for each in seen}
    failed = {("breaker_hook_failed", kind): "ERROR" for kind in ("network", "queue")}
    assert levels == {("breaker_opened", "network"): "INFO", ("breaker_opened", "queue"): "WARNING", **failed}


def _die(broker: Broker, payload: object, error: str) -> None:
    broker.create_queue("jobs", on_dead="drop")
    broker.put("jobs", payload, headers={"Authorization": f"Bearer {SECRET}"})
    broker.fail(broker.lease("jobs")[0], error)


class Told:
    """What the code tells under one name."""

    def __init__(self) -> None:
        self.levels: set[str] = set()
        self.loggers: set[str] = set()
        self.fields: set[str] = set()


@cache
def _emitted() -> dict[str, Told]:
    """Every event in the source: `_log.warning("name", field=…)` where `_log = events.logger("redrive.…")`."""
    found: dict[str, Told] = {}
    for path in SOURCE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        loggers = {name: value.args[0].value for name, value in _assigned(tree) if _is_logger(value)}
        for scope in [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)] if loggers else []:
            variables = dict(_assigned(scope))
            for call in ast.walk(scope):
                owner = getattr(getattr(call, "func", None), "value", None)
                if not isinstance(call, ast.Call) or not isinstance(owner, ast.Name) or owner.id not in loggers:
                    continue
                where = f"{path}:{call.lineno}"
                method = call.func.attr  # type: ignore[attr-defined]
                assert method in LEVELS, where
                assert len(call.args) == 1, f"{where}: an event has a name, and fields by name"
                for name in _texts(call.args[0], variables, where):
                    told = found.setdefault(name, Told())
                    told.levels.add(LEVELS[method])
                    told.loggers.add(loggers[owner.id])
                    told.fields |= OF_AN_EXCEPTION if method == "exception" else set()
                    for keyword in call.keywords:
                        told.fields |= {keyword.arg} if keyword.arg else _keys(keyword.value, variables, where)
    return found


def _assigned(tree: ast.AST) -> Iterator[tuple[str, Any]]:
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if isinstance(targets[0], ast.Name) and getattr(node, "value", None) is not None:
            yield targets[0].id, node.value  # type: ignore[attr-defined]


def _is_logger(node: Any) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "events.logger"


def _texts(node: ast.AST, variables: dict[str, ast.AST], where: str) -> set[str]:
    """A text that is written out, or the texts that a variable of the function may be."""
    node = variables.get(node.id, node) if isinstance(node, ast.Name) else node
    texts = {part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)}
    assert texts, f"{where}: the name of an event is written out"
    return texts


def _keys(node: ast.AST, variables: dict[str, ast.AST], where: str) -> set[str]:
    """The keys of a table that is written out in the function."""
    node = variables.get(node.id, node) if isinstance(node, ast.Name) else node
    assert isinstance(node, ast.Dict), f"{where}: the fields of an event are written out"
    return {key.value for key in node.keys}  # type: ignore[union-attr]


def _documented() -> dict[str, list[str]]:
    rows = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row] for row in rows]
    assert len({row[0] for row in cells}) == len(cells)
    return {row[0].strip("`"): row[1:] for row in cells}


def test_every_event_is_documented_and_every_documented_event_is_told() -> None:
    emitted = {
        name: [", ".join(sorted(told.levels)), ", ".join(sorted(told.loggers)), sorted(told.fields)]
        for name, told in _emitted().items()
    }
    documented = {
        name: [level, logger.replace("`", ""), sorted(re.findall(r"`(\w+)`", fields))]
        for name, (level, logger, fields, _) in _documented().items()
    }
    assert documented == emitted
    assert all(meaning for *_, meaning in _documented().values())


def test_all_events_go_through_one_door() -> None:
    others = [path for path in SOURCE.rglob("*.py") if "logging.getLogger" in path.read_text()]
    assert others == [SOURCE / "telemetry/events.py"]


def test_no_field_has_a_name_that_is_taken() -> None:
    taken = {"event", "level", "logger", "timestamp", "exception", "payload", "headers", "token", "url"}
    assert not {name for told in _emitted().values() for name in told.fields} & taken
