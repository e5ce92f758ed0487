"""`name` and `name@store`."""

from typing import Any

import pytest

from redrive.errors import InvalidName
from redrive.model.limits import check_address, is_remote, make_address, split_address


def test_queue_of_this_store_is_a_name() -> None:
    assert check_address("queue", "jobs") == "jobs"
    assert split_address("jobs") == ("jobs", None)
    assert not is_remote("jobs")


def test_queue_of_another_store_has_its_name_behind_it() -> None:
    address = make_address("jobs", "archive")
    assert check_address("queue", address) == address == "jobs@archive"
    assert split_address(address) == ("jobs", "archive")
    assert is_remote(address)


@pytest.mark.parametrize("address", ["", "@", "jobs@", "@archive", "a b@archive", "jobs@a b", "jobs@a@b", 7, None])
def test_what_is_no_address_is_refused(address: Any) -> None:
    with pytest.raises(InvalidName, match="dead_queue"):
        check_address("dead_queue", address)
