"""Holders of an item: the text that keeps them, and how they change."""

from __future__ import annotations

import pytest

from redrive.errors import InvalidInput, InvalidName
from redrive.model.holder import (
    MAX_HOLDERS,
    SEVERAL,
    Holders,
    ItemHolder,
    add_holder,
    add_lasting,
    check_holder_names,
    decode_holders,
    encode_holders,
    make_holders,
    remove_holder,
)

ANN, BOB = ItemHolder("ann"), ItemHolder("bob", True)


@pytest.mark.parametrize("name", ["ann", "[", "[[", '["ann",true]', '[["ann",true]]', 'a"b', "\\", "ü", "\n"])
@pytest.mark.parametrize("lasting", [False, True])
def test_text_of_holders_is_read_as_it_was_written(name: str, lasting: bool) -> None:
    holder = ItemHolder(name, lasting)
    alone, several = encode_holders((holder,)), encode_holders((holder, ItemHolder("other")))
    assert (decode_holders(alone), decode_holders(several)) == ((holder,), (holder, ItemHolder("other")))
    assert alone is not None
    assert several is not None
    assert (alone.startswith(SEVERAL), several.startswith(SEVERAL)) == (False, True)


def test_name_of_the_only_holder_is_its_text() -> None:
    assert (encode_holders(()), encode_holders((ANN,)), decode_holders(None)) == (None, "ann", ())


@pytest.mark.parametrize(
    ("before", "lasting", "after"),
    [
        ((), False, (ANN,)),
        ((), True, (ItemHolder("ann", True),)),
        ((ANN, BOB), False, (ANN, BOB)),
        ((ANN, BOB), True, (ItemHolder("ann", True), BOB)),
        ((ItemHolder("ann", True),), False, (ItemHolder("ann", True),)),
    ],
)
def test_holder_is_there_once_and_may_become_lasting(before: Holders, lasting: bool, after: Holders) -> None:
    assert add_holder(before, "ann", is_lasting=lasting) == after


def test_item_has_no_more_holders_than_it_can_have() -> None:
    names = [f"holder {number}" for number in range(MAX_HOLDERS + 1)]
    full = add_lasting((), names)
    assert [holder.name for holder in full] == names[:MAX_HOLDERS]
    assert add_holder(full, "ann") == full
    assert len(make_holders([*names, *names])) == MAX_HOLDERS
    assert len(remove_holder(full, names[0])) == MAX_HOLDERS - 1
    with pytest.raises(InvalidInput, match="at most 16 holders, not 17"):
        check_holder_names(names)
    with pytest.raises(InvalidName, match="held_by"):
        check_holder_names([""])
