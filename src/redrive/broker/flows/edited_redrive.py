"""Edit and redrive any number of dead letters, batch by batch, since a store cannot edit payloads.

Unlike an operation, it runs in the calling process: items that are not done when the process ends stay dead.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from redrive.broker.flow import Flow, wait_until
from redrive.broker.flows import manual_changes
from redrive.broker.flows.canaries import count_canaries
from redrive.broker.flows.manual_changes import Edits
from redrive.broker.flows.operations import BATCH_SIZE, STEPS_PER_SECOND, check_canary, check_rate
from redrive.broker.validation import check_progress
from redrive.clock import Instant
from redrive.errors import RedriveError
from redrive.model.duration import MILLISECOND, SECOND, DurationInput, parse_duration
from redrive.model.ids import MAX_NUMBER, ItemId, ids_of
from redrive.model.state_machine import Verb

if TYPE_CHECKING:
    from redrive.broker.core import Core

POLL_INTERVAL = 250 * MILLISECOND
"""Time between two reads of the canaries."""


class EditedRedrive(msgspec.Struct):
    """The progress of an edited redrive, and in the end its result."""

    total: int
    ids: list[ItemId] = []
    """The current ids of redriven items."""
    skipped: Counter[str] = msgspec.field(default_factory=Counter)
    """Number of items that could not be edited or redriven, by the code of the refusal."""
    refusals: dict[str, tuple[ItemId, RedriveError]] = {}
    """The first item and its refusal for each code."""
    ended_canaries: int | None = None
    """Number of canaries that have ended, while it waits for them."""
    problem: str | None = None
    """The reason why it stopped before the end."""

    @property
    def changed(self) -> int:
        """Number of redriven items."""
        return len(self.ids)

    @property
    def untouched(self) -> int:
        """Number of items that are unchanged, not yet done or because it stopped."""
        return self.total - self.changed - self.skipped.total()


Progress = Callable[[EditedRedrive], object]


def redrive_edited(
    core: Core,
    ids: str | Sequence[str],
    edits: Edits,
    *,
    to: str | None,
    rate: float | None,
    canary: int,
    canary_success_ratio: float,
    wait: DurationInput,
    actor: str | None,
    force: bool,
    note: str | None,
    progress: Progress | None,
) -> Flow[EditedRedrive]:
    """Redrive the canaries, wait up to `wait` for their outcomes, and redrive the rest if enough have completed."""
    listed = ids_of(ids, MAX_NUMBER, "one id or a list of ids", "call")
    check_progress(progress)
    check_rate(rate)
    check_canary(Verb.REDRIVE, canary, canary_success_ratio)
    longest = parse_duration(wait, "wait")
    done = EditedRedrive(len(listed))
    first = canary if len(listed) > 1 else 0
    at_once = BATCH_SIZE if rate is None else max(1, min(BATCH_SIZE, int(rate / STEPS_PER_SECOND)))
    for start in (*range(0, first, at_once), *range(first, len(listed), at_once)):
        if start == first and first:
            yield from _await_canaries(core, done, canary_success_ratio, longest, progress)
        if done.problem is not None:
            break
        some = listed[start : min(start + at_once, first if start < first else len(listed))]
        results = yield from manual_changes.redrive(core, some, to=to, edits=edits, actor=actor, force=force, note=note)
        for id, result in zip(some, results, strict=True):
            if isinstance(result, RedriveError):
                done.skipped[result.code] += 1
                done.refusals.setdefault(result.code, (id, result))
            else:
                done.ids.append(result.id)
        if progress is not None:
            progress(done)
        due = Instant(core.clock.now() + (0 if rate is None else int(len(some) / rate * SECOND)))
        while core.clock.now() < due:
            yield from wait_until(core, due)
    return done


def _await_canaries(
    core: Core, done: EditedRedrive, success_ratio: float, wait: int, progress: Progress | None
) -> Flow[None]:
    """Wait for the outcomes of the canaries. Set `problem` if too few complete, or not in time."""
    end = Instant(core.clock.now() + wait)
    while True:
        canaries = yield from count_canaries(done.ids, success_ratio)
        done.ended_canaries = canaries.ended
        if progress is not None:
            progress(done)
        if canaries.has_failed:
            done.problem = canaries.problem
        elif core.clock.now() >= end and not canaries.has_passed:
            running = canaries.total - canaries.ended
            done.problem = f"{running} of {canaries.total} canaries have not ended in the time given"
        if canaries.has_passed or done.problem is not None:
            done.ended_canaries = None
            return
        yield from wait_until(core, Instant(min(end, core.clock.now() + POLL_INTERVAL)))
