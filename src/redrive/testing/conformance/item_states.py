"""Every state of an item: each function takes an item there that is pending in `jobs`."""

from __future__ import annotations

from collections.abc import Callable

from redrive import Broker
from redrive.model.ids import ItemId
from redrive.testing.conformance.actions import take
from redrive.testing.fake_clock import FakeClock

Journey = Callable[[Broker, FakeClock, ItemId], None]


def create_queues(broker: Broker) -> None:
    """Create the queues of the journeys."""
    broker.create_queue("morgue")
    broker.create_queue("mails")
    broker.create_queue("jobs", retry={"attempts": 3, "cooldown": "30s"}, expire_timeout="90m", lease_timeout="1m")


# The item exists and its work is not done.


def pending(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Leave the item pending."""
    assert broker.get(id).status == "pending"


def failed(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Fail the item, so that it waits for its next attempt."""
    broker.fail(take(broker), "boom")


def failed_and_due(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Fail the item, and let its next attempt be due."""
    failed(broker, clock, id)
    clock.advance("30s")
    broker.run_maintenance()


def scheduled(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Release the item with a delay."""
    broker.release(take(broker), delay="5m")


def held(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Hold the item."""
    broker.hold(id, "breaker")


def active(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Lease the item."""
    take(broker)


def active_past_its_deadline(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the lease of the item expire, without a sweep."""
    take(broker)
    clock.advance("2m")


def expired_and_not_swept(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item expire, without a sweep."""
    clock.advance("2h")


def dead_by_expiry(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die by expiry."""
    clock.advance("2h")
    broker.run_maintenance()


def dead(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die in place."""
    broker.fail(take(broker), "boom", final=True)


def in_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die and move to the dead queue."""
    broker.update_queue("jobs", dead_queue="morgue")
    dead(broker, clock, id)


def active_in_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die and move to the dead queue, and lease it there."""
    in_a_dead_queue(broker, clock, id)
    take(broker, "morgue")


def archived(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die, and archive it."""
    dead(broker, clock, id)
    broker.archive(id)


def restored(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die, archive it, and restore it."""
    archived(broker, clock, id)
    broker.restore(id)


def redriven(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die in place, and redrive it."""
    dead(broker, clock, id)
    broker.redrive(id)


def redriven_from_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Redrive the item from the dead queue to the queue in which it died."""
    in_a_dead_queue(broker, clock, id)
    broker.redrive(id)


def redriven_to_another_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Redrive the item to a queue in which it never was."""
    in_a_dead_queue(broker, clock, id)
    broker.redrive(id, to="mails")


def moved(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Move the item to another queue."""
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
"""Journeys after which the item is in this store and its work is not done."""


# The item is completed, or does not exist any more.


def completed(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Complete and remove the item."""
    broker.complete(take(broker))


def completed_and_kept(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Complete and keep the item."""
    broker.update_queue("jobs", keep_completed="7d")
    completed(broker, clock, id)


def completed_and_cleaned(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Complete the item, and let its retention end."""
    broker.update_queue("jobs", keep_completed="1m")
    completed(broker, clock, id)
    clock.advance("1h")
    broker.run_maintenance()


def done_by_hand(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Complete the item manually, and keep it."""
    broker.update_queue("jobs", keep_completed="7d")
    broker.complete_items(id)


def completed_in_another_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Move the item to another queue, and complete it there."""
    moved(broker, clock, id)
    broker.complete(take(broker, "mails"))


def kept_in_another_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Move the item to another queue, and complete and keep it there."""
    broker.update_queue("mails", keep_completed="7d")
    completed_in_another_queue(broker, clock, id)


def completed_in_a_dead_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die and move to the dead queue, and complete it there."""
    in_a_dead_queue(broker, clock, id)
    broker.complete(take(broker, "morgue"))


def dropped(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Drop the item."""
    broker.drop(id)


def dropped_while_active(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Drop the item while it is leased."""
    take(broker)
    broker.drop(id, force=True)


def dropped_at_its_death(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die in a queue that drops dead items."""
    broker.update_queue("jobs", on_dead="drop")
    dead(broker, clock, id)


def purged(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Archive and purge the item."""
    archived(broker, clock, id)
    broker.purge(id)


def dead_and_cleaned(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Let the item die, and let its retention end."""
    broker.update_queue("jobs", keep_dead="1m")
    dead(broker, clock, id)
    clock.advance("1h")
    broker.run_maintenance()


def deleted_with_its_queue(broker: Broker, clock: FakeClock, id: ItemId) -> None:
    """Move the item to another queue, and delete that queue."""
    moved(broker, clock, id)
    broker.delete_queue("mails", confirm=1)


DROPPED: tuple[Journey, ...] = (dropped, dropped_while_active)
"""Journeys after which the item can be restored, and its key is free."""
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
"""Journeys after which the work is done, or the item does not exist any more."""
