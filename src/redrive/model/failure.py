"""Failures: what went wrong in one attempt, made from an exception or from reported fields.

Recording a failure never fails: whatever the exception does, there is a Failure, clean and bounded. Terminal escapes
are removed, and NUL and lone surrogates replaced, because no store can be trusted with them. Redaction is done on
reading; when it happened is the instant of the transaction that stores it.

The traceback is like Python's own. Its source lines come from linecache, as there: the first failure in a file reads
the file, later ones do not.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec

from redrive.model.classify import ErrorClass, Rule, class_of_type, classify, names_of, type_matches
from redrive.model.fingerprint import Frame, fingerprint, frames_of, place
from redrive.model.limits import KIB

MAX_TYPE_BYTES = 256
MAX_TEXT_BYTES = 8 * KIB
MAX_TRACEBACK_BYTES = 32 * KIB
MAX_TITLE_CHARS = 160
MAX_BASES = 16
MAX_GROUP_MEMBERS = 8
MAX_GROUP_VISITS = 10_000
MAX_FRAMES_FIRST = 16
MAX_FRAMES_LAST = 32
MAX_CHAINED = 8
MAX_NOTES = 8
MAX_LINE_CHARS = 200

_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_ESCAPE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # titles, links, device strings
    r"|\x1b[ -/]*[0-~]?|[\x9b\x9c]"  # anything else that begins with an escape
)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What went wrong in one attempt. `bases` are the classes its type derives from, nearest first.

    `final` says that another try is useless, whatever the queue's settings.
    """

    type: str
    text: str
    traceback: str | None = None
    error_class: ErrorClass = ErrorClass.PERMANENT
    fingerprint: str = ""
    worker: str | None = None
    final: bool = False
    bases: tuple[str, ...] = ()

    @property
    def type_names(self) -> tuple[str, ...]:
        """Every name that settings may call its type by, nearest first; see `type_matches`."""
        return _aliases((self.type, *self.bases))

    @property
    def title(self) -> str:
        """The failure in one short line."""
        first = self.text.strip().partition("\n")[0].strip()
        line = f"{self.type.rpartition('.')[2]}: {first}" if first else self.type.rpartition(".")[2]
        return line if len(line) <= MAX_TITLE_CHARS else line[: MAX_TITLE_CHARS - 1] + "…"


@lru_cache(maxsize=1024)
def _aliases(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(alias for name in names for alias in names_of(name)))


def failure_from_exception(
    error: BaseException,
    *,
    worker: str | None = None,
    rules: Sequence[Rule] = (),
    final_types: Sequence[type[BaseException] | str] = (),
) -> Failure:
    """The failure that an exception is. Never raises; the exception is only looked at, never raised or kept.

    `final_types` are exception classes or names as in `type_matches`; subclasses are final too.
    """
    try:
        return _describe(error, worker, rules, final_types)
    except BaseException as problem:
        # A value that fights being described (an own __class__, a metaclass that raises) still becomes a failure. This
        # takes KeyboardInterrupt too: an exception's methods can raise that, and the failure must not be lost for it.
        return Failure(
            type=_plain_name(error),
            text=f"the error could not be described: {_plain_name(problem)}",
            fingerprint=fingerprint(_plain_name(error), (), ""),
            worker=None if worker is None else clean_text(worker, MAX_TYPE_BYTES),
        )


def failure_from_fields(
    type: str,
    text: str,
    traceback: str | None = None,
    *,
    bases: Sequence[str] = (),
    status_code: int | None = None,
    error_class: ErrorClass | None = None,
    worker: str | None = None,
    final: bool = False,
    rules: Sequence[Rule] = (),
) -> Failure:
    """The failure that somebody reports in words, from another language or process."""
    type, text = clean_text(type, MAX_TYPE_BYTES), clean_text(text, MAX_TEXT_BYTES)
    names = tuple(clean_text(base, MAX_TYPE_BYTES) for base in bases[:MAX_BASES])
    return Failure(
        type=type,
        text=text,
        traceback=None if traceback is None else clean_text(traceback, MAX_TRACEBACK_BYTES),
        error_class=error_class or classify(type, names, status_code, text, rules),
        fingerprint=fingerprint(type, (), text),
        worker=None if worker is None else clean_text(worker, MAX_TYPE_BYTES),
        final=final,
        bases=names,
    )


