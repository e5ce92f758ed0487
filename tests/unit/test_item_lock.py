"""The lock of an item that runs: one process at a time on this host, whatever becomes of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from redrive.worker import item_lock
from redrive.worker.item_lock import ItemLock

ITEM, OTHER = f"{7:032x}", f"{7 << 64 | 7:032x}"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    item_lock._lock_file.cache_clear()
    yield tmp_path / f"redrive-{os.getuid()}"
    item_lock._lock_file.cache_clear()


def is_free(item: str) -> bool:
    """Whether another process can take it."""
    copy = os.fork()
    if copy == 0:
        os._exit(ItemLock(item).take())
    return bool(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]))


@contextmanager
def holder(item: str) -> Iterator[None]:
    """Another process that has the lock, and is killed at the end."""
    reads, writes = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.write(writes, bytes([ItemLock(item).take()]))
        while True:
            os.read(reads, 0)
            os.kill(os.getpid(), 19)
    try:
        assert os.read(reads, 1) == b"\1"
        yield
    finally:
        os.kill(copy, 9)
        os.waitpid(copy, 0)
        os.close(reads)
        os.close(writes)


def test_lock_is_taken_by_one_process_at_a_time() -> None:
    one = ItemLock(ITEM)
    assert one.take()
    assert not is_free(ITEM)
    assert is_free(OTHER)
    one.release()
    assert is_free(ITEM)


def test_one_process_has_the_locks_of_many_items() -> None:
    one, other = ItemLock(ITEM), ItemLock(OTHER)
    assert one.take()
    assert other.take()
    other.release()
    assert not is_free(ITEM)


def test_lock_is_free_for_others_though_a_copy_of_the_process_lives_on() -> None:
    one = ItemLock(ITEM)
    assert one.take()
    reads, writes = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    try:
        one.release()
        assert is_free(ITEM)
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(copy, 0)


def test_lock_ends_with_its_holder_and_leaves_nothing(folder: Path) -> None:
    lock = ItemLock(ITEM)
    with holder(ITEM):
        assert not lock.take()
    assert lock.take()
    assert [path.stat().st_size for path in folder.iterdir()] == [0]


def test_folder_that_was_tidied_away_is_made_anew(folder: Path) -> None:
    assert ItemLock(ITEM).take()
    (folder / "running").unlink()
    folder.rmdir()
    again = ItemLock(ITEM)
    assert again.take()
    assert (folder / "running").exists()
    assert not is_free(ITEM)


def test_file_that_is_used_looks_too_young_to_be_tidied_away(folder: Path) -> None:
    assert ItemLock(ITEM).take()
    os.utime(folder / "running", (0, 0))
    assert ItemLock(OTHER).take()
    assert time.time() - (folder / "running").stat().st_mtime < item_lock.RENEWED_SECONDS


def test_file_that_a_handler_closed_is_opened_again(folder: Path) -> None:
    assert ItemLock(ITEM).take()
    descriptor, _ = item_lock._lock_file()
    other = os.open(os.devnull, os.O_RDWR)
    os.dup2(other, descriptor)  # it is another file now
    os.close(other)
    assert ItemLock(ITEM).take()
    assert not is_free(ITEM)


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="not a folder of this user alone: remove it, or set TMPDIR"):
        ItemLock(ITEM).take()


def test_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        ItemLock(ITEM).take()
