"""Named bounds of all caller input, each with its reason, and checks of names, labels and addresses.

An address identifies a queue: `name`, or `name@store` for a queue in another store.
"""

from __future__ import annotations

import re

from redrive.errors import InvalidDuration, InvalidInput, InvalidName, short_repr
from redrive.model.caller_input import checking_input, exact_str

KIB = 1024
MIB = 1024 * KIB

# Short enough for an index entry, a file name and a Redis key on every store.
MAX_NAME_CHARS = 128
# Larger data belongs elsewhere, with a reference in the payload. Default of max_payload_size.
MAX_PAYLOAD_BYTES = 1 * MIB
# The upper bound of max_payload_size: every store can hold this much in one value.
MAX_STORABLE_BYTES = 256 * MIB
# Headers are read with every listing, so they stay small compared to a payload.
MAX_HEADERS_BYTES = 64 * KIB
# An item with its own retry policy stores all of it, and returns it with each lease; a list of 1,000 delays fits.
MAX_ITEM_RETRY_BYTES = 64 * KIB
# A worker with a thousand tasks can name them all, and a listing of all workers stays small.
MAX_REGISTRATION_BYTES = 64 * KIB
# Holds a URL, two uuids or a digest with a prefix, and still fits a unique index on every store.
MAX_LABEL_CHARS = 256
# Items in one transaction: enough to spread the cost of a sync, few enough not to delay other callers.
MAX_BATCH = 1_000
# A put of many items is one atomic transaction: more items would delay other callers for too long.
MAX_PUT = 10_000
# Calls in one group commit: the last one in a burst does not wait for all others.
MAX_CALLS_PER_COMMIT = 4_096
# Calls that wait for a transaction. Beyond it the store is too slow for its callers, which get `Overloaded`.
MAX_WAITING_CALLS = 100_000
# Integers up to 2^53 are exact in a double, which Redis scores and many JSON readers use: the year 2255.
MIN_INSTANT = 0
MAX_INSTANT = 2**53 - 1
# Operators read the first and the latest entries; the entries between them are only counted.
HISTORY_FIRST = 5
HISTORY_LAST = 45
# The largest signed integer in four bytes: for counters and numbers in settings and filters.
MAX_COUNT = 2**31 - 1
# One digit has the same order as text and as a number.
MIN_PRIORITY = 0
MAX_PRIORITY = 9
DEFAULT_PRIORITY = 5

# ASCII, so that two different names never look the same. '@' separates a store's name, '/' the parts of a URL.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")


def check_name(what: str, name: object) -> str:
    """Return the name if it is valid for a queue, namespace, store or function; `what` names the kind in the error."""
    name = check_text(what, name)
    if not name:
        raise InvalidName(what, name, "is empty")
    if len(name) > MAX_NAME_CHARS:
        raise InvalidName(what, name, f"has {len(name):,} characters and the limit is {MAX_NAME_CHARS}")
    if _NAME.fullmatch(name) is None:
        raise InvalidName(
            what, name, "has characters that names cannot have; use letters, digits and . _ : - (not . : - in front)"
        )
    return name


def check_label(what: str, label: object) -> str:
    """Return the label (a key, an actor, a worker) if every store can keep it: no NUL, no lone surrogates."""
    label = check_text(what, label)
    if not label:
        raise InvalidName(what, label, "is empty")
    if len(label) > MAX_LABEL_CHARS:
        raise InvalidName(
            what, label, f"has {len(label):,} characters and the limit is {MAX_LABEL_CHARS}; use a digest of it"
        )
    if problem := text_problem(label):
        raise InvalidName(what, label, problem)
    return label


def check_priority(priority: object) -> int:
    """Return the priority if it is a whole number from 0 to 9; larger is leased first."""
    if type(priority) is int and MIN_PRIORITY <= priority <= MAX_PRIORITY:
        return priority
    with checking_input("priority"):
        fits = isinstance(priority, int) and not isinstance(priority, bool) and MIN_PRIORITY <= priority <= MAX_PRIORITY
    if not fits:
        raise InvalidInput(
            f"priority must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY} (larger goes first), "
            f"not {short_repr(priority, 40)}"
        )
    return int.__index__(priority)  # type: ignore[arg-type]


def check_instant(what: str, instant: object, *, shown: str | None = None) -> int:
    """Return the instant if it is a number of microseconds since 1970 (UTC) that every store can keep exactly.

    shown: the instant as the caller gave it, for the error.
    """
    if isinstance(instant, bool) or not isinstance(instant, int):
        raise InvalidDuration(what, instant, "is not an instant in microseconds since 1970 (UTC)")
    if not MIN_INSTANT <= instant <= MAX_INSTANT:
        raise InvalidDuration(what, shown or instant, "is outside the range that can be stored, the years 1970 to 2254")
    return instant


def check_text(what: str, text: object) -> str:
    """Return the text as a plain str. Raise InvalidName if it is not text."""
    if type(text) is str:
        return text
    with checking_input(what):
        if isinstance(text, str):
            return exact_str(text)
    raise InvalidName(what, text, "is not text")


def text_problem(text: str) -> str | None:
    """Return why a text cannot be stored as a name, a key or a header; None if it can."""
    if "\0" in text:
        return "has a NUL character"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            return "has a lone surrogate, which UTF-8 cannot hold"
    return None


DEFAULT_URL = "sqlite:///redrive.db"
DEFAULT_NAMESPACE = "default"
_SEPARATOR = "@"


def check_address(what: str, address: object) -> str:
    """Return the address if it is valid; `what` names its purpose in the error."""
    address = check_text(what, address)
    if _SEPARATOR not in address:
        return check_name(what, address)
    queue, _, store = address.partition(_SEPARATOR)
    for part in (queue, store):
        try:
            check_name(what, part)
        except InvalidName as error:
            raise InvalidName(what, address, f"is no name@store: {error}") from None
    return address


def make_address(queue: str, store: str) -> str:
    """Return the address of a queue in another store."""
    return f"{queue}{_SEPARATOR}{store}"


def split_address(address: str) -> tuple[str, str | None]:
    """Return the queue and the store of an address; None for a queue in the same store."""
    queue, _, store = address.partition(_SEPARATOR)
    return queue, store or None


def is_remote(address: str) -> bool:
    """Return whether an address names another store."""
    return _SEPARATOR in address