def cleaned(failure: Failure) -> Failure:
    """A failure that a program made itself, as every store can hold it."""
    made = failure_from_fields(
        failure.type,
        failure.text,
        failure.traceback,
        bases=failure.bases,
        error_class=failure.error_class,
        worker=failure.worker,
        final=failure.final,
    )
    given = clean_text(failure.fingerprint, MAX_TYPE_BYTES)
    return msgspec.structs.replace(made, fingerprint=given) if given else made


def clean_text(text: str, limit: int) -> str:
    """The text as every store, terminal and log can hold it, in at most `limit` bytes: long ones lose their middle."""
    size = len(text)
    if size > limit:
        # Cut before looking closely, so that 50 MB cost no more than 8 KiB.
        text = text[:limit] + text[-limit:]
    # Two scans at the speed of memory decide for nearly every text that there is nothing to do.
    if "\x1b" in text or "\0" in text or not text.isascii():
        text = _UNSTORABLE.sub(_REPLACEMENT, _ESCAPE.sub("", text))
    elif size <= limit:
        return text
    data = text.encode()
    if size <= limit and len(data) <= limit:
        return text
    return _without_middle(data, limit, size)


def _without_middle(data: bytes, limit: int, size: int) -> str:
    mark = f"\n… cut: {size:,} characters …\n"
    room = limit - len(mark.encode())
    if room < limit // 2:
        return data[:limit].decode("utf-8", "ignore")
    tail = room // 3
    return data[: room - tail].decode("utf-8", "ignore") + mark + data[-tail:].decode("utf-8", "ignore")


def _describe(
    error: BaseException,
    worker: str | None,
    rules: Sequence[Rule],
    final_types: Sequence[type[BaseException] | str],
) -> Failure:
    type_name, bases = _names(error)
    text = _text_of(error)
    frames = frames_of(error)
    return Failure(
        type=type_name,
        text=text,
        traceback=clean_text(_format_traceback(error, frames, type_name, text), MAX_TRACEBACK_BYTES)
        if frames
        else None,
        error_class=_class_of(error, type_name, bases, text, rules),
        fingerprint=fingerprint(type_name, [place(code.co_filename, code.co_qualname) for code, _ in frames], text),
        worker=None if worker is None else clean_text(worker, MAX_TYPE_BYTES),
        final=bool(final_types) and any(_is_a(error, type_name, bases, final) for final in final_types),
        bases=bases,
    )


def _text_of(error: BaseException) -> str:
    try:
        text = str(error)
    except BaseException as problem:
        return f"<its text could not be read: {_plain_name(problem)}>"
    # A subclass of str can do anything when it is sliced; joining makes it a plain one.
    return clean_text(text if type(text) is str else "".join((text,)), MAX_TEXT_BYTES)


def _names(error: BaseException) -> tuple[str, tuple[str, ...]]:
    return _class_names(type(error))  # type: ignore[arg-type]  # mypy does not see that a class is hashable


@lru_cache(maxsize=1024)
def _class_names(kind: type[BaseException]) -> tuple[str, tuple[str, ...]]:
    names = [_name(base) for base in kind.__mro__ if base not in (BaseException, object)]
    return (names[0] if names else _name(kind)), tuple(names[1 : MAX_BASES + 1])


def _name(kind: type) -> str:
    module, name = kind.__module__, kind.__qualname__.replace("<locals>.", "")
    return clean_text(name if module == "builtins" else f"{module}.{name}", MAX_TYPE_BYTES)


def _plain_name(error: BaseException) -> str:
    """The class's own name by way of `type` itself, which nothing in the class can change."""
    return clean_text(type.__dict__["__name__"].__get__(type(error)), MAX_TYPE_BYTES)


