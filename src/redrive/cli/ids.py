"""Ids as people type them: the first digits are enough, where they tell one from all others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from redrive.cli.options import to_type
from redrive.errors import InvalidName, ItemNotFound, NotFound, OperationNotFound

if TYPE_CHECKING:
    from redrive.broker.broker import Broker

SHORTEST = 4
"""Fewer digits of an id are refused: too many items begin with them."""
_WHOLE = 32
_SHOWN = 10
_DIGITS = frozenset("0123456789abcdef")


class Ambiguous(InvalidName):
    """The first digits of several ids."""

    def __init__(self, what: str, prefix: str, candidates: Sequence[str]) -> None:
        super().__init__(f"{what} id", prefix, "is the beginning of several")
        self.candidates = tuple(candidates)
        listed = "\n".join(f"  {each}" for each in candidates)
        self.args = (
            f"'{prefix}' is the beginning of several {what} ids; type more digits of the one you mean:\n{listed}",
        )


class GroupNotFound(NotFound):
    """No dead letters of that cause."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        super().__init__(
            f"no dead letters are of the group '{fingerprint}'\n  {to_type('dead groups')} shows all groups"
        )


def item_id(broker: Broker, typed: str) -> str:
    """The id of the one item that begins so. A whole id is taken as it is: it may be one from before a move."""
    prefix = _checked("item", typed)
    if len(prefix) == _WHOLE:
        return prefix
    found = broker.find(status="any", id_prefix=prefix, limit=_SHOWN).items
    if not found:
        raise ItemNotFound(prefix)
    if len(found) > 1:
        many = [f"{item.id[: max(12, len(prefix) + 4)]}  {item.status} in {item.queue}" for item in found]
        raise Ambiguous("item", prefix, many)
    return found[0].id


def item_ids(broker: Broker, typed: Iterable[str]) -> list[str]:
    """The same for several, each once."""
    return list(dict.fromkeys(item_id(broker, each) for each in typed))


def operation_id(broker: Broker, typed: str) -> str:
    """The id of the one operation that begins so."""
    prefix = _checked("operation", typed)
    if len(prefix) == _WHOLE:
        return prefix
    found = [each for each in broker.operations(limit=1000) if each.id.startswith(prefix)]
    if not found:
        raise OperationNotFound(prefix)
    if len(found) > 1:
        raise Ambiguous("operation", prefix, [f"{each.id}  {each.verb}" for each in found[:_SHOWN]])
    return found[0].id


def fingerprint(broker: Broker, typed: str) -> str:
    """The fingerprint of the one group that begins so."""
    found = [each for each in broker.groups(limit=1000) if each.fingerprint.startswith(typed)]
    exact = [each for each in found if each.fingerprint == typed]
    if not found:
        raise GroupNotFound(typed)
    if len(found) > 1 and not exact:
        raise Ambiguous("group", typed, [f"{each.fingerprint}  {each.title}" for each in found[:_SHOWN]])
    return (exact or found)[0].fingerprint


def _checked(what: str, typed: str) -> str:
    prefix = typed.strip().lower()
    if not prefix or not set(prefix) <= _DIGITS or len(prefix) > _WHOLE:
        raise InvalidName(f"{what} id", typed, "is not the beginning of an id: digits 0-9 and a-f, as in 7f3a90c1")
    if len(prefix) < SHORTEST:
        raise InvalidName(f"{what} id", typed, f"is too short: type {SHORTEST} digits at least")
    return prefix
