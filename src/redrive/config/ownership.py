"""Detection of users who can change a file: its owner, and every user who may write to it or to a folder above it.

A redrive.toml decides which commands run and where secrets are sent, so one that was found automatically is used only
if no user except the caller and root can change it. On systems without owners of files nothing is checked.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

ROOT = 0
MAX_LINKS = 40
"""The number of symbolic links that operating systems follow."""
_ACL = "system.posix_acl_access"


class Files(Protocol):
    """Access to files and users, which tests replace."""

    def lstat(self, path: str) -> os.stat_result:
        """Return the status as `os.lstat` does: of a link, the link itself."""

    def readlink(self, path: str) -> str:
        """Return the target of a link as `os.readlink` does."""

    def is_private(self, group: int, user: int) -> bool:
        """Return whether that user is the only member of the group."""

    def has_acl(self, path: str) -> bool:
        """Return whether an access list gives rights to others; then the group bits of the mode are their mask."""

    def user(self, number: int) -> str:
        """Return the name of a user."""


def caller() -> int | None:
    """Return the effective user of this process; None on a system without owners of files."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def find_exposure(file: Path, *, user: int | None = None, files: Files | None = None) -> str | None:
    """Return why another user can change the content of a file, as the end of a sentence about it; None if none can.

    Every folder and every link of the path counts: users who may write to a folder can replace its entries, unless the
    folder is sticky, as /tmp is: then only the owner of an entry can. user: the trusted user, by default the caller.
    """
    user = caller() if user is None else user
    if user is None:
        return None
    files = files or _System()
    trusted = (user, ROOT)
    place, left, links = os.sep, _names(str(file)), 0
    try:
        exposure = _exposure(place, not left, trusted, files)
        while left and exposure is None:
            name = left.pop()
            if name == os.pardir:
                place = os.path.dirname(place)
                continue
            entry = os.path.join(place, name)
            if not stat.S_ISLNK(files.lstat(entry).st_mode):
                place, exposure = entry, _exposure(entry, not left, trusted, files)
                continue
            links += 1
            exposure = _exposure(entry, not left, trusted, files) if links <= MAX_LINKS else "is behind too many links"
            target = files.readlink(entry)
            left += _names(target)
            place = os.sep if os.path.isabs(target) else place
    except OSError as error:
        return f"cannot be checked: {error.strerror}"
    return exposure


def owner_of(file: Path) -> int | None:
    """Return the owner of a file, or of the target of a link; None if there is none."""
    with contextlib.suppress(OSError):
        return file.stat().st_uid if caller() is not None else None
    return None


def _names(path: str) -> list[str]:
    """Return the parts of a path, the last one first."""
    return [name for name in reversed(path.split(os.sep)) if name not in ("", os.curdir)]


def _exposure(entry: str, is_last: bool, trusted: Collection[int], files: Files) -> str | None:
    found = files.lstat(entry)
    subject = "" if is_last else f"is behind {entry}, which "
    if found.st_uid not in trusted:
        return f"{subject}belongs to {files.user(found.st_uid)}"
    if stat.S_ISLNK(found.st_mode) or (stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX):
        return None
    if found.st_mode & stat.S_IWOTH:
        return f"{subject}can be written by every user"
    if found.st_mode & stat.S_IWGRP and (
        files.has_acl(entry) or not any(files.is_private(found.st_gid, user) for user in trusted)
    ):
        return f"{subject}can be written by the users of a group"
    return None


class _System:
    """The files and users of this system."""

    lstat = staticmethod(os.lstat)
    readlink = staticmethod(os.readlink)

    def is_private(self, group: int, user: int) -> bool:
        import grp
        import pwd

        try:
            owner, members = pwd.getpwuid(user), grp.getgrgid(group).gr_mem
        except KeyError:
            return False
        return (
            owner.pw_gid == group
            and set(members) <= {owner.pw_name}
            and all(other.pw_uid == user for other in pwd.getpwall() if other.pw_gid == group)
        )

    def has_acl(self, path: str) -> bool:
        try:
            return bool(os.getxattr(path, _ACL))
        except (AttributeError, OSError):  # no access lists on this system, or none on this file
            return False

    def user(self, number: int) -> str:
        import pwd

        try:
            return pwd.getpwuid(number).pw_name
        except KeyError:
            return f"user {number}"
