"""Who can change a file, over every kind of owner, mode, group, folder and link."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from redrive.config.ownership import find_exposure

ANN, MALLORY, OF_ANN, STAFF = 1000, 1001, 1000, 50
FILE = "/home/ann/shop/redrive.toml"


class Tree:
    """Files that exist nowhere: each path with its owner, mode and group, or with its owner and where it leads."""

    def __init__(self) -> None:
        self.entries: dict[str, tuple[int, int | str, int]] = {
            "/": (0, stat.S_IFDIR | 0o755, 0),
            "/home": (0, stat.S_IFDIR | 0o755, 0),
            "/home/ann": (ANN, stat.S_IFDIR | 0o755, OF_ANN),
            "/home/ann/shop": (ANN, stat.S_IFDIR | 0o755, OF_ANN),
            FILE: (ANN, stat.S_IFREG | 0o644, OF_ANN),
            "/tmp": (0, stat.S_IFDIR | 0o1777, 0),
        }
        self.acls: set[str] = set()

    def has(self, path: str, owner: int, mode: int | str, group: int = OF_ANN) -> Tree:
        if isinstance(mode, int):
            mode |= stat.S_IFREG if path.endswith(".toml") else stat.S_IFDIR
        self.entries[path] = owner, mode, group
        return self

    def lstat(self, path: str) -> os.stat_result:
        if path not in self.entries:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        owner, mode, group = self.entries[path]
        bits = mode if isinstance(mode, int) else stat.S_IFLNK | 0o777
        return os.stat_result((bits, 0, 0, 1, owner, group, 0, 0, 0, 0))

    def readlink(self, path: str) -> str:
        target = self.entries[path][1]
        assert isinstance(target, str)
        return target

    def is_private(self, group: int, user: int) -> bool:
        return (group, user) in ((OF_ANN, ANN), (0, 0))

    def has_acl(self, path: str) -> bool:
        return path in self.acls

    def user(self, number: int) -> str:
        return {0: "root", ANN: "ann", MALLORY: "mallory"}[number]


def told(tree: Tree, file: str = FILE) -> str | None:
    return find_exposure(Path(file), user=ANN, files=tree)


@pytest.mark.parametrize(
    "tree",
    [
        Tree(),
        Tree().has(FILE, 0, 0o644, 0),
        Tree().has("/home/ann/shop", 0, 0o755, 0),
        Tree().has(FILE, ANN, 0o664, OF_ANN),
        Tree().has(FILE, 0, 0o664, OF_ANN),
        Tree().has("/home/ann/shop", ANN, 0o2775, OF_ANN),
        Tree().has("/home", 0, 0o1777, 0),
        Tree().has("/home", 0, 0o1775, STAFF),
        Tree().has("/home/ann/other.toml", ANN, 0o644).has(FILE, ANN, "../other.toml"),
        Tree().has("/home/ann/other.toml", ANN, 0o644).has(FILE, ANN, "/home/ann/./other.toml"),
        Tree().has("/tmp/redrive.toml", ANN, 0o600).has(FILE, ANN, "/tmp/redrive.toml"),
    ],
)
def test_file_that_only_the_caller_and_root_can_change_is_used(tree: Tree) -> None:
    assert told(tree) is None


@pytest.mark.parametrize(
    ("tree", "why"),
    [
        (Tree().has(FILE, MALLORY, 0o644), "belongs to mallory"),
        (Tree().has(FILE, ANN, 0o646), "can be written by every user"),
        (Tree().has(FILE, ANN, 0o664, STAFF), "can be written by the users of a group"),
        (Tree().has("/home/ann/shop", MALLORY, 0o755), "is behind /home/ann/shop, which belongs to mallory"),
        (Tree().has("/home/ann/shop", ANN, 0o777), "is behind /home/ann/shop, which can be written by every user"),
        (
            Tree().has("/home/ann", ANN, 0o775, STAFF),
            "is behind /home/ann, which can be written by the users of a group",
        ),
        (Tree().has("/home", MALLORY, 0o1777), "is behind /home, which belongs to mallory"),
        (Tree().has("/", MALLORY, 0o755), "is behind /, which belongs to mallory"),
        (Tree().has(FILE, MALLORY, "/home/ann/other.toml"), "belongs to mallory"),
        (Tree().has(FILE, ANN, "/tmp/other.toml").has("/tmp/other.toml", MALLORY, 0o600), "belongs to mallory"),
        (
            Tree().has(FILE, ANN, "/tmp/l/x.toml").has("/tmp/l", MALLORY, "/home/ann"),
            "is behind /tmp/l, which belongs to mallory",
        ),
        (
            Tree().has("/home/ann/shop", ANN, "../../tmp/shop").has("/tmp/shop", MALLORY, 0o755),
            "is behind /tmp/shop, which belongs to mallory",
        ),
        (Tree().has(FILE, ANN, "redrive.toml"), "is behind too many links"),
        (Tree().has(FILE, ANN, "nowhere.toml"), "cannot be checked: No such file or directory"),
    ],
)
def test_file_that_another_user_can_change_is_told(tree: Tree, why: str) -> None:
    assert told(tree) == why


def test_file_of_another_user_in_a_sticky_folder_is_told() -> None:
    assert told(Tree().has("/tmp/redrive.toml", MALLORY, 0o644), "/tmp/redrive.toml") == "belongs to mallory"
    assert told(Tree().has("/tmp/redrive.toml", ANN, 0o644), "/tmp/redrive.toml") is None


def test_access_list_counts_as_a_group_of_others() -> None:
    tree = Tree().has(FILE, ANN, 0o664, OF_ANN)
    tree.acls.add(FILE)
    assert told(tree) == "can be written by the users of a group"


def test_root_does_not_use_the_file_of_a_user() -> None:
    assert find_exposure(Path(FILE), user=0, files=Tree()) == "is behind /home/ann, which belongs to ann"


def test_system_without_owners_has_nothing_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "geteuid")
    assert find_exposure(Path("/no/such/file")) is None


# On this system


def test_own_file_is_used_and_one_that_every_user_can_write_is_not(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_text("")
    assert find_exposure(file) is None
    file.chmod(0o666)
    assert find_exposure(file) == "can be written by every user"
    file.chmod(0o600)
    tmp_path.chmod(0o777)
    assert find_exposure(file) == f"is behind {tmp_path}, which can be written by every user"
    tmp_path.chmod(0o1777)
    assert find_exposure(file) is None


def test_file_is_foreign_to_every_other_user(tmp_path: Path) -> None:
    file = tmp_path / "redrive.toml"
    file.write_text("")
    if os.geteuid() == 0:
        os.chown(file, 54_321, -1)
        assert find_exposure(file) == "belongs to user 54321"
    else:
        assert "belongs to" in str(find_exposure(file, user=os.geteuid() + 1))
