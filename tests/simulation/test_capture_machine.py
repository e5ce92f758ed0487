"""Random histories of a dead-letter queue, on every store: tasks and statistics are what naive rules say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from tests.servers.mounted import Mounts, Uncounted
from tests.simulation.capture_machine import CaptureMachine
from tests.sizes import THOROUGH

from redrive import Broker, connect, connect_async
from redrive.testing import FakeClock

EXAMPLES = {"memory": 40, "sqlite": 20, "postgres": 6, "redis": 6, "http": 5}
STEPS = 40
# Histories that did too little prove nothing: so many of these on average.
FLOORS = {"run": 0.3, "again": 0.3, "full": 0.2, "lost": 0.5}


@pytest.fixture
def mounts() -> Iterator[Mounts]:
    mounts = Mounts()
    yield mounts
    mounts.close()


@pytest.mark.parametrize("store", EXAMPLES)
@pytest.mark.timeout(3600 if THOROUGH else 300)
def test_tasks_and_statistics_are_what_naive_rules_say(
    store: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    examples = 25 * EXAMPLES[store] if THOROUGH else EXAMPLES[store]
    if store in ("postgres", "redis"):
        url: str = request.getfixturevalue(f"{store}_url")
    else:
        url = "memory://" if store == "memory" else f"sqlite:///{tmp_path}/calls.db"

    def opened(clock: FakeClock) -> Broker:
        if store != "http":
            return connect(url, clock=clock, maintenance=False, durability="relaxed")
        mounts: Mounts = request.getfixturevalue("mounts")
        served = mounts.mount(
            lambda namespace: connect_async(
                url, namespace=namespace, clock=Uncounted(clock), maintenance=False, redact=False
            )
        )
        return connect(served, clock=clock)

    tally: Counter[str] = Counter()

    class Machine(CaptureMachine):
        """On this store."""

        open_broker = staticmethod(opened)
        shares = store != "memory"

    Machine.tally = tally
    run_state_machine_as_test(
        Machine, settings=settings(max_examples=examples, stateful_step_count=STEPS, deadline=None)
    )
    rare = {name: tally[name] for name, floor in FLOORS.items() if tally[name] < floor * examples}
    assert not rare or examples < 20, f"of {examples} histories: {tally}"
