"""Failures: recording one never fails, and what is recorded is clean, bounded and useful."""

from __future__ import annotations

import errno
import gc
import linecache
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.model.classify import ErrorClass, ErrorRule
from redrive.model.failure import (
    MAX_LOCALS_BYTES,
    MAX_TRACEBACK_BYTES,
    Failure,
    failure_from_exception,
    failure_from_fields,
    failure_from_loss,
    normalize_failure,
)
from redrive.model.text import MAX_TEXT_BYTES, clean_text


def caught(action: Callable[[], object]) -> BaseException:
    try:
        action()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def fail(error: BaseException) -> BaseException:
    def handler() -> None:
        raise error

    return caught(handler)


def traceback_of(error: BaseException) -> str:
    return failure_from_exception(error).traceback or ""


def storable(failure: Failure) -> bool:
    texts = [text for text in msgspec.structs.astuple(failure) if isinstance(text, str)] + list(failure.bases)
    return all(text.encode() is not None and "\0" not in text and "\x1b" not in text for text in texts)


def test_an_exception_becomes_a_failure() -> None:
    failure = failure_from_exception(fail(ValueError("bad amount 17")), worker="host-1")
    assert (failure.type, failure.text, failure.worker) == ("ValueError", "bad amount 17", "host-1")
    assert (failure.error_class, failure.final, failure.bases) == (ErrorClass.VALIDATION, False, ("Exception",))
    assert failure.title == "ValueError: bad amount 17"
    lines = (failure.traceback or "").splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "in fail.<locals>.handler" in lines[-3]
    assert lines[-2:] == ["    raise error", "ValueError: bad amount 17"]
    assert msgspec.json.decode(msgspec.json.encode(failure), type=Failure) == failure


def test_the_fingerprint_is_that_of_the_place_not_of_the_text() -> None:
    one, two = (failure_from_exception(fail(ValueError(text))) for text in ("a", "b"))
    assert one.fingerprint == two.fingerprint
    assert failure_from_exception(fail(KeyError("a"))).fingerprint != one.fingerprint


def test_an_exception_that_was_never_raised_has_no_traceback() -> None:
    failure = failure_from_exception(KeyError("x"))
    assert failure.traceback is None
    assert failure.fingerprint == failure_from_fields("KeyError", "'y'").fingerprint


class StrRaises(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class StrRecurses(Exception):
    def __str__(self) -> str:
        return str(self)


class StrIsNoText(Exception):
    def __str__(self) -> Any:
        return 5  # noqa: PLE0307  # this is what the test is about


class Sly(str):
    def __getitem__(self, key: Any) -> str:
        raise RuntimeError("no slices")

    def encode(self, *args: Any) -> bytes:
        raise RuntimeError("no bytes")


class StrIsSly(Exception):
    def __str__(self) -> str:
        return Sly("sly")


class AttributesRaise(Exception):
    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt


class Unhashable(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")


class ClassIsUnhashable(Exception, metaclass=Unhashable):
    pass


class NoModule(Exception):
    pass


NoModule.__module__ = None  # type: ignore[assignment]  # this is what the test is about


@pytest.mark.parametrize(
    "error",
    [
        StrRaises(), StrRecurses(), StrIsNoText(), StrIsSly(), AttributesRaise("x"), ClassIsUnhashable("x"),
        NoModule("x"), KeyboardInterrupt(), SystemExit(404), GeneratorExit(), RecursionError("x"), MemoryError(),
        ValueError("\0 \ud800 \x1b[31mred\x1b[0m"),
        ExceptionGroup("g", [ValueError(1), ExceptionGroup("h", [OSError()])]),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), OSError(), Exception(), SyntaxError("x"), StopIteration(),
    ],
    ids=lambda error: type(error).__name__,
)  # fmt: skip
def test_recording_never_fails(error: BaseException) -> None:
    for value in (error, fail(error)):
        failure = failure_from_exception(value, worker="w", rules=[ErrorRule(ErrorClass.NETWORK, contains=("zzz",))])
        assert failure.type.endswith(type(error).__name__)
        assert failure.fingerprint
        assert failure.worker == "w"
        assert storable(failure)


def test_attributes_that_raise_cost_nothing_but_themselves() -> None:
    failure = failure_from_exception(fail(AttributesRaise("still here")))
    assert failure.text == "still here"
    assert "AttributesRaise: still here" in (failure.traceback or "")


def test_the_text_is_asked_for_once() -> None:
    asked: list[int] = []

    class Counting(Exception):
        def __str__(self) -> str:
            asked.append(1)
            return "x"

    failure_from_exception(fail(Counting()))
    assert len(asked) == 1


def test_a_text_that_cannot_be_read_says_so() -> None:
    assert failure_from_exception(StrRaises()).text == "<its text could not be read: SystemExit>"


def test_long_texts_lose_their_middle() -> None:
    failure = failure_from_exception(fail(ValueError("head" + "x" * 50_000_000 + "tail")))
    assert failure.text.startswith("head")
    assert failure.text.endswith("tail")
    assert "cut: 50,000,008 characters" in failure.text
    assert len(failure.text.encode()) <= MAX_TEXT_BYTES
    assert len((failure.traceback or "").encode()) <= MAX_TRACEBACK_BYTES
    assert len(failure.title) <= 160


@given(st.text(alphabet=st.characters()) | st.text(alphabet="\0\x1b\x9b[]31m\ud800é\n\\"), st.integers(64, 200))
def test_clean_texts_are_storable_and_bounded(text: str, limit: int) -> None:
    clean = clean_text(text * 3, limit)
    assert len(clean.encode()) <= limit
    assert not set("\0\x1b\x9b") & set(clean)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=50))
