"""Whoever is let into some queues neither changes nor sees anything of others, whatever calls he makes.

He knows all ids, tokens and names there are, which is more than anybody should.
"""

from __future__ import annotations

import logging
from collections import Counter
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.access.world import FOREIGN, OWN, SECRET, World, limited
from tests.simulation.hostile import Mischief
from tests.sizes import THOROUGH

from redrive import RedriveError
from redrive.auth.principal import Role
from redrive.contract import Call
from redrive.contract.admin_calls import Register
from redrive.contract.queries import FindItems, GetOperation, GetResult, ListRegistrations
from redrive.model.filter import Filter
from redrive.model.ids import ItemId
from redrive.wire.result_codec import encode, encode_results

RUNS, STEPS = (300, 500) if THOROUGH else (5, 250)
COMMITTED = get_args(Call)
QUEUES = tuple(f"{side}-{name}" for side in (OWN, FOREIGN) for name in ("jobs", "dead", "third"))


class Attempt:
    """One caller with one role in queues of his own, who tries everything."""

    def __init__(self, role: Role, random: Random, tally: Counter[str]) -> None:
        self.world, self.tally, self.role = World(), tally, role
        self.principal = limited(role)
        self.mischief = Mischief(random, QUEUES)
        self.mischief.now = self.world.clock.now()
        sides = self.world.sides.values()
        self.mischief.ids = [
            id for side in sides for id in (side.id, side.active_id, side.letter_id, side.done_id, side.gone_id)
        ]
        self.mischief.tokens = [side.token for side in sides]
        self.mischief.operations = [id for side in sides for id in (side.operation, side.purge)]
        self.mischief.versions = [queue.version for queue in self.world.broker.list_queues()]
        own = self.world.sides[OWN]
        self.mischief.items = [self.world.broker.get(id) for id in (own.id, own.letter_id, own.done_id)]
        self.before = self.of_others()

    def of_others(self) -> Any:
        """Everything there is in queues of others."""
        read, side = self.world.broker.core.read, self.world.sides[FOREIGN]
        names = [queue for queue in QUEUES if queue.startswith(FOREIGN)]
        return (
            [queue for queue in self.world.broker.list_queues() if queue.name in names],
            [self.world.broker.stats(name) for name in names],
            [read(FindItems(Filter(status=None, queue=name), limit=1000)) for name in names],
            [read(GetOperation(id)) for id in (side.operation, side.purge)],
            [read(GetResult(ItemId(id))) for id in (side.done_id, side.gone_id)],
            [each for each in read(ListRegistrations("schedule")) if each.name.startswith(FOREIGN)],
            [each for each in read(ListRegistrations("managed")) if each.name.startswith(FOREIGN)],
        )

    def attack(self) -> None:
        call = self.mischief.call()
        if isinstance(call, Register) and call.kind not in ("worker", "schedule"):
            return
        (made,) = self.world.authorize(self.principal, call)
        result = self.carried_out(made)
        if isinstance(result, RedriveError):
            self.tally["refused"] += 1
            assert SECRET not in str(result)
            return
        self.tally["let in"] += 1
        shown = self.world.shown(self.principal, call, result)
        said = encode(encode_results((call,), (shown,)) if isinstance(call, COMMITTED) else shown)
        assert f"{SECRET} {FOREIGN}".encode() not in said, call
        # An admin can write names of others into settings of his own; and everybody is told what he said himself.
        if self.role is not Role.ADMIN and "foreign-" not in repr(call):
            assert b"foreign-" not in said, (call, shown)

    def carried_out(self, call: Any) -> Any:
        if isinstance(call, RedriveError):
            return call
        core = self.world.broker.core
        if isinstance(call, COMMITTED):
            return core.store.commit([call]).results[0]
        try:
            return core.read(call)
        except RedriveError as refusal:
            return refusal

    def run(self) -> None:
        try:
            for step in range(STEPS):
                self.attack()
                if step % 25 == 0:
                    assert self.of_others() == self.before
            assert self.of_others() == self.before
        finally:
            self.world.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("role", Role)
def test_what_is_others_is_neither_changed_nor_seen(role: Role, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    tally: Counter[str] = Counter()

    @given(seed=st.integers(0, 2**32))
    @hypothesis_settings(max_examples=RUNS, deadline=None)
    def runs(seed: int) -> None:
        Attempt(role, Random(seed), tally).run()

    runs()
    assert tally["refused"] > RUNS * STEPS / 10, tally
    assert tally["let in"] > RUNS * STEPS / 100, tally
