"""Which files of a program changed, for `--reload`. Told by their times, which works everywhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})
MAX_FILES = 20_000
"""More are not looked at: then the folder is not that of a program."""


class Sources:
    """The Python files below a folder, without those of packages that were installed there, and hidden ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = dict(self._look())

    def changed(self) -> Path | None:
        """A file that was changed, added or removed since the last time this was asked. None where none was."""
        now = dict(self._look())
        before, self._seen = self._seen, now
        different = now.items() ^ before.items()
        return Path(min(path for path, _ in different)) if different else None

    def _look(self) -> Iterator[tuple[str, int]]:
        found = 0
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if not name.startswith(".") and name not in _PASSED_OVER]
            for name in files:
                if not name.endswith(".py"):
                    continue
                path = os.path.join(folder, name)
                try:
                    yield path, os.stat(path).st_mtime_ns
                except OSError:  # removed meanwhile
                    continue
                found += 1
                if found == MAX_FILES:
                    return
