"""Holders: the names that prevent an item from being leased, and their encoding in stores.

An item has at most MAX_HOLDERS of them, each once, in the order in which they were added. A *lasting* one stays until
it is removed, through retries, redrives, moves within the store, the archive and deaths. A dead or archived item keeps
it on record, and is held by it again once it is redriven or restored. Others end with a retry, a redrive or a death. A
leased item has none.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

import msgspec

from redrive.errors import InvalidInput
from redrive.model.limits import check_label

MAX_HOLDERS = 16
"""The maximum number of holders of one item. More are ignored, because the item is held anyway."""


class ItemHolder(NamedTuple):
    """The name of a holder of an item; `is_lasting` is true if it stays through retries, redrives and deaths."""

    name: str
    is_lasting: bool = False


Holders = tuple[ItemHolder, ...]


def holder_names(holders: Holders) -> tuple[str, ...]:
    """Return the names of holders."""
    return tuple(holder.name for holder in holders)


def lasting_holders(holders: Holders) -> Holders:
    """Return the holders that stay through a retry, redrive or death."""
    return tuple(holder for holder in holders if holder.is_lasting) if holders else ()


def passing_holders(holders: Holders) -> Holders:
    """Return the holders that are not lasting: only those move with an item to another store."""
    return tuple(holder for holder in holders if not holder.is_lasting) if holders else ()


def check_holder_names(names: Collection[str]) -> None:
    """Raise unless these names can hold an item."""
    if len(names) > MAX_HOLDERS:
        raise InvalidInput(f"an item has at most {MAX_HOLDERS} holders, not {len(names):,}")
    for name in names:
        check_label("held_by", name)


def add_holder(holders: Holders, name: str, *, is_lasting: bool = False) -> Holders:
    """Return the holders with one more. A present one can become lasting, but never the reverse."""
    present = next((at for at, holder in enumerate(holders) if holder.name == name), None)
    if present is None:
        return (*holders, ItemHolder(name, is_lasting)) if len(holders) < MAX_HOLDERS else holders
    lasts = is_lasting or holders[present].is_lasting
    return (*holders[:present], ItemHolder(name, lasts), *holders[present + 1 :])


def add_lasting(holders: Holders, names: Iterable[str]) -> Holders:
    """Return the holders with those of a verdict, which are always lasting."""
    for name in names:
        holders = add_holder(holders, name, is_lasting=True)
    return holders


def remove_holder(holders: Holders, name: str) -> Holders:
    """Return the holders without the named one."""
    return tuple(holder for holder in holders if holder.name != name)


def make_holders(names: Iterable[str]) -> Holders:
    """Return holders that are not lasting, for an item from another store."""
    return tuple(ItemHolder(name) for name in dict.fromkeys(names))[:MAX_HOLDERS]


SEVERAL = "[["
"""The prefix of the encoded text of several holders. The text of one holder never has it."""


def encode_holders(holders: Holders) -> str | None:
    """Return the text that a store keeps for holders: the name of a single one that is not lasting, else JSON."""
    if not holders:
        return None
    if len(holders) > 1:
        return msgspec.json.encode(holders).decode()
    (holder,) = holders
    plain = not holder.is_lasting and not holder.name.startswith("[")
    return holder.name if plain else msgspec.json.encode(holder).decode()


def decode_holders(text: str | None) -> Holders:
    """Return the holders of a text from `encode_holders`."""
    if text is None:
        return ()
    if text.startswith(SEVERAL):
        return _decode_several(text)
    return (_decode_one(text) if text.startswith("[") else ItemHolder(text),)


_decode_several = msgspec.json.Decoder(Holders).decode
_decode_one = msgspec.json.Decoder(ItemHolder).decode
