"""The Lua scripts in `lua/`: each is read once, and runs on the server by the hash of its source."""

from __future__ import annotations

import hashlib
from importlib.resources import files

_FOLDER = files(__package__).joinpath("lua")


class Script:
    """A Lua script and the hash by which a server knows it."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        # Not for safety: the server computes the same hash.
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def read(cls, name: str) -> Script:
        """Return the script of the file `lua/NAME.lua`."""
        return cls(name, _FOLDER.joinpath(f"{name}.lua").read_text(encoding="utf-8"))

    def __repr__(self) -> str:
        return f"Script({self.name!r})"


OPEN = Script.read("open")
"""Open a namespace, or create it."""
COMMIT = Script.read("commit")
"""Execute the calls of the fast path: puts, settled deliveries, promotions and leases."""
READ_COMMANDS = Script.read("read_commands")
"""Run commands that only read, all at one instant."""
READ_ITEMS = Script.read("read_items")
"""Read items with their histories, by number or by ranges of sorted sets."""
WORKER_LEASES = Script.read("worker_leases")
"""Read the items that a worker has leased."""
LOCK_ACQUIRE = Script.read("lock_acquire")
"""Take the lock of the namespace."""
LOCK_COMMIT = Script.read("lock_commit")
"""Write what the holder of the lock has prepared, and release the lock."""
LOCK_RELEASE = Script.read("lock_release")
"""Release the lock with nothing written."""
