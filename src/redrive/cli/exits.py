"""Exit codes: what a script can tell from how a command ended."""

from __future__ import annotations

WELL = 0
FAILED = 1
"""Something else went wrong; `doctor` found something; several items, and not all were changed."""
USAGE = 2
"""The command line itself is wrong; nothing was tried."""
INVALID = 3
NOT_FOUND = 4
REFUSED = 5
UNAVAILABLE = 6
"""The store or server cannot be used now."""
UNAUTHORIZED = 7
UNKNOWN = 8
"""It happened or it did not: look before you repeat it."""
BUSY = 9
"""The same command can succeed later: a full queue, an item that a worker has, a store that is overloaded."""
NOT_CONFIRMED = 10
"""The number of items that was confirmed is not the number there are, or nobody confirmed it."""
STOPPED = 11
"""An operation stopped itself, was cancelled, or did not end in the time that was given."""
NOTHING = 12
"""Items were to be changed, and none was."""
INTERRUPTED = 130
"""Ctrl-C."""

EXITS: dict[str, int] = {
    "error": FAILED,
    "invalid": INVALID,
    "invalid_name": INVALID,
    "invalid_setting": INVALID,
    "invalid_duration": INVALID,
    "invalid_payload": INVALID,
    "payload_too_large": INVALID,
    "arguments_invalid": INVALID,
    "invalid_file": INVALID,
    "untrusted_file": INVALID,
    "request_too_large": INVALID,
    "not_found": NOT_FOUND,
    "queue_not_found": NOT_FOUND,
    "item_not_found": NOT_FOUND,
    "operation_not_found": NOT_FOUND,
    "no_result": NOT_FOUND,
    "result_not_kept": NOT_FOUND,
    "refused": REFUSED,
    "queue_exists": REFUSED,
    "queue_in_use": REFUSED,
    "wrong_status": REFUSED,
    "idempotency_conflict": REFUSED,
    "lease_lost": REFUSED,
    "wrong_queue": REFUSED,
    "operation_ended": REFUSED,
    "task_failed": REFUSED,
    "confirm_mismatch": NOT_CONFIRMED,
    "item_active": BUSY,
    "item_moving": BUSY,
    "queue_full": BUSY,
    "overloaded": BUSY,
    "result_timeout": BUSY,
    "store_error": UNAVAILABLE,
    "store_unavailable": UNAVAILABLE,
    "store_busy": UNAVAILABLE,
    "store_read_only": UNAVAILABLE,
    "disk_full": UNAVAILABLE,
    "not_a_store": UNAVAILABLE,
    "schema_too_new": UNAVAILABLE,
    "engine_unsupported": UNAVAILABLE,
    "store_failed": UNAVAILABLE,
    "closed": UNAVAILABLE,
    "access_error": UNAUTHORIZED,
    "unauthorized": UNAUTHORIZED,
    "forbidden": UNAUTHORIZED,
    "outcome_unknown": UNKNOWN,
}
"""The exit code of each error code. A test sees to it that no error is missing."""

MEANINGS: dict[int, str] = {
    WELL: "all is well",
    FAILED: "something else went wrong; `doctor` found something; not all of several items were changed",
    USAGE: "the command line is wrong: an unknown option, a missing argument",
    INVALID: "what was given cannot be used: a name, a setting, a payload",
    NOT_FOUND: "there is no such queue, item or operation",
    REFUSED: "refused as things stand: the item is in another status, the queue exists with other settings",
    UNAVAILABLE: "the store or server cannot be reached or used",
    UNAUTHORIZED: "the server does not let this token do this",
    UNKNOWN: "the connection broke while the change was being made: look whether it happened",
    BUSY: "not now; the same command can succeed later: the queue is full, a worker has the item",
    NOT_CONFIRMED: "nobody confirmed the number of items, or it was another",
    STOPPED: "an operation stopped itself, was cancelled, or has not ended in the time given",
    NOTHING: "nothing was changed: no item matched, or each that did was left out",
    INTERRUPTED: "Ctrl-C",
}
"""What each exit code means, for the documentation."""


def exit_of_change(changed: int, left_out: int) -> int:
    """What a command exits with that changes all items that match."""
    if not changed:
        return NOTHING
    return FAILED if left_out else WELL


def exit_code(code: str) -> int:
    """What the command exits with after an error of that code."""
    return EXITS.get(code, FAILED)
