"""What `connect` refuses before it opens anything."""

import re
from pathlib import Path
from typing import Any

import pytest

from redrive import connect, connect_async
from redrive.errors import InvalidInput, InvalidName, StoreUnavailable

BAD_NAMESPACES: list[Any] = ["", "a b", "a\0b", "x" * 129, "\ud800", 7]
BAD_URLS: list[Any] = [
    None,
    7,
    b"sqlite:///jobs.db",
    "sqlite:jobs.db",
    "sqlite:/jobs.db",
    "",
    "jobs.db",
    "sqlite://",
    "sqlite:///",
    "mysql://host/db",
    "sqlite://host/jobs.db",
    "sqlite:///a.db?mode=ro",
]


@pytest.mark.parametrize("open_one", [connect, connect_async])
@pytest.mark.parametrize("namespace", BAD_NAMESPACES, ids=lambda name: ascii(name)[:20])
def test_bad_namespace_is_refused(open_one: Any, namespace: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidName, match="namespace"):
        open_one(f"sqlite:///{tmp_path}/jobs.db", namespace=namespace)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("open_one", [connect, connect_async])
@pytest.mark.parametrize("url", BAD_URLS)
def test_bad_url_is_refused_with_what_to_write(open_one: Any, url: str) -> None:
    with pytest.raises(InvalidInput, match="sqlite:///"):
        open_one(url)


@pytest.mark.parametrize("url", ["memory://shared", "memory:///jobs.db", "sqlite:///:memory:"])
def test_memory_has_no_name(url: str) -> None:
    with pytest.raises(InvalidInput, match="write memory://"):
        connect(url)


@pytest.mark.parametrize(
    ("backoffs", "reason"),
    [
        (["polite"], r"a table from names to functions, not \['polite'\]"),
        ({"polite": 3}, "no function under 'polite': 3 cannot be called"),
        ({"a b": abs}, "delay function"),
        ({7: abs}, "delay function"),
    ],
)
def test_what_is_no_delay_function_is_refused(backoffs: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        connect("memory://", backoffs=backoffs)


@pytest.mark.parametrize("open_one", [connect, connect_async])
def test_file_that_does_not_exist_is_named_where_none_is_to_be_created(open_one: Any, tmp_path: Path) -> None:
    with pytest.raises(
        StoreUnavailable, match=re.escape(f"{tmp_path}/jobs.db is not available: the file does not exist")
    ):
        open_one(f"sqlite:///{tmp_path}/jobs.db", create_if_missing=False)
    assert list(tmp_path.iterdir()) == []


def test_file_that_exists_is_opened_and_not_created(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    with connect(url, maintenance=False) as broker:
        broker.create_queue("jobs")
    with connect(url, create_if_missing=False, maintenance=False) as broker:
        assert [queue.name for queue in broker.list_queues()] == ["jobs"]


def test_store_in_memory_always_begins_empty() -> None:
    with pytest.raises(InvalidInput, match="create_if_missing=False"):
        connect("memory://", create_if_missing=False)


def test_bad_durability_is_refused() -> None:
    with pytest.raises(InvalidInput, match="'full' or 'relaxed'"):
        connect("memory://", durability="some")
