"""Bugs that are planted in the rules, under a store in SQL: each is found by a test of the conformance suite.

There is one for each part of the contract that had its own statements before, and for the rows that the rules write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from redrive import Broker, connect
from redrive.contract.admin_calls import StepOperation
from redrive.contract.item_calls import Settle
from redrive.errors import RedriveError
from redrive.stores.relational import record_rows, rule_execution, verdicts
from redrive.stores.relational.batch import Batch
from redrive.stores.relational.records import RecordReader
from redrive.stores.relational.state import SqlState
from redrive.stores.rules import archive, leases, maintenance, manual_changes, redrive, replies
from redrive.stores.rules.dispatch import CALL_RULES
from redrive.stores.rules.operations import get_operation
from redrive.stores.rules.puts import PutPlan
from redrive.testing.conformance.archive import ArchiveCallsConformance, ArchiveOfAnyConformance
from redrive.testing.conformance.batches import BatchConformance
from redrive.testing.conformance.drops import DropByHandConformance
from redrive.testing.conformance.export_import import SourceConformance
from redrive.testing.conformance.lease_by_id import LeaseByIdRefusals
from redrive.testing.conformance.leased_dead_letters import LeasedDeadLetterConformance
from redrive.testing.conformance.maintenance import RetentionOfTheDeadConformance
from redrive.testing.conformance.operations import StepConformance
from redrive.testing.conformance.redrive_and_undo import RedriveFromDeadQueueConformance, UndoConformance
from redrive.testing.conformance.replies import ReplyConformance
from redrive.testing.conformance.suite import StoreDriver
from redrive.testing.fake_clock import FakeClock

Plant = Callable[[pytest.MonkeyPatch], None]
FOUND = (AssertionError, RedriveError, pytest.fail.Exception)


class Place(NamedTuple):
    """A store in SQLite, as tests of the suite take it."""

    broker: Broker
    direct: StoreDriver
    clock: FakeClock


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    clock = FakeClock()
    with connect(f"sqlite:///{tmp_path}/jobs.db", clock=clock, maintenance=False) as broker:
        yield Place(broker, StoreDriver(broker.core.store, clock), clock)


def nothing(*args: Any, **kwargs: Any) -> None:
    """What is forgotten."""


def replaced(where: Any, name: str, by: Any) -> Plant:
    return lambda monkeypatch: monkeypatch.setattr(where, name, by)


def renumber_only(batch: Any, item: Any, stored: Any, row: Any) -> None:
    verdicts.renumber(batch, stored.item_no, row, item.source_id, item.origin_id, item.origin_queue, keeps_home=False)


def make_the_step_again(monkeypatch: pytest.MonkeyPatch) -> None:
    step = CALL_RULES[StepOperation]

    def ignore_its_number(state: Any, call: Any) -> Any:
        return step(state, msgspec.structs.replace(call, steps=get_operation(state, call.id).steps))

    monkeypatch.setattr(Batch, "has_lanes", False)
    monkeypatch.setitem(CALL_RULES, StepOperation, ignore_its_number)


def take_any_version(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = CALL_RULES[Settle]

    def by_the_version_of_now(state: Any, call: Any) -> Any:
        queue = state.queues[state.leased(call.token).queue].value
        return settle(state, msgspec.structs.replace(call, version=queue.version))

    monkeypatch.setitem(CALL_RULES, Settle, by_the_version_of_now)


BUGS: dict[str, tuple[Plant, Callable[[Place], None]]] = {
    "an archived item does not know what it was": (
        replaced(record_rows, "_fill_archived", nothing),
        lambda p: ArchiveCallsConformance().test_retention_takes_no_more_than_it_may(p.direct),
    ),
    "a dropped item takes its key with it": (
        replaced(archive, "_keep_free", nothing),
        lambda p: ArchiveOfAnyConformance().test_key_of_a_completed_item_stays_free(p.broker),
    ),
    "an item comes back without its history": (
        replaced(record_rows, "_write_history", nothing),
        lambda p: UndoConformance().test_item_is_dead_again_as_it_was(p.broker, p.clock),
    ),
    "a history is not read": (
        replaced(RecordReader, "history_of", lambda self, number: []),
        lambda p: UndoConformance().test_item_is_dead_again_as_it_was(p.broker, p.clock),
    ),
    "a death is not written down": (
        replaced(verdicts, "record_death", nothing),
        lambda p: RedriveFromDeadQueueConformance().test_second_death_of_a_redriven_item_moves_again(p.broker),
    ),
    "a dead letter stays in the index": (
        replaced(record_rows, "_write_letter", nothing),
        lambda p: DropByHandConformance().test_dropped_dead_letter_is_in_no_group_and_found_by_words_in_the_archive(
            p.broker
        ),
    ),
    "former ids are forgotten": (
        replaced(record_rows, "_move_content", renumber_only),
        lambda p: RedriveFromDeadQueueConformance().test_every_older_id_finds_the_item_over_many_moves(p.broker),
    ),
    "a redrive does not look for room": (
        replaced(redrive, "_check_target", nothing),
        lambda p: RedriveFromDeadQueueConformance().test_redrive_to_a_full_queue_is_refused_and_the_item_stays(
            p.broker
        ),
    ),
    "an undo keeps the counters of the redrive": (
        replaced(redrive, "counters_after_undo", lambda counters, status, death: counters),
        lambda p: UndoConformance().test_item_is_dead_again_as_it_was(p.broker, p.clock),
    ),
    "a verb applies to every status": (
        replaced(manual_changes, "check_manual_change", nothing),
        lambda p: UndoConformance().test_undo_is_for_what_was_brought_back_and_nothing_else(p.broker),
    ),
    "an item is leased by id though it is held": (
        replaced(leases, "check_lease_by_id", nothing),
        lambda p: LeaseByIdRefusals().test_held_item_names_who_holds_it(p.direct),
    ),
    "a verdict by other settings is taken": (
        take_any_version,
        lambda p: LeasedDeadLetterConformance().test_wrong_token_version_and_queue_are_refused_as_ever(p.direct),
    ),
    "callers that await an item are not woken": (
        replaced(SqlState, "wake_awaiting", nothing),
        lambda p: LeasedDeadLetterConformance().test_callers_that_await_it_are_woken(p.direct),
    ),
    "a step is made again": (
        make_the_step_again,
        lambda p: StepConformance().test_step_that_was_made_is_not_made_again(p.direct),
    ),
    "a reply is not sent": (
        replaced(replies, "_send", nothing),
        lambda p: ReplyConformance().test_dropped_death_is_answered(p.direct),
    ),
    "a put does not know its source": (
        replaced(PutPlan, "_known_source", nothing),
        lambda p: SourceConformance().test_moved_item_is_known_by_its_source_while_it_is_there(p.direct),
    ),
    "retention forgets the audit": (
        replaced(maintenance, "_audit", nothing),
        lambda p: RetentionOfTheDeadConformance().test_archiving_by_itself_is_audited(p.broker, p.clock),
    ),
    "a statement does not see what its batch has changed": (
        replaced(rule_execution, "_is_alone", lambda call: False),
        lambda p: BatchConformance().test_unhold_of_all_finds_what_the_same_batch_held(p.direct),
    ),
}


@pytest.mark.parametrize("bug", BUGS)
def test_bug_is_found(bug: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, check = BUGS[bug]
    plant(monkeypatch)
    with pytest.raises(FOUND):
        check(place)


@pytest.mark.parametrize("bug", BUGS)
def test_without_the_bug_nothing_is_found(bug: str, place: Place) -> None:
    _, check = BUGS[bug]
    check(place)
