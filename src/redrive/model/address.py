"""Where a queue is: its name, and the store that has it where that is another one. `name` or `name@store`.

And where a store is, if nobody says it.
"""

from __future__ import annotations

from redrive.errors import InvalidName
from redrive.model.limits import check_name, check_text

DEFAULT_URL = "sqlite:///redrive.db"
DEFAULT_NAMESPACE = "default"
_SEPARATOR = "@"


def check_address(what: str, address: object) -> str:
    """The address itself, if it can be one; `what` says in the error what it was for."""
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


def address_of(queue: str, store: str) -> str:
    """The address of a queue in a store, for those in other stores."""
    return f"{queue}{_SEPARATOR}{store}"


def split_address(address: str) -> tuple[str, str | None]:
    """The queue, and the store where another one is named."""
    queue, _, store = address.partition(_SEPARATOR)
    return queue, store or None


def is_elsewhere(address: str) -> bool:
    """Whether it names another store."""
    return _SEPARATOR in address