def test_good_texts_are_kept_as_they_are(text: str) -> None:
    assert clean_text(text, 1000) == text


@pytest.mark.parametrize(
    ("dirty", "clean"),
    [
        ("a\0b", "a\ufffdb"),
        ("a\ud800b", "a\ufffdb"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "red"),
        ("lone \x1b", "lone "),
        ("\x1b\x1b[31m[31mx", "[31mx"),
        ("tab\tline\n", "tab\tline\n"),
    ],
)
def test_escapes_are_removed_and_unstorable_characters_replaced(dirty: str, clean: str) -> None:
    assert clean_text(dirty, 1000) == clean


def test_causes_come_before_what_they_caused() -> None:
    def action() -> None:
        try:
            raise KeyError("inner")
        except KeyError as error:
            raise ValueError("outer") from error

    text = traceback_of(caught(action))
    assert text.index("KeyError: 'inner'") < text.index("direct cause") < text.index("ValueError: outer")


def test_context_is_shown_unless_it_was_suppressed() -> None:
    def action(**how: Any) -> None:
        try:
            raise KeyError("inner")
        except KeyError:
            if how:
                raise ValueError("outer") from None
            raise ValueError("outer")  # noqa: B904

    shown, suppressed = caught(action), caught(lambda: action(quiet=True))
    assert "KeyError: 'inner'" in traceback_of(shown)
    assert "During handling" in traceback_of(shown)
    assert "KeyError" not in traceback_of(suppressed)


def test_causes_that_go_in_circles_end() -> None:
    one, two = fail(ValueError("one")), fail(ValueError("two"))
    one.__cause__, two.__cause__ = two, one
    assert traceback_of(one).count("ValueError: one") == 1
    one.__cause__ = one
    assert traceback_of(one).count("ValueError: one") == 1


def test_notes_are_kept() -> None:
    error = fail(ValueError("x"))
    error.add_note("while importing row 7")
    assert traceback_of(error).endswith("ValueError: x\nwhile importing row 7")


def test_a_group_shows_its_members_and_has_the_gravest_of_their_classes() -> None:
    denied = PermissionError("b")
    fail(denied)
    group = fail(ExceptionGroup("two", [TimeoutError("a"), ExceptionGroup("in", [denied])]))
    failure = failure_from_exception(group)
    assert failure.error_class is ErrorClass.PERMISSION
    assert "Member 1:\nTimeoutError: a" in (failure.traceback or "")
    assert "Member 2:\nTraceback" in (failure.traceback or "")
    assert failure_from_exception(ExceptionGroup("one", [TimeoutError("a")])).error_class is ErrorClass.NETWORK


def test_deep_groups_are_bounded() -> None:
    error: Exception = ValueError("deep")
    for _ in range(5_000):
        error = ExceptionGroup("g", [error])
    failure = failure_from_exception(fail(error))
    assert failure.text == "g (1 sub-exception)"
    assert failure.error_class is ErrorClass.VALIDATION
    assert storable(failure)


