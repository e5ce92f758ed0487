"""Payloads: a value is encoded as JSON that is read back unchanged, or is refused with the path of the problem.

Bytes are stored unread. Tuples are read back as lists, and members of a StrEnum or IntEnum as their values; everything
else equals the value that was put. Edits are JSON merge patches (RFC 7396).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from redrive.errors import InvalidName, InvalidPayload, PayloadTooLarge, RedriveError, short_repr
from redrive.model.caller_input import checking_input, exact_str, is_of_a_signal, unreadable
from redrive.model.limits import MAX_HEADERS_BYTES, MAX_PAYLOAD_BYTES, text_problem

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
BYTES = "application/octet-stream"
MAX_DEPTH = 100
# The default limit of Python (sys.set_int_max_str_digits), because the time to parse grows with the square.
MAX_INTEGER_DIGITS = 4_300

_BYTES = (bytes, bytearray, memoryview)
_CONTAINERS = (dict, list, tuple)
_OF_JSON = frozenset({dict, list, tuple, str, int, float, bool, type(None)})
_TOO_LONG = 10**MAX_INTEGER_DIGITS
_encoder = msgspec.json.Encoder()
_encode: Callable[[Any], bytes] = _encoder.encode
_decode = msgspec.json.Decoder().decode


def expect_little_memory() -> None:
    """Raise MemoryError from now on if there is not enough memory for a payload: `encode` of msgspec crashes then.

    For processes with a limit, since short payloads take twice as long.
    """
    global _encode
    _encode = _encode_in_buffer


def _encode_in_buffer(value: object) -> bytes:
    buffer = bytearray()
    _encoder.encode_into(value, buffer)
    return bytes(buffer)


def encode_payload(value: object, content_type: str | None = None, limit: int = MAX_PAYLOAD_BYTES) -> tuple[bytes, str]:
    """Return the bytes to store and their content type. Bytes stay unchanged; anything else is encoded as JSON."""
    if type(value) not in _OF_JSON:
        data = value if type(value) is bytes else _bytes_of(value)
        if data is not None:
            _check_size(data, limit)
            return data, content_type or BYTES
    if content_type is None:
        content_type = JSON
    elif not is_json(content_type):
        raise InvalidPayload("$", f"is {_name(value)}, and content type {content_type!r} needs bytes")
    try:
        data = _encode(value)
        _check_size(data, limit)
        # msgspec writes NaN as null, sets as lists, dates and bytes as text, and keys that are numbers as text. Reading
        # it back detects all of these at the speed of C; tuples differ too, and need the exact check.
        read = _decode(data)
        if read != value or (len(data) > 2 * MAX_DEPTH and _is_too_deep(data, read)):
            _check_value(value)
    except (RedriveError, MemoryError):
        raise
    except Exception as error:
        if is_of_a_signal(error):
            raise
        with checking_input("payload"):
            _check_value(value)
        if isinstance(error, RecursionError):
            raise  # The value is valid; the caller's stack is full.
        if not isinstance(error, TypeError | ValueError | OverflowError | msgspec.MsgspecError):
            raise unreadable("payload", error) from error
        raise InvalidPayload("$", f"cannot be written as JSON: {error}") from error
    return data, content_type


def _bytes_of(value: object) -> bytes | None:
    with checking_input("payload"):
        return bytes(value) if isinstance(value, _BYTES) else None


def decode_payload(data: bytes, content_type: str) -> Any:
    """Return the value of stored bytes: decoded if they are JSON, else the bytes themselves."""
    if not is_json(content_type):
        return data
    try:
        return _decode(data)
    except (ValueError, RecursionError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidPayload("$", f"cannot be read as JSON: {error}") from error


def check_json(data: bytes) -> None:
    """Raise InvalidPayload unless these bytes are JSON within the depth limit, which can be stored unchanged."""
    try:
        read = _decode(data)
        if len(data) <= 2 * MAX_DEPTH or not _is_too_deep(data, read):
            return
    except RecursionError:
        pass
    except (ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise InvalidPayload("$", f"cannot be read as JSON: {error}") from None
    raise InvalidPayload("$", f"is nested deeper than {MAX_DEPTH} levels")


def is_json(content_type: str) -> bool:
    """Return whether payloads of this content type are JSON, regardless of its parameters."""
    if content_type == JSON:
        return True
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON or media_type.endswith("+json")


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of the headers if they are text without NUL and lone surrogates, within the limit (with names)."""
    if type(headers) is dict:
        return _checked_headers(headers)
    with checking_input("headers"):
        if headers is None:
            return {}
        if isinstance(headers, Mapping):
            return _checked_headers(headers)
    raise InvalidName("headers", headers, "must be a table of names and texts")


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Check each header once and stop at the size limit: the table may be infinite, or change while it is read."""
    checked: dict[str, str] = {}
    size = 0
    for name, value in headers.items():
        if problem := _header_problem(name, value):
            raise InvalidName("header", name, problem)
        name, value = exact_str(name), exact_str(value)
        size += len(name.encode()) + len(value.encode())
        if size > MAX_HEADERS_BYTES:
            raise PayloadTooLarge("headers", size, MAX_HEADERS_BYTES, None)
        checked[name] = value
    return checked


def _header_problem(name: object, value: object) -> str | None:
    if not isinstance(name, str) or not name:
        return "must have a name that is text and not empty"
    if not isinstance(value, str):
        return f"must have text as its value, not {_name(value)}"
    if problem := text_problem(name):
        return problem
    problem = text_problem(value)
    return f"has a value that {problem}" if problem else None


def _check_size(data: bytes, limit: int) -> None:
    if len(data) > limit:
        raise PayloadTooLarge("payload", len(data), limit, "max_payload_size")


def _is_too_deep(data: bytes, read: Any) -> bool:
    # A few brackets cannot exceed the depth limit.
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return False
    level = [read]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for container in level
            for child in (container.values() if type(container) is dict else container)
            if type(child) is dict or type(child) is list
        ]
        if not level:
            return False
    return True


def _check_value(value: object) -> None:
    """Raise InvalidPayload for the first part of the value that JSON cannot hold; slow, exact, and without recursion.

    A container that contains itself is visited one level deeper each time, and so ends at the depth limit.
    """
    # Paths are built only for the error: each entry is (value, depth, key, entry of the container).
    stack: list[_Entry] = [(value, 0, "$", None)]
    while stack:
        entry = stack.pop()
        found, depth = entry[0], entry[1]
        if isinstance(found, _CONTAINERS):
            if depth == MAX_DEPTH:
                raise InvalidPayload(_path(entry), f"is nested deeper than {MAX_DEPTH} levels")
            if isinstance(found, dict):
                for key in found:
                    _check_key(key, entry)
                stack.extend([(item, depth + 1, f".{key}", entry) for key, item in reversed(found.items())])
            else:
                stack.extend([(found[i], depth + 1, f"[{i}]", entry) for i in range(len(found) - 1, -1, -1)])
        elif problem := _scalar_problem(found):
            raise InvalidPayload(_path(entry), problem)


_Entry = tuple[Any, int, str, "Any"]


def _check_key(key: object, entry: _Entry) -> None:
    if not isinstance(key, str):
        raise InvalidPayload(
            _path(entry), f"has the key {short_repr(key, 80)}, which is {_name(key)}; JSON keys must be str"
        )
    if _has_surrogate(key):
        raise InvalidPayload(
            _path(entry), f"has the key {short_repr(key, 80)} with a lone surrogate, which UTF-8 cannot hold"
        )


def _scalar_problem(value: object) -> str | None:
    if value is None or isinstance(value, bool):
        return None
    if isinstance(value, Enum):
        if isinstance(value, str | int):
            return None
    elif type(value) is str:
        return "has a lone surrogate, which UTF-8 cannot hold" if _has_surrogate(value) else None
    elif type(value) is int:
        return f"is an integer of more than {MAX_INTEGER_DIGITS:,} digits" if abs(value) >= _TOO_LONG else None
    elif type(value) is float:
        return None if math.isfinite(value) else f"is {value}, which JSON cannot hold; use null or a text"
    for kind in (str, int, float):
        if isinstance(value, kind):
            return f"is {_name(value)}, which would come back as {kind.__name__}; convert it to {kind.__name__} first"
    return f"is {_name(value)}, which JSON cannot hold; convert it to text, a number, a list or a dict first"


def _has_surrogate(text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _name(value: object) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _path(entry: _Entry) -> str:
    keys: list[str] = []
    link: _Entry | None = entry
    while link is not None:
        keys.append(link[2])
        link = link[3]
    path = "".join(reversed(keys)).encode("ascii", "backslashreplace").decode()
    return path if len(path) <= 200 else f"{path[:100]}…{path[-99:]}"


def merge_patch(value: Any, patch: Any) -> Any:
    """Return the value with the patch applied: tables are merged by key, None removes a key, all else replaces.

    Neither argument is changed.
    """
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(value) if isinstance(value, Mapping) else {}
    for key, change in patch.items():
        if change is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), change)
    return merged
