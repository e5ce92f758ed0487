"""The output of the `list` command of an external queue, converted to items: one for each object."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from redrive.broker.flows.deliveries import new_item
from redrive.config.known_objects import KEY_HEADER, VERSION_HEADER, object_key
from redrive.contract.item_calls import NewItem
from redrive.model.limits import MAX_LABEL_CHARS
from redrive.model.payload import JSON

MAX_LISTED = 10_000
"""The largest number of objects in one listing; the others are ignored."""
_SIGN = re.compile(rb'"(?:[^"\\]++|\\.)*"?|[\[\]{},]', re.DOTALL)
"""A string of JSON, or a character that may divide an array."""


class ListingInvalid(Exception):
    """The output of a command is no list of objects."""


def items_from(output: bytes, key: str, version: str | None = None) -> tuple[list[NewItem], str | None]:
    """Return the items of a listing, each object once, and the problem of the first object that is skipped.

    A listing is a JSON array of objects, or one object on each line. Raises `ListingInvalid` for any other output.
    """
    items: dict[str, NewItem] = {}
    problem, read = None, 0
    texts = list(islice(_texts(output.strip()), MAX_LISTED + 1))
    for place, text in enumerate(texts[:MAX_LISTED]):
        value, wrong = _value_of(text)
        headers: dict[str, str] = {}
        if wrong is None:
            read += 1
            headers, wrong = _headers_of(value, key, version)
        if wrong is None:
            name = object_key(headers[KEY_HEADER], headers.get(VERSION_HEADER))
            if name not in items:
                items[name] = new_item(text, content_type=JSON, headers=headers, idempotency_key=name)
                continue
            wrong = f"has the same key as another, {name[:80]!r}: only the first of them counts"
        problem = problem or f"object {place + 1} {wrong}"
    if texts and not read:
        raise _no_listing(problem)
    if len(texts) > MAX_LISTED:
        problem = problem or f"there are more than {MAX_LISTED:,} objects; the others were ignored"
    return list(items.values()), problem


def _texts(output: bytes) -> Iterator[bytes]:
    """Yield the elements of an array, or else the lines, as printed. They are separated without being decoded, so that
    an error in one of them affects no other."""
    if not output.startswith(b"["):
        yield from filter(None, map(bytes.strip, output.splitlines()))
        return
    depth, begin, end = 0, 1, None
    for sign in _SIGN.finditer(output):
        match sign[0]:
            case b"[" | b"{":
                depth += 1
            case b"]" | b"}":
                depth -= 1
            case b"," if depth == 1:
                yield output[begin : sign.start()].strip()
                begin = sign.end()
        if depth == 0:
            end = sign.start()
            break
    if end is None or end + 1 < len(output):
        raise _no_listing("the array does not end where the output does")
    last = output[begin:end].strip()
    if last or begin > 1:
        yield last


def _value_of(text: bytes) -> tuple[Any, str | None]:
    """Return the decoded object, or the reason why it cannot be read. Raises `ListingInvalid` if it has no braces."""
    try:
        return msgspec.json.decode(text), None
    except (ValueError, RecursionError) as error:  # also for texts that are not UTF-8
        if not (text.startswith(b"{") and text.endswith(b"}")):
            raise _no_listing(error) from None
        return None, f"cannot be read: {error}"


def _no_listing(problem: object) -> ListingInvalid:
    return ListingInvalid(f"what the command printed is neither a JSON array nor an object a line: {problem}")


def _headers_of(value: Any, key: str, version: str | None) -> tuple[dict[str, str], str | None]:
    """Return the headers with the name of an object, and its version if the queue has one; or else its problem."""
    if not isinstance(value, dict):
        return {}, "is no object"
    headers = {}
    for header, field, hint in (
        (KEY_HEADER, key, "name the key that identifies an object with key ="),
        (VERSION_HEADER, version, "name the key that changes with the object with version ="),
    ):
        if field is None:
            continue
        found = value.get(field)
        if isinstance(found, bool) or not isinstance(found, str | int) or found == "":
            return {}, f"has no text or number under '{field}'; {hint}"
        headers[header] = str(found)
    if "\0" in "".join(headers.values()):
        return {}, "has a key with a NUL in it"
    if len(object_key(headers[KEY_HEADER], headers.get(VERSION_HEADER))) > MAX_LABEL_CHARS:
        return (
            {},
            f"has a key that is longer than {MAX_LABEL_CHARS} characters{', with its version' if version else ''}",
        )
    return headers, None