def recurse(depth: int) -> None:
    if depth:
        recurse(depth - 1)
    raise ValueError("bottom")


def test_deep_recursions_are_shortened_and_are_one_group() -> None:
    deep, deeper = (
        failure_from_exception(caught(lambda: recurse(300))),
        failure_from_exception(caught(lambda: recurse(500))),
    )
    assert "frames left out" in (deep.traceback or "")
    assert (deep.traceback or "").endswith("ValueError: bottom")
    assert deep.fingerprint == deeper.fingerprint


class HttpError(Exception):
    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def test_traceback_of_equal_code_names_its_own_file_and_text() -> None:
    source = "def work(text):\n    raise ValueError(text)\n"
    tracebacks: list[str] = []
    for path, text in (("/srv/one.py", "first"), ("/srv/two.py", "second"), ("/srv/one.py", "third")):
        program: dict[str, Any] = {}
        exec(compile(source, path, "exec"), program)
        with pytest.raises(ValueError, match=text) as raised:
            program["work"](text)
        failure = failure_from_exception(raised.value)
        tracebacks.append(failure.traceback or "")
        assert f'File "{path}", line 2, in work\nValueError: {text}' in tracebacks[-1]
    one, two, third = (traceback.count("/srv/one.py") for traceback in tracebacks)
    assert (one, two, third) == (1, 0, 1)


def traceback_of_generated(source: str, name: str) -> str:
    """Register a source under a file name, as generators of code do, and return the traceback of its `work()`."""
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    program: dict[str, Any] = {}
    exec(compile(source, name, "exec"), program)
    with pytest.raises(ValueError, match=r"\w") as raised:
        program["work"]()
    return failure_from_exception(raised.value).traceback or ""


@pytest.mark.parametrize("depth", [1, 60])
def test_traceback_of_generated_code_has_the_lines_of_that_code(depth: int) -> None:
    head = f"def work(depth={depth}):\n    if depth > 1: work(depth - 1)\n"
    assert "raise ValueError('first')" in traceback_of_generated(
        f"{head}    raise ValueError('first')\n", "<generated>"
    )
    other = traceback_of_generated(f"{head}    raise ValueError('other')\n", "<generated>")
    assert "raise ValueError('other')" in other
    assert "first" not in other


def test_traceback_of_a_reloaded_module_has_the_lines_that_it_has_now(tmp_path: Path) -> None:
    path = tmp_path / "reloaded.py"
    for text in ("first", "the other"):
        path.write_text(f"def work():\n    raise ValueError('{text}')\n")
        linecache.checkcache(str(path))  # as the logger and the traceback module do
        program: dict[str, Any] = {}
        exec(compile(path.read_text(), str(path), "exec"), program)
        with pytest.raises(ValueError, match=text) as raised:
            program["work"]()
        assert f"raise ValueError('{text}')" in (failure_from_exception(raised.value).traceback or "")


def test_what_is_remembered_of_frames_is_bounded() -> None:
    tracemalloc.start()
    try:
        for number in range(300):
            name = f"<generated {number} {'n' * 50_000}>"
            traceback_of_generated(f"def work():\n    raise ValueError({number}) {'#' * 50_000}\n", name)
            del linecache.cache[name]
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 20_000_000  # Python 3.11 itself keeps one copy of each name: 15 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("attribute", ["status_code", "status", "code"])
def test_the_status_of_an_http_error_is_found(attribute: str) -> None:
    assert failure_from_exception(HttpError(**{attribute: 429})).error_class is ErrorClass.TRANSIENT
    response = HttpError(**{attribute: 403})
    assert failure_from_exception(HttpError(response=response)).error_class is ErrorClass.PERMISSION


def test_an_exit_code_is_not_a_status() -> None:
    assert failure_from_exception(SystemExit(429)).error_class is ErrorClass.PERMANENT


def test_errno_decides_for_an_oserror() -> None:
    assert failure_from_exception(OSError(errno.ENOSPC, "full")).error_class is ErrorClass.RESOURCE


def test_rules_go_before_types() -> None:
    rules = [ErrorRule(ErrorClass.TRANSIENT, type="ValueError")]
    assert failure_from_exception(UnicodeError("x"), rules=rules).error_class is ErrorClass.TRANSIENT


