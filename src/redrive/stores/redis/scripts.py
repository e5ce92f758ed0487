"""The Lua scripts in `lua/`: each is read once, and runs on the server by the hash of its source."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files

_FOLDER = files(__package__).joinpath("lua")
_COMMIT_PARTS = ("start", "writes", "items", "put", "settle", "death", "complete", "lease", "run_calls")
"""Files of `lua/commit/`, in the order in which they are joined: each uses only what an earlier one defines."""


class Script:
    """A Lua script and the hash by which a server knows it."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        # Not for safety: the server computes the same hash.
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def read(cls, name: str, parts: Sequence[str] = ()) -> Script:
        """Return the script of the file `lua/NAME.lua`, or of these files in `lua/NAME/`, joined in this order."""
        paths = [f"{name}/{part}.lua" for part in parts] or [f"{name}.lua"]
        return cls(name, "\n".join(_FOLDER.joinpath(path).read_text(encoding="utf-8") for path in paths))

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


OPEN = Script.read("open")
"""Open a namespace, or create it."""
COMMIT = Script.read("commit", _COMMIT_PARTS)
"""Execute the calls of the fast path: puts, settled deliveries, promotions and leases."""
READ_COMMANDS = Script.read("read_commands")
"""Run commands that only read, all at one instant."""
READ_ITEMS = Script.read("read_items")
"""Read items with their histories, by number or by ranges of sorted sets."""
FIND_PREFIX = Script.read("find_prefix")
"""Find items by the first digits of their ids."""
WORKER_LEASES = Script.read("worker_leases")
"""Read the items that a worker has leased."""
EXAMINE = Script.read("examine")
"""Find items that are not whole, among the next members of an index."""
LOCK_ACQUIRE = Script.read("lock_acquire")
"""Take the lock of the namespace."""
LOCK_COMMIT = Script.read("lock_commit")
"""Write what the holder of the lock has prepared, and release the lock."""
LOCK_RELEASE = Script.read("lock_release")
"""Release the lock with nothing written."""
