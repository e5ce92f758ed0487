"""The stores that a program knows by name: its own, and those that it exchanges items with."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from redrive.errors import Closed, InvalidInput
from redrive.model.limits import check_name

if TYPE_CHECKING:
    from redrive.broker.core import Core

Opener = Callable[["StoreRegistry"], "Core"]
"""A function that opens a store with this registry, which it uses for all other stores."""


class StoreRegistry:
    """The registry that all stores of a program share. Each is opened at its first use, independently of the others."""

    def __init__(self, openers: Mapping[str, Opener] | None = None) -> None:
        self._openers = dict(openers or {})
        self._open: dict[str, Core] = {}
        self._main: Core | None = None
        self._closed = False
        self.after_fork()

    def add(self, core: Core) -> None:
        """Add an open store. The first one is the main store, whose close closes all."""
        if self._main is None:
            self._main = core
        self._open[core.store.name] = core

    def names(self) -> tuple[str, ...]:
        """Return the names of all known stores."""
        return tuple(sorted({*self._openers, *self._open}))

    def others(self, core: Core) -> tuple[str, ...]:
        """Return the names of all known stores except this one."""
        return tuple(name for name in self.names() if name != core.store.name)

    def place_of(self, name: str) -> tuple[str, str] | None:
        """Return the place of a store, with its namespace; None if it is not open."""
        core = self._open.get(name)
        return None if core is None else core.place

    def is_known(self, name: str) -> bool:
        """Return whether a store of that name is known."""
        return name in self._openers or name in self._open

    def check(self, name: str) -> None:
        """Raise unless a store is known by that name."""
        if not self.is_known(name):
            known = ", ".join(self.names())
            raise InvalidInput(
                f"this program knows no store '{name}', only {known}; name it in connect(…, stores={{'{name}': 'URL'}})"
                f" or under [stores] in the redrive.toml that has the url of this store"
            )

    def at(self, name: str) -> Core:
        """Return the store of that name, opened if necessary. Raises if it is unknown, or cannot be opened."""
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
        """Close all other stores if `main` is the main store; otherwise do nothing."""
        if main is not self._main:
            return
        self._closed = True
        for name, core in list(self._open.items()):
            if core is not main:
                with self._locks[name]:
                    core.close()

    def after_fork(self) -> None:
        """Replace the locks, which no thread of a forked child holds."""
        self._locks = _Locks()


class _Locks(dict[str, threading.Lock]):
    """A lock for each store: a caller that waits for one that does not answer does not block others."""

    def __init__(self) -> None:
        super().__init__()
        self._making = threading.Lock()

    def __missing__(self, name: str) -> threading.Lock:
        with self._making:
            return self.setdefault(name, threading.Lock())
