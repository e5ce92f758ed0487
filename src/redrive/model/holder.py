"""Holders: the names that keep an item from being leased, and how stores keep them.

An item has at most MAX_HOLDERS of them, each once, in the order in which they came. A *lasting* one stays with the item
until it is taken away, wherever the item goes in its store: through retries, redrives, moves, the archive and deaths. A
dead or archived item keeps it on record, and is held by it again once it is redriven or restored. Others end with a
retry, a redrive or a death. A leased item has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from redrive.errors import InvalidInput
from redrive.model.limits import check_label

MAX_HOLDERS = 16
"""Of one item. More are skipped: the item is held anyway."""


class ItemHolder(NamedTuple):
    """Who holds an item, and whether that lasts."""

    name: str
    is_lasting: bool = False


Holders = tuple[ItemHolder, ...]


def holder_names(holders: Holders) -> tuple[str, ...]:
    """The names alone."""
    return tuple(holder.name for holder in holders)


def lasting_holders(holders: Holders) -> Holders:
    """Those that stay through a retry, redrive or death."""
    return tuple(holder for holder in holders if holder.is_lasting) if holders else ()


def passing_holders(holders: Holders) -> Holders:
    """Those that do not: they go with an item to another store, where the others mean nothing."""
    return tuple(holder for holder in holders if not holder.is_lasting) if holders else ()


def check_holder_names(names: Collection[str]) -> None:
    """Raise unless these can hold an item."""
    if len(names) > MAX_HOLDERS:
        raise InvalidInput(f"an item has at most {MAX_HOLDERS} holders, not {len(names):,}")
    for name in names:
        check_label("held_by", name)


def add_holder(holders: Holders, name: str, *, is_lasting: bool = False) -> Holders:
    """The holders with one more. One that is there may become lasting, and never passing again."""
    present = next((at for at, holder in enumerate(holders) if holder.name == name), None)
    if present is None:
        return (*holders, ItemHolder(name, is_lasting)) if len(holders) < MAX_HOLDERS else holders
    lasts = is_lasting or holders[present].is_lasting
    return (*holders[:present], ItemHolder(name, lasts), *holders[present + 1 :])


def add_lasting(holders: Holders, names: Iterable[str]) -> Holders:
    """The holders with those of a verdict, which are always lasting."""
    for name in names:
        holders = add_holder(holders, name, is_lasting=True)
    return holders


def remove_holder(holders: Holders, name: str) -> Holders:
    """The holders without one."""
    return tuple(holder for holder in holders if holder.name != name)


def make_holders(names: Iterable[str]) -> Holders:
    """Holders that do not last, of an item that came from elsewhere."""
    return tuple(ItemHolder(name) for name in dict.fromkeys(names))[:MAX_HOLDERS]


SEVERAL = "[["
"""The start of the text of several holders. That of one holder never has it."""


def encode_holders(holders: Holders) -> str | None:
    """Return the text by which a store keeps holders: of one that does not last, its name; else JSON."""
    if not holders:
        return None
    if len(holders) > 1:
        return msgspec.json.encode(holders).decode()
    (holder,) = holders
    plain = not holder.is_lasting and not holder.name.startswith("[")
    return holder.name if plain else msgspec.json.encode(holder).decode()


def decode_holders(text: str | None) -> Holders:
    """Return the holders that were encoded so."""
    if text is None:
        return ()
    if text.startswith(SEVERAL):
        return _decode_several(text)
    return (_decode_one(text) if text.startswith("[") else ItemHolder(text),)


_decode_several = msgspec.json.Decoder(Holders).decode
_decode_one = msgspec.json.Decoder(ItemHolder).decode
