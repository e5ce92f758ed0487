"""Fields that many calls have, with their bounds, and what is checked of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec

from redrive.errors import RedriveError, RequestTooLarge
from redrive.model.limits import MAX_LABEL_CHARS, MAX_NAME_CHARS
from redrive.server.requests import Request

MAX_TEXT_CHARS = 1_000_000
"""Of an error or a note in a request; far less of it is kept."""
_ID_DIGITS = 32
_TOKEN_DIGITS = 48

QueueName: TypeAlias = Annotated[
    str, msgspec.Meta(max_length=MAX_NAME_CHARS, description="The name of a queue.", examples=["emails"])
]
Label: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_LABEL_CHARS)]
Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_TEXT_CHARS)]
ItemIdText: TypeAlias = Annotated[str, msgspec.Meta(max_length=_ID_DIGITS, description="The id of an item.")]
TokenText: TypeAlias = Annotated[
    str, msgspec.Meta(max_length=_TOKEN_DIGITS, description="What the lease gave for this item.")
]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
PageLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, description="Most that one answer has.")]
Cursor: TypeAlias = (
    Annotated[str, msgspec.Meta(max_length=100, description="Where to go on: the cursor of the answer before.")] | None
)
Actor: TypeAlias = Annotated[
    Label | None,
    msgspec.Meta(description="Who does it, for the audit. Where tokens are asked for, it is the name of the token."),
]
_T = TypeVar("_T")


def each(items: Iterable[Any], make: Callable[[Any], _T]) -> list[_T]:
    """What is made of each item of a request. An error says which of them it is about, as `item`, from 0."""
    made: list[_T] = []
    for item in items:
        try:
            made.append(make(item))
        except RedriveError as error:
            vars(error)["item"] = len(made)
            raise
    return made


def check_batch(request: Request, size: int) -> None:
    """Raise unless so many items may be in one request."""
    if size > request.limits.batch:
        raise RequestTooLarge("the number of items", request.limits.batch)


def check_page(request: Request, size: int) -> None:
    """Raise unless so many may be in one answer."""
    if size > request.limits.page:
        raise RequestTooLarge("the limit of the page", request.limits.page)
