"""Lua that the server runs: read from the file beside this one, and asked for by its hash."""

from __future__ import annotations

import hashlib
from importlib.resources import files


class Script:
    """One Lua file of this package."""

    def __init__(self, name: str, source: str) -> None:
        self.name = name
        self.source = source
        # Not for safety: it is the name by which the server knows a script.
        self.sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()

    @classmethod
    def read(cls, name: str) -> Script:
        """The script of the file NAME.lua."""
        return cls(name, files(__package__).joinpath(f"{name}.lua").read_text(encoding="utf-8"))

    def __repr__(self) -> str:
        return f"Script({self.name!r})"
