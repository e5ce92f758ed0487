"""Replies: the queue that an item names for them, and the items that a store puts there.

An item may name a queue in the header REPLY_TO. A consumer never names that queue: the store takes it from the item, so
that a token which may work in one queue cannot send replies to others. `Reply` and `Complete` bring replies; the store
itself answers a death. One life of an item, from its put or redrive to its completion or death, has at most one
terminal reply, which is part of the same transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.contract.item_calls import NewItem
from redrive.errors import InvalidInput
from redrive.model.death import Cause
from redrive.model.failure import Failure
from redrive.model.ids import ItemId
from redrive.model.item import Result
from redrive.model.limits import check_address, make_address, split_address
from redrive.model.payload import JSON
from redrive.model.redact import redactor_by
from redrive.model.redact_rules import RedactRules
from redrive.model.text import pluralize

RESERVED_PREFIX = "redrive-"
"""The prefix of headers that programs may not set."""
REPLY_TO = "redrive-reply-to"
"""The queue that gets the replies: `name`, or `name@store`."""
REQUEST_ID = "redrive-request-id"
"""The id that a request has in its sender's program. Replies carry it back."""
KEEP_RESULT = "redrive-keep-result"
"""Microseconds that the result of the item is kept for its sender, which awaits it."""
REPLY_FOR = "redrive-reply-for"
"""On a reply: the id of the item that it answers, as its sender knows it."""
REPLY_ERROR = "redrive-reply-error"
"""On the reply to a death: the reason."""
SENDER_HEADERS = frozenset({REPLY_TO, REQUEST_ID, KEEP_RESULT})
"""Headers with the prefix that a sender sets. The others are set by stores only."""
ANSWERED = "a dead letter was answered when it died; redrive it, and the next delivery can reply"
"""The reason why a dead letter accepts no reply."""
MAX_ERROR_CHARS = 2000
"""Maximum number of characters of the error text in the reply to a death."""
_MOST_BYTES = 6
"""Maximum number of bytes of a character in JSON."""


def reply_address(headers: Mapping[str, str]) -> str:
    """Return the queue for replies. Raises InvalidInput if the item names none."""
    if REPLY_TO not in headers:
        raise InvalidInput("the item names no queue for replies; put it with reply_to")
    return check_address("queue", headers[REPLY_TO])


def check_reply_address(headers: Mapping[str, str] | None) -> None:
    """Raise InvalidName if these headers name a queue for replies that cannot exist."""
    if headers is not None and REPLY_TO in headers:
        reply_address(headers)


def headers_on_arrival(headers: Mapping[str, str], source: str, here: str) -> Mapping[str, str]:
    """Return the headers of an item that comes from another store: its replies still go to the same queue."""
    if REPLY_TO not in headers:
        return headers
    queue, store = split_address(headers[REPLY_TO])
    address = queue if store == here else make_address(queue, source if store is None else store)
    return {**headers, REPLY_TO: address}


def make_reply(id: ItemId, headers: Mapping[str, str], body: Result, error: str | None = None) -> NewItem:
    """Return the item that answers the one with this id and these headers."""
    own: dict[str, str] = {REPLY_FOR: id}
    if REQUEST_ID in headers:
        own[REQUEST_ID] = headers[REQUEST_ID]
    if error is not None:
        own[REPLY_ERROR] = error
    return NewItem(body.payload, body.content_type, own)


def death_reply(
    id: ItemId,
    headers: Mapping[str, str],
    attempts: int,
    cause: Cause,
    reason: str,
    failure: Failure | None,
    rules: RedactRules,
    limit: int | None = None,
) -> NewItem:
    """Return the reply to a death: JSON with `error`, and `request_id` if the sender gave one. The text is cut if the
    whole has more than `limit` bytes.

    Secrets are redacted, also by the rules of the queue, before the text is cut: half a secret might not be recognized.
    """
    text = cause.title if failure is None or not failure.text else failure.text
    text = redactor_by(rules).text(text[: 2 * MAX_ERROR_CHARS])[:MAX_ERROR_CHARS]
    body: dict[str, Any] = {"error": f"Dead-lettered after {pluralize(attempts, 'attempt')}: {text}"}
    if REQUEST_ID in headers:
        body["request_id"] = headers[REQUEST_ID]
    payload = msgspec.json.encode(body)
    while limit is not None and len(payload) > limit and body["error"]:
        body["error"] = body["error"][: -max(1, (len(payload) - limit) // _MOST_BYTES)]
        payload = msgspec.json.encode(body)
    return make_reply(id, headers, Result(payload, JSON), reason)