def _class_of(
    error: BaseException, type_name: str, bases: tuple[str, ...], text: str, rules: Sequence[Rule]
) -> ErrorClass:
    if isinstance(error, BaseExceptionGroup):
        # Retrying a group helps only if it helps every member: the gravest class of its members is its class.
        classes = {_class_of(e, *_names(e), _text_of(e), rules) for e in _members(error)}
        return next((grave for grave in reversed(ErrorClass) if grave in classes), ErrorClass.PERMANENT)
    if not rules and (known := class_of_type((type_name, *bases))):
        return known
    errno = error.errno if isinstance(error, OSError) else None
    return classify(type_name, bases, _status_of(error), text, rules, errno if isinstance(errno, int) else None)


def _status_of(error: BaseException) -> int | None:
    """The HTTP status an error carries, where the well-known clients keep it."""
    if isinstance(error, SystemExit):
        return None
    for owner in (error, _attribute(error, "response")):
        for name in ("status_code", "status", "code"):
            status = _attribute(owner, name)
            if type(status) is int and 100 <= status <= 599:
                return status
    return None


def _attribute(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except BaseException:
        return None


def _is_a(error: BaseException, type_name: str, bases: tuple[str, ...], final: type[BaseException] | str) -> bool:
    return type_matches(final, type_name, bases) if isinstance(final, str) else issubclass(type(error), final)


def _format_traceback(error: BaseException, frames: list[Frame], type_name: str, text: str) -> str:
    """The text of an exception after those it came from, oldest first, and before the members of a group."""
    parts: list[str] = []
    for link, joint in reversed(list(_chain(error))):
        parts.append(_one(link, frames, type_name, text) if link is error else _other(link))
        parts.append(joint)
    if isinstance(error, BaseExceptionGroup):
        parts += [f"\nMember {number}:\n{_other(member)}" for number, member in enumerate(_members(error), 1)]
    return "".join(parts).rstrip("\n")


def _chain(error: BaseException) -> Iterator[tuple[BaseException, str]]:
    """Each exception with the sentence that leads to the one it caused; an exception that causes itself ends it."""
    seen: set[int] = set()
    link: BaseException | None = error
    joint = ""
    while link is not None and id(link) not in seen and len(seen) < MAX_CHAINED:
        seen.add(id(link))
        yield link, joint
        cause = link.__cause__
        joint = _CONTEXT if cause is None else _CAUSE
        link = cause if cause is not None or link.__suppress_context__ else link.__context__


def _other(error: BaseException) -> str:
    return _one(error, frames_of(error), _names(error)[0], _text_of(error))


def _one(error: BaseException, frames: list[Frame], type_name: str, text: str) -> str:
    head = "Traceback (most recent call last):\n" if frames else ""
    body = [_frame_text(code.co_filename, code.co_qualname, line) for code, line in _shown(frames)]
    if len(body) < len(frames):
        body.insert(MAX_FRAMES_FIRST, f"  … {len(frames) - len(body):,} frames left out …\n")
    last = f"{type_name}: {text}\n" if text else f"{type_name}\n"
    return head + "".join(body) + last + _notes(error)


def _shown(frames: list[Frame]) -> list[Frame]:
    if len(frames) <= MAX_FRAMES_FIRST + MAX_FRAMES_LAST:
        return frames
    return frames[:MAX_FRAMES_FIRST] + frames[-MAX_FRAMES_LAST:]


@lru_cache(maxsize=4096)
def _frame_text(filename: str, function: str, line: int) -> str:
    where = f'  File "{filename}", line {line}, in {function}\n'
    source = linecache.getline(filename, line).strip()
    return f"{where}    {source[:MAX_LINE_CHARS]}\n" if source else where


def _notes(error: BaseException) -> str:
    notes = _attribute(error, "__notes__")
    if type(notes) is not list:
        return ""
    return "".join(f"{note[:MAX_LINE_CHARS]}\n" for note in notes[:MAX_NOTES] if type(note) is str)


def _members(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    """The first exceptions in a group and in the groups in it, however deep."""
    found: list[BaseException] = []
    waiting = list(reversed(group.exceptions))
    visits = 0
    while waiting and len(found) < MAX_GROUP_MEMBERS and visits < MAX_GROUP_VISITS:
        visits += 1
        member = waiting.pop()
        if isinstance(member, BaseExceptionGroup):
            waiting.extend(reversed(member.exceptions))
        else:
            found.append(member)
    return found
