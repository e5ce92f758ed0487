"""The lock of an item that runs: one holder at a time on this host, whatever becomes of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from redrive.worker.item_lock import ItemLock, private_folder, remove_left


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    private_folder.cache_clear()
    yield tmp_path / f"redrive-{os.getuid()}"
    private_folder.cache_clear()


def test_lock_is_taken_by_one_at_a_time_and_leaves_no_file(folder: Path) -> None:
    one, other = ItemLock("item"), ItemLock("item")
    assert one.take()
    assert not other.take()
    assert ItemLock("another").take()
    one.release()
    assert other.take()
    other.release()
    assert not (folder / "item").exists()


def test_lock_is_free_for_others_though_a_copy_of_the_process_lives_on(folder: Path) -> None:
    one, other = ItemLock("item"), ItemLock("item")
    assert one.take()
    reads, writes = os.pipe()
    copy = os.fork()
    if copy == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    try:
        one.release()
        assert other.take()
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(copy, 0)


def test_lock_ends_with_its_holder_and_what_that_left_is_removed(folder: Path) -> None:
    holder = os.fork()
    if holder == 0:
        ItemLock("item").take()
        os._exit(0)
    os.waitpid(holder, 0)
    assert (folder / "item").exists()
    held = ItemLock("held")
    assert held.take()
    remove_left()
    assert os.listdir(folder) == ["held"]
    assert not ItemLock("held").take()


def test_folder_that_was_tidied_away_is_made_anew(folder: Path) -> None:
    assert ItemLock("item").take()
    (folder / "item").unlink()
    folder.rmdir()
    again = ItemLock("item")
    assert again.take()
    (folder / "item").unlink()
    again.release()
    assert ItemLock("item").take()


@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_folder_that_others_can_write_to_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="not a folder of this user alone: remove it, or set TMPDIR"):
        ItemLock("item").take()


def test_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError):
        ItemLock("item").take()
