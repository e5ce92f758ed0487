"""What a command lists becomes items: what is wrong with one object concerns no other."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from redrive.config.listed_objects import ListingInvalid, items_from

GOOD = [b'{"id":"a"}', b'{"id":"z"}']
Form = Callable[[list[bytes]], bytes]
BAD = {
    "a lone surrogate": rb'{"id":"\ud800"}',
    "a lone surrogate in its text": rb'{"id":"b","title":"\ud83d"}',
    "a number that is too large": b'{"id":"b","n":1e999}',
    "a key of too many digits": b'{"id":' + b"9" * 5000 + b"}",
    "no UTF-8": b'{"id":"\xff"}',
    "a value that is no JSON": b'{"id":"b","n":NaN}',
    "brackets within a text, and no JSON": rb'{"id":"b]},{\"[","n":NaN}',
    "arrays without end": b'{"id":"b","n":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
}


def array(objects: list[bytes]) -> bytes:
    return b"[\n " + b",\n ".join(objects) + b"\n]\n"


def lines(objects: list[bytes]) -> bytes:
    return b"\n".join(objects) + b"\n"


@pytest.mark.parametrize("form", [array, lines])
@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_object_that_cannot_be_read_is_left_out_and_the_others_are_listed(form: Form, bad: bytes) -> None:
    items, problem = items_from(form([GOOD[0], bad, GOOD[1]]), "id")
    assert [item.payload for item in items] == GOOD
    assert problem is not None
    assert problem.startswith("object 2 ")


@pytest.mark.parametrize("form", [array, lines])
def test_objects_are_told_apart_also_beside_one_that_cannot_be_read(form: Form) -> None:
    objects = [rb'{"id":"a","t":"],[\\"}', b'{"id":"b","t":{"u":[1,{"id":"no"}]}}', b'{"id":"c","n":1e999}']
    items, _ = items_from(form(objects), "id")
    assert [item.payload for item in items] == objects[:2]


@pytest.mark.parametrize(
    "output",
    [
        b"hello",
        b"[{",
        b'[{"id":1}',
        b'[{"id":1},]',
        b'[{"id":1}] and more',
        b'[{"id":1]}',
        b'[{"id":1}, hello]',
        b'{"id":1}\nwarning: all is well\n',
        b'{\n "id": 1,\n "labels": [\n  {"id": 5}\n ]\n}\n',
        b'[{"id":"\xff"}]',
        b'{"id": nothing}',
        b"\xff\xfe",
    ],
)
def test_what_is_no_list_of_objects_is_refused_whole(output: bytes) -> None:
    with pytest.raises(ListingInvalid, match="neither a JSON array nor an object a line"):
        items_from(output, "id")


@pytest.mark.parametrize("output", [b"", b"\n \n", b"[]", b" [ ]\n"])
def test_source_may_have_nothing(output: bytes) -> None:
    assert items_from(output, "id") == ([], None)


def test_value_that_is_no_object_is_told() -> None:
    items, problem = items_from(b'["x", 3, {"id": 1}]', "id")
    assert [item.payload for item in items] == [b'{"id": 1}']
    assert problem == "object 1 is no object"
