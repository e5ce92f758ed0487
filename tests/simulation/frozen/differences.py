"""Random histories on the frozen store and on another one, which must answer the same."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.simulation.frozen.frozen_store import FrozenProcess, FrozenStore
from tests.simulation.histories import random_history
from tests.simulation.rows import all_rows
from tests.simulation.twins import ELSEWHERE, Opener, Twins, opens

from redrive import Broker
from redrive.broker.core import Core
from redrive.broker.store_registry import StoreRegistry
from redrive.stores.memory import MemoryStore
from redrive.testing import FakeClock

EVERY = 20
"""After so many steps all rows are compared, where both stores have rows."""


def opens_frozen(process: FrozenProcess, path: Path) -> Opener:
    """A broker on the frozen store, as `opens` gives one on any other."""

    def open_one(clock: FakeClock) -> Broker:
        stores = StoreRegistry({ELSEWHERE: lambda table: core(MemoryStore(clock, name=ELSEWHERE), table)})
        return Broker(core(FrozenStore(process, path, clock, "here"), stores))

    def core(store: MemoryStore | FrozenStore, table: StoreRegistry) -> Core:
        return Core(store, actor="me", maintenance=False, stores=table)

    return open_one


def compare(process: FrozenProcess, seed: int, url: str) -> None:
    """One history. Raises at the first difference. An empty `url` means a SQLite file, whose rows are compared too."""
    with tempfile.TemporaryDirectory(prefix="redrive-") as folder:
        paths = [Path(folder, "frozen.db"), Path(folder, "current.db")]
        twins = Twins(seed, opens_frozen(process, paths[0]), opens(url or f"sqlite:///{paths[1]}"))
        steps = 0

        def compare_rows() -> None:
            nonlocal steps
            steps += 1
            if not url and steps % EVERY == 0:
                twins.ask("rows", lambda side, _: all_rows(paths[side]))

        random_history(twins, compare_rows)
        if not url:
            twins.ask("rows", lambda side, _: all_rows(paths[side]))
