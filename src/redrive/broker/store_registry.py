"""The stores that a program knows by name: its own, and those that items move to and come from."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from redrive.errors import Closed, InvalidInput
from redrive.model.limits import check_name

if TYPE_CHECKING:
    from redrive.broker.core import Core

Opener = Callable[["StoreRegistry"], "Core"]
"""Opens a store: whatever it has to do with others, it does with the same table."""


class StoreRegistry:
    """All of them share this table. Each is opened when it is first needed, and one that cannot be keeps no other."""

    def __init__(self, openers: Mapping[str, Opener] | None = None) -> None:
        self._openers = dict(openers or {})
        self._open: dict[str, Core] = {}
        self._main: Core | None = None
        self._closed = False
        self.after_fork()

    def add(self, core: Core) -> None:
        """A store is open. The first one opened the table, and closes it."""
        if self._main is None:
            self._main = core
        self._open[core.store.name] = core

    def names(self) -> tuple[str, ...]:
        """The names of all stores that are known."""
        return tuple(sorted({*self._openers, *self._open}))

    def others(self, core: Core) -> tuple[str, ...]:
        """All but this one."""
        return tuple(name for name in self.names() if name != core.store.name)

    def is_known(self, name: str) -> bool:
        """Whether there is one of that name."""
        return name in self._openers or name in self._open

    def check(self, name: str) -> None:
        """Raise unless a store is known by that name."""
        if not self.is_known(name):
            known = ", ".join(self.names())
            raise InvalidInput(
                f"this program knows no store '{name}', only {known}; name it in connect(…, stores={{'{name}': 'URL'}})"
            )

    def at(self, name: str) -> Core:
        """The store of that name, opened if need be. Raises where it is not known, or cannot be opened."""
        name = check_name("store", name)
        self.check(name)
        with self._locks[name]:
            core = self._open.get(name)
            if core is None or (core.is_closed and name in self._openers):
                if self._closed:
                    raise Closed
                core = self._openers[name](self)
                if self._closed:
                    core.close()
                    raise Closed
        return core

    def close(self, main: Core) -> None:
        """Close all that were opened by the table, if it is the one who opened it that closes."""
        if main is not self._main:
            return
        self._closed = True
        for name, core in list(self._open.items()):
            if core is not main:
                with self._locks[name]:
                    core.close()

    def after_fork(self) -> None:
        """Nobody holds a lock in a forked child."""
        self._locks = _Locks()


class _Locks(dict[str, threading.Lock]):
    """A lock for each store: who waits for one that does not answer keeps nobody from another."""

    def __init__(self) -> None:
        super().__init__()
        self._making = threading.Lock()

    def __missing__(self, name: str) -> threading.Lock:
        with self._making:
            return self.setdefault(name, threading.Lock())