@pytest.mark.parametrize("final", [ValueError, "ValueError", "Exception", UnicodeError])
def test_final_types_hold_for_subclasses(final: type[BaseException] | str) -> None:
    assert failure_from_exception(UnicodeError("x"), final_types=[final]).final
    assert not failure_from_exception(KeyboardInterrupt("x"), final_types=[final]).final


def test_reported_fields_are_cleaned_and_classified() -> None:
    failure = failure_from_fields(
        "java.net.SocketTimeoutException", "\x1b[31mRead timed out\0", "at Main.java:7\0", bases=["java.io.IOException"]
    )
    assert failure.error_class is ErrorClass.NETWORK
    assert failure.text == "Read timed out\ufffd"
    assert failure.traceback == "at Main.java:7\ufffd"
    assert storable(failure)
    assert failure_from_fields("E", "x", status_code=429).error_class is ErrorClass.TRANSIENT
    assert failure_from_fields("E", "x", error_class=ErrorClass.POISON, final=True).error_class is ErrorClass.POISON


def test_type_names_are_all_that_settings_may_use() -> None:
    failure = failure_from_fields("requests.exceptions.Timeout", "", bases=["OSError"])
    assert failure.type_names[:3] == ("requests.exceptions.Timeout", "requests.Timeout", "Timeout")
    assert "OSError" in failure.type_names


def test_details_of_the_attempt_come_with_the_failure() -> None:
    failure = failure_from_exception(
        fail(ValueError("bad")), worker="w1", host="db-1", trace_id="0af7651916cd43dd8448eb211c80319c"
    )
    assert (failure.host, failure.trace_id) == ("db-1", "0af7651916cd43dd8448eb211c80319c")
    assert failure.locals is None
    failure = msgspec.structs.replace(failure, duration=1_200_000)
    assert str(failure) == (
        "ValueError: bad\n"
        "  validation after 1.2 s by w1 on db-1, trace 0af7651916cd43dd8448eb211c80319c, "
        f"fingerprint {failure.fingerprint}"
    )


def test_details_that_cannot_be_stored_are_cleaned_and_bounded() -> None:
    given: Any = {"host": "a\0b" * 200, "trace_id": "\ud800" * 200}
    numbers: Any = {"duration": 2**80, "exit_code": -(2**80), "peak_memory": 2**80}
    for failure in (
        failure_from_exception(ValueError("x"), **given),
        normalize_failure(Failure("E", "x", signal="S" * 99, locals="\0" * 99_999, **numbers, **given)),
    ):
        assert storable(failure)
        assert len((failure.host or "").encode()) <= 256
        assert len((failure.trace_id or "").encode()) <= 64
        assert 0 <= (failure.duration or 0) < 2**53
        assert len((failure.locals or "").encode()) <= MAX_LOCALS_BYTES
        assert abs(failure.exit_code or 0) < 2**53
        assert (failure.peak_memory or 0) < 2**53
        msgspec.msgpack.encode(failure)


def test_cleaning_keeps_every_field_of_a_good_failure() -> None:
    failure = Failure(
        "E",
        "x",
        "tb",
        ErrorClass.POISON,
        "f" * 16,
        "w",
        True,
        ("B",),
        "host",
        5,
        "a" * 32,
        "x = 1",
        "SIGBUS",
        3,
        4096,
        5,
    )
    assert all(value != field.default for value, field in zip(
        msgspec.structs.astuple(failure), msgspec.structs.fields(failure), strict=True
    ))  # fmt: skip
    assert normalize_failure(failure) == failure


@pytest.mark.parametrize("nonsense", ["5", 5.5, True, object()])
def test_detail_of_the_wrong_type_is_left_out(nonsense: Any) -> None:
    failure = normalize_failure(Failure("E", "x", duration=nonsense, exit_code=nonsense, peak_memory=nonsense))
    assert (failure.duration, failure.exit_code, failure.peak_memory) == (None, None, None)


def test_failure_of_a_later_release_can_be_read() -> None:
    assert msgspec.json.decode(b'{"type": "E", "text": "x", "moon": "full"}', type=Failure) == Failure("E", "x")


