"""Every place where an item can be: each function takes one there that is pending in `jobs`."""

from __future__ import annotations

from collections.abc import Callable

from redrive import Broker
from redrive.model.ids import ItemId
from redrive.testing.conformance.actions import take
from redrive.testing.fake_clock import FakeClock

Journey = Callable[[Broker, FakeClock, ItemId], None]


def create_queues(broker: Broker) -> None:
    """The queues that the journeys go through."""
    broker.create_queue("morgue")
    broker.create_queue("mails")
    broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"}, expire_timeout="90m", lease_timeout="1m")


# It is there


def pending(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It stays there."""
    assert broker.get(id).status == "pending"


def failed(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It waits for its next attempt."""
    broker.fail(take(broker), "boom")


def failed_and_due(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It failed, and its next attempt is due."""
    failed(broker, clock, id)
    clock.advance("30s")
    broker.run_maintenance()


def scheduled(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """A worker gave it back for later."""
    broker.release(take(broker), delay="5m")


def held(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It is kept from being leased."""
    broker.hold(id, "breaker")


def active(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """A worker holds it."""
    take(broker)


def active_past_its_deadline(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Its lease ran out, and no sweep was there yet."""
    take(broker)
    clock.advance("2m")


def expired_and_not_swept(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It expired, and no sweep was there yet."""
    clock.advance("2h")


def dead_by_expiry(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died because it expired."""
    clock.advance("2h")
    broker.run_maintenance()


def dead(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died in place."""
    broker.fail(take(broker), "boom", final=True)


def in_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died, and lies in the dead queue."""
    broker.update_queue("jobs", dead_queue="morgue")
    dead(broker, clock, id)


def active_in_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died, and a worker of the dead queue holds it."""
    in_a_dead_queue(broker, clock, id)
    take(broker, "morgue")


def archived(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died, and was put aside."""
    dead(broker, clock, id)
    broker.archive(id)


def restored(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It was put aside, and is dead again."""
    archived(broker, clock, id)
    broker.restore(id)


def redriven(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died in place, and was brought back."""
    dead(broker, clock, id)
    broker.redrive(id)


def redriven_from_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It was brought back to where it died."""
    in_a_dead_queue(broker, clock, id)
    broker.redrive(id)


def redriven_to_another_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It was brought back to a queue that it never was in."""
    in_a_dead_queue(broker, clock, id)
    broker.redrive(id, to="mails")


def moved(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """A person took it to another queue."""
    broker.move(id, "mails")


THERE: tuple[Journey, ...] = (
    pending,
    failed,
    failed_and_due,
    scheduled,
    held,
    active,
    active_past_its_deadline,
    expired_and_not_swept,
    dead_by_expiry,
    dead,
    in_a_dead_queue,
    active_in_a_dead_queue,
    archived,
    restored,
    redriven,
    redriven_from_a_dead_queue,
    redriven_to_another_queue,
    moved,
)
"""Journeys that end in this store, before the work is done."""


# It is completed, or gone


def completed(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It is done and removed."""
    broker.complete(take(broker))


def completed_and_kept(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It is done and kept."""
    broker.update_queue("jobs", keep_completed="7d")
    completed(broker, clock, id)


def completed_and_cleaned(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It is done, and was kept for a while."""
    broker.update_queue("jobs", keep_completed="1m")
    completed(broker, clock, id)
    clock.advance("1h")
    broker.run_maintenance()


def done_by_hand(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """A person said that it is done, and it is kept."""
    broker.update_queue("jobs", keep_completed="7d")
    broker.complete_items(id)


def completed_in_another_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It is done in a queue that a person took it to."""
    moved(broker, clock, id)
    broker.complete(take(broker, "mails"))


def kept_in_another_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It is done in a queue that a person took it to, and kept there."""
    broker.update_queue("mails", keep_completed="7d")
    completed_in_another_queue(broker, clock, id)


def completed_in_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died, and a worker of the dead queue completed it."""
    in_a_dead_queue(broker, clock, id)
    broker.complete(take(broker, "morgue"))


def dropped(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """A person dropped it."""
    broker.drop(id)


def dropped_while_active(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """A person dropped it while a worker held it."""
    take(broker)
    broker.drop(id, force=True)


def dropped_at_its_death(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died in a queue that keeps no dead."""
    broker.update_queue("jobs", on_dead="drop")
    dead(broker, clock, id)


def purged(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It was put aside, and a person removed it."""
    archived(broker, clock, id)
    broker.purge(id)


def dead_and_cleaned(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It died, and was kept for a while."""
    broker.update_queue("jobs", keep_dead="1m")
    dead(broker, clock, id)
    clock.advance("1h")
    broker.run_maintenance()


def deleted_with_its_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """It was removed with the queue that a person took it to."""
    moved(broker, clock, id)
    broker.delete_queue("mails", confirm=1)


DROPPED: tuple[Journey, ...] = (dropped, dropped_while_active)
"""Journeys after which it can be restored, and its key is free."""
GONE: tuple[Journey, ...] = (
    completed,
    completed_and_kept,
    completed_and_cleaned,
    done_by_hand,
    completed_in_another_queue,
    kept_in_another_queue,
    completed_in_a_dead_queue,
    *DROPPED,
    dropped_at_its_death,
    purged,
    dead_and_cleaned,
    deleted_with_its_queue,
)
"""Journeys after which there is no such work any more."""
