"""Registrations: small named values, written with the current version, and removed at their timeout."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.clock import Instant
from redrive.contract.admin_calls import AuditNote, CreateQueue, Register, Registration, Unregister, VersionConflict
from redrive.contract.item_calls import LeaseItems, Put
from redrive.contract.maintenance_calls import ApplyRetention
from redrive.contract.queries import ListAudit, ListRegistrations
from redrive.errors import IdempotencyConflict, PayloadTooLarge, QueueFull, QueueNotFound, RedriveError
from redrive.model.duration import SECOND
from redrive.model.queue import QueueSettings
from redrive.testing.conformance.suite import OpenBroker, StoreDriver, StoreSuite, put

REFUSED_PUTS: list[tuple[type[RedriveError], tuple[Put, ...]]] = [
    (QueueNotFound, (put(b"a"), put(b"b", queue="nowhere"))),
    (QueueFull, (put(b"a"), put(b"b", b"c", queue="narrow"))),
    (QueueFull, (put(b"a"), put(b"b", queue="narrow"), put(b"c", queue="narrow"))),
    (IdempotencyConflict, (put(b"a"), put(b"other", idempotency_key="known"))),
    (PayloadTooLarge, (put(b"a"), put(b"too large", queue="tiny"))),
]


def named(direct: StoreDriver, kind: str = "worker", name: str | None = None) -> dict[str, bytes]:
    """Return the registrations by name and value."""
    found: tuple[Registration, ...] = direct.read(ListRegistrations(kind, name))
    return {each.name: each.value for each in found}


class RegistrationConformance(StoreSuite):
    """Registrations with a kind, a name, and a value."""

    def test_value_is_found_by_kind_and_name(self, direct: StoreDriver) -> None:
        written = direct.do(Register("worker", "w1", b"\x00\xff"))
        assert written == Registration("worker", "w1", b"\x00\xff", 1, direct.clock.now(), None)
        assert direct.read(ListRegistrations("worker")) == (written,)
        assert direct.read(ListRegistrations("worker", "w1")) == (written,)
        assert direct.read(ListRegistrations("worker", "w2")) == ()
        assert direct.read(ListRegistrations("schedule")) == ()

    def test_registrations_are_listed_by_name(self, direct: StoreDriver) -> None:
        names = ["b", "a", "é", "B", "Ω", "a b", "10", "9", "😀", "\uffff"]
        direct.commit(*[Register("worker", name, name.encode()) for name in names], Register("other", "c", b""))
        assert [each.name for each in direct.read(ListRegistrations("worker"))] == sorted(names)

    def test_next_value_takes_the_place_of_the_last_under_the_next_version(self, direct: StoreDriver) -> None:
        first = direct.do(Register("worker", "w1", b"one"))
        direct.clock.advance("1s")
        second = direct.do(Register("worker", "w1", b"two", timeout=5 * SECOND))
        assert (first.version, second.version) == (1, 2)
        assert (second.at, second.expires_at) == (direct.clock.now(), direct.clock.now() + 5 * SECOND)
        assert direct.read(ListRegistrations("worker")) == (second,)

    def test_kinds_of_registrations_do_not_meet(self, direct: StoreDriver) -> None:
        direct.commit(Register("worker", "x", b"1"), Register("schedule", "x", b"2"))
        assert direct.do(Unregister("worker", "x")) is True
        assert (named(direct), named(direct, "schedule")) == ({}, {"x": b"2"})

    def test_registrations_of_other_namespaces_are_not_seen(self, direct: StoreDriver, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        other = StoreDriver(open_broker("elsewhere").core.store, direct.clock)
        direct.do(Register("worker", "w1", b"here", timeout=SECOND))
        assert named(other) == {}
        assert other.do(Register("worker", "w1", b"there", version=0)).version == 1
        assert other.do(Unregister("worker", "w1")) is True
        assert named(direct) == {"w1": b"here"}

    def test_registration_is_there_for_other_processes(self, direct: StoreDriver, open_broker: OpenBroker) -> None:
        self.require("supports_processes")
        direct.do(Register("worker", "w1", b"x"))
        other = StoreDriver(open_broker().core.store, direct.clock)
        assert named(other) == {"w1": b"x"}
        assert other.do(Register("worker", "w1", b"y")).version == 2
        assert named(direct) == {"w1": b"y"}

    def test_unregistered_one_is_gone_and_twice_is_no_error(self, direct: StoreDriver) -> None:
        direct.do(Register("worker", "w1", b"x"))
        assert (direct.do(Unregister("worker", "w1")), direct.do(Unregister("worker", "w1"))) == (True, False)
        assert named(direct) == {}
        assert direct.do(Register("worker", "w1", b"x")).version == 1

    def test_what_is_noted_of_a_registration_is_in_the_audit(self, direct: StoreDriver) -> None:
        direct.do(Register("flag", "shop", b"x", version=0, audit=AuditNote("ann", "set_flag", "shop: on")))
        direct.do(Register("flag", "shop", b"y"))
        direct.clock.advance("1s")
        assert direct.do(Unregister("flag", "shop", AuditNote("bob", "remove_flag", "shop"))) is True
        revoked, created = direct.read(ListAudit())
        assert (created.actor, created.verb, created.note) == ("ann", "set_flag", "shop: on")
        assert (revoked.actor, revoked.verb, revoked.note) == ("bob", "remove_flag", "shop")
        assert (revoked.queue, revoked.ids, revoked.count) == (None, (), 0)
        assert revoked.at == direct.clock.now() == created.at + SECOND

    def test_registration_that_changes_nothing_is_not_in_the_audit(self, direct: StoreDriver) -> None:
        noted = AuditNote("ann", "set_flag")
        direct.do(Register("flag", "shop", b"x"))
        assert isinstance(direct.do(Register("flag", "shop", b"y", version=0, audit=noted)), VersionConflict)
        refused = Register("flag", "shop", b"y", puts=(put(b"1", queue="nowhere"),), audit=noted)
        assert isinstance(direct.do(refused), QueueNotFound)
        assert direct.do(Unregister("flag", "other", noted)) is False
        assert direct.read(ListAudit()) == ()

    def test_large_value_is_kept_whole(self, direct: StoreDriver) -> None:
        value = bytes(range(256)) * 256
        direct.do(Register("worker", "w1", value))
        assert named(direct) == {"w1": value}

    def test_registration_is_over_when_its_time_is(self, direct: StoreDriver) -> None:
        direct.do(Register("worker", "w1", b"x", timeout=10 * SECOND))
        direct.do(Register("worker", "w2", b"y"))
        direct.clock.advance("9.999999s")
        assert named(direct) == {"w1": b"x", "w2": b"y"}
        direct.clock.advance(0.000001)
        assert named(direct) == {"w2": b"y"}
        assert named(direct, name="w1") == {}
        assert direct.do(Unregister("worker", "w1")) is False

    def test_one_that_is_over_is_as_if_it_were_not_there(self, direct: StoreDriver) -> None:
        for cleaned in (False, True):
            direct.do(Register("worker", "w1", b"x", timeout=SECOND))
            assert direct.do(Register("worker", "w1", b"x", timeout=SECOND)).version == 2
            direct.clock.advance("1s")
            if cleaned:
                direct.do(ApplyRetention())
            assert direct.do(Register("worker", "w1", b"x", version=2)) == VersionConflict(None)
            assert direct.do(Register("worker", "w1", b"x", version=0, timeout=SECOND)).version == 1
            direct.do(Unregister("worker", "w1"))

    def test_new_time_is_the_one_that_counts(self, direct: StoreDriver) -> None:
        direct.do(Register("worker", "w1", b"x", timeout=10 * SECOND))
        direct.clock.advance("5s")
        direct.do(Register("worker", "w1", b"x", timeout=10 * SECOND))
        direct.clock.advance("5s")
        direct.do(ApplyRetention())
        assert named(direct) == {"w1": b"x"}
        direct.do(Register("worker", "w1", b"for ever"))
        direct.clock.advance("1d")
        direct.do(ApplyRetention())
        assert named(direct) == {"w1": b"for ever"}

    def test_cleaning_removes_registrations_that_are_over_a_bounded_number_at_a_time(self, direct: StoreDriver) -> None:
        direct.commit(*[Register("worker", f"w{n}", b"x", timeout=SECOND) for n in range(5)])
        direct.do(Register("worker", "stays", b"x", timeout=60 * SECOND))
        assert direct.do(ApplyRetention()) == 0
        direct.clock.advance("1s")
        assert [
            direct.do(ApplyRetention(limit=3)),
            direct.do(ApplyRetention(limit=3)),
            direct.do(ApplyRetention(limit=3)),
        ] == [3, 2, 0]
        assert named(direct) == {"stays": b"x"}


class OvertakenConformance(StoreSuite):
    """Of concurrent writers with the same version, one succeeds."""

    def test_version_that_is_there_is_followed_by_the_next(self, direct: StoreDriver) -> None:
        assert direct.do(Register("schedule", "nightly", b"1", version=0)).version == 1
        assert direct.do(Register("schedule", "nightly", b"2", version=1)).version == 2
        assert named(direct, "schedule") == {"nightly": b"2"}

    @pytest.mark.parametrize("version", [0, 1, 3])
    def test_any_other_version_was_overtaken(self, direct: StoreDriver, version: int) -> None:
        direct.do(Register("schedule", "nightly", b"1"))
        present = direct.do(Register("schedule", "nightly", b"2"))
        assert direct.do(Register("schedule", "nightly", b"3", version=version)) == VersionConflict(present)
        assert direct.read(ListRegistrations("schedule")) == (present,)

    def test_version_of_what_is_not_there_was_overtaken(self, direct: StoreDriver) -> None:
        assert direct.do(Register("schedule", "nightly", b"1", version=1)) == VersionConflict(None)
        assert named(direct, "schedule") == {}

    def test_of_two_in_one_batch_the_first_one_writes(self, direct: StoreDriver) -> None:
        first, second = direct.commit(
            *[Register("schedule", "nightly", value, version=0) for value in (b"1", b"2")]
        ).results
        assert second == VersionConflict(first)
        assert named(direct, "schedule") == {"nightly": b"1"}

    def test_overtaken_one_puts_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        ticks = [Register("schedule", "nightly", b"", version=0, puts=(put(b"tick"),)) for _ in range(3)]
        results = direct.commit(*ticks).results
        assert [type(result) for result in results] == [Registration, VersionConflict, VersionConflict]
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"tick"]

    def test_overtaken_one_says_so_though_its_puts_would_be_refused(self, direct: StoreDriver) -> None:
        present = direct.do(Register("schedule", "nightly", b"1"))
        tick = Register("schedule", "nightly", b"2", version=0, puts=(put(b"tick", queue="nowhere"),))
        assert direct.do(tick) == VersionConflict(present)


class RegistrationPutsConformance(StoreSuite):
    """Puts of items with a registration, in one transaction."""

    def test_items_are_put_with_it(self, direct: StoreDriver) -> None:
        direct.queue()
        direct.queue("mails")
        puts = (put(b"a", b"b"), put(b"later", delay=SECOND), put(b"c", queue="mails", priority=9))
        commit = direct.commit(Register("schedule", "nightly", b"1", puts=puts))
        assert commit.results[0].version == 1
        assert commit.arrivals["jobs"] >= 1
        assert commit.arrivals["mails"] == 1
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"a", b"b"]
        assert direct.take("mails").priority == 9
        assert (direct.stats().pending, direct.stats().put_total) == (1, 3)

    def test_known_key_puts_nothing_and_refuses_nothing(self, direct: StoreDriver) -> None:
        direct.queue()
        for version in (0, 1):
            tick = Register("schedule", "nightly", b"", version=version, puts=(put(b"tick", idempotency_key="t1"),))
            assert direct.do(tick).version == version + 1
        assert direct.stats().put_total == 1

    @pytest.mark.parametrize(("error", "puts"), REFUSED_PUTS, ids=lambda value: repr(value)[:50])
    def test_refused_put_refuses_the_registration(
        self, direct: StoreDriver, error: type[RedriveError], puts: tuple[Put, ...]
    ) -> None:
        direct.queue()
        direct.queue("narrow", max_size=1)
        direct.queue("tiny", max_payload_size=3)
        direct.put(b"first", idempotency_key="known")
        present = direct.do(Register("schedule", "nightly", b"1"))
        assert isinstance(direct.do(Register("schedule", "nightly", b"2", version=1, puts=puts)), error)
        assert isinstance(direct.do(Register("schedule", "nightly", b"2", puts=puts)), error)
        assert direct.read(ListRegistrations("schedule")) == (present,)
        assert [lease.payload for lease in direct.lease(limit=5)] == [b"first"]
        assert direct.stats("narrow").put_total == 0

    def test_they_come_after_plain_puts_and_before_leases_of_a_batch(self, direct: StoreDriver) -> None:
        commit = direct.commit(
            LeaseItems("jobs", 5),
            Register("schedule", "nightly", b"", puts=(put(b"tick"),)),
            put(b"plain"),
            CreateQueue("jobs", QueueSettings()),
        )
        assert [lease.payload for lease in commit.results[0].leases] == [b"plain", b"tick"]

    def test_given_instant_is_that_of_the_registration(self, direct: StoreDriver) -> None:
        later = Instant(direct.clock.now() + 5 * SECOND)
        registration: Any = direct.store.commit([Register("worker", "w1", b"x", timeout=SECOND)], now=later).results[0]
        assert (registration.at, registration.expires_at) == (later, later + SECOND)