@pytest.mark.parametrize(
    ("known", "text"),
    [
        (
            {"signal": 11, "duration": 1_200_000, "peak_memory": 512 * 1024 * 1024},
            "the worker process was killed by SIGSEGV after 1.2 s; peak memory 512 MiB",
        ),
        ({"exit_code": 3, "duration": 40_000}, "the worker process ended with exit code 3 after 40 ms"),
        (
            {"signal": "SIGKILL", "duration": 125_000_000},
            "the worker process was killed by SIGKILL after 2m5s (out of memory?)",
        ),
        (
            {"signal": "SIGKILL", "because": "its time limit of 30s is over"},
            "the worker process was killed by SIGKILL because its time limit of 30s is over",
        ),
        ({}, "the worker process vanished"),
    ],
)  # fmt: skip
def test_loss_says_in_plain_words_what_is_known(known: Any, text: str) -> None:
    failure = failure_from_loss(**known, worker="w", host="h", trace_id="t", task="send")
    assert (failure.type, failure.text, failure.error_class) == ("WorkerLost", text, ErrorClass.POISON)
    assert (failure.worker, failure.host, failure.trace_id, failure.final) == ("w", "h", "t", False)
    assert storable(failure)


def test_losses_are_one_group_by_task_and_end() -> None:
    def group(**known: Any) -> str:
        return failure_from_loss(**known).fingerprint

    one = group(task="send", signal="SIGSEGV", duration=1, peak_memory=1)
    assert group(task="send", signal=11, duration=2, peak_memory=2, worker="w2", host="other") == one
    others = {
        group(task="bill", signal="SIGSEGV"), group(task="send", signal="SIGKILL"), group(task="send", exit_code=1),
        group(task="send"), group(task="send", signal="SIGSEGV", because="it was late"),
    }  # fmt: skip
    assert len(others | {one}) == 6
    assert group(signal="SIGKILL", because="over 30s") == group(signal="SIGKILL", because="over 31s")


def test_signals_without_a_name_are_told_by_number() -> None:
    assert failure_from_loss(signal=250).signal == "signal 250"


class Hostile:
    def __repr__(self) -> str:
        raise KeyboardInterrupt


class Account:
    def __init__(self, password: str) -> None:
        self.password = password

    def __repr__(self) -> str:
        return f"Account(password={self.password!r}, name='ann')"


def locals_of(action: Callable[[], object]) -> str:
    return failure_from_exception(caught(action), with_locals=True).locals or ""


def test_locals_only_on_request() -> None:
    def handler() -> None:
        amount = 17
        raise ValueError(amount)

    assert failure_from_exception(caught(handler)).locals is None
    lines = locals_of(handler).splitlines()
    assert lines[-2].endswith("in test_locals_only_on_request.<locals>.handler")
    assert lines[-1] == "    amount = 17"


SECRET = "hunter2hunter2"


def test_locals_without_secrets() -> None:
    def handler() -> None:
        password = SECRET
        account = Account(SECRET)
        settings = {"api_key": SECRET, "n": 1, "filler": "x" * 180, "secret": SECRET}
        url = f"postgresql://ann:{SECRET}@db/{'x' * 300}"
        long = "y" * 150 + f" password={SECRET} " + "y" * 100
        nested = [{"token": f"Bearer {SECRET}"}]
        raise ValueError(password, account, settings, url, long, nested)

    text = locals_of(handler)
    assert SECRET[:5] not in text
    assert "name='ann'" in text
    assert "url = 'postgresql://ann:[redacted]@db/" in text
    assert "password = [redacted]" in text


def test_locals_never_fail_and_are_bounded() -> None:
    huge_text, huge_blob = "é" * 50_000_000, b"\0" * 50_000_000

    def deep(n: int) -> None:
        hostile, big, blob, number = Hostile(), huge_text, huge_blob, 10**5000
        many = list(range(100_000))
        circle: list[object] = []
        circle.append(circle)
        if n:
            deep(n - 1)
        raise ValueError(hostile, big, blob, number, many, circle)

    error = caught(lambda: deep(20))
    failure = failure_from_exception(error, with_locals=True)
    text = failure.locals or ""
    assert "hostile = <Hostile that cannot be printed>" in text
    assert "number = <int " in text  # the rest is Python's or ours, by version
    assert len(text.encode()) <= MAX_LOCALS_BYTES
    assert text.count("in test_locals") <= 8
    assert storable(failure)


def test_error_that_was_never_raised_has_no_locals() -> None:
    assert failure_from_exception(ValueError("x"), with_locals=True).locals is None
