"""The same random calls on every store, one after the other: every answer must be the same.

The state machine beside this compares stores with naive rules; this compares them with each other, in every detail
that a caller can see. Ids and tokens differ between stores, so they are renamed in the order in which they appear.
A seed that finds a difference prints the last calls; run it alone with `-k "[STORE-SEED]"`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.simulation.histories import STEPS_OF_ENDS, random_history
from tests.simulation.twins import Twins, opens
from tests.sizes import THOROUGH

from redrive import Status
from redrive.model.filter import Filter
from redrive.testing.conformance.plan_subjects import assert_subjects_say_what_items_say

SEEDS = 1_000 if THOROUGH else 20
SEEDS_OF_ENDS = 1_000 if THOROUGH else 12
EVERY = 20
"""After how many answers all that plans read is compared with whole items."""


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_answer_is_the_same(seed: int, url: str) -> None:
    twins = Twins(seed, opens("memory://"), opens(url))

    def look_at_plans() -> None:
        if len(twins.log) % EVERY == 0:
            for broker in twins.brokers:
                for status in (None, Status.DEAD, Status.ARCHIVED):
                    assert_subjects_say_what_items_say(broker.core.store, Filter(status=status), limit=7)

    random_history(twins, look_at_plans)


@pytest.mark.parametrize("seed", range(SEEDS_OF_ENDS))
def test_calls_take_effect_in_the_order_of_their_batch(seed: int, url: str) -> None:
    """Also beside those that a store leaves to another transaction."""
    random_history(Twins(seed, opens("memory://"), opens(url)), steps=STEPS_OF_ENDS)
