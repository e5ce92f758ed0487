# Generated from broker/async_api/manual_changes.py by tools/blocking_api.py; edit that file.
"""Manual changes, as methods of `Broker`.

One id returns its result, or raises the refusal. Several return a list, with a result or an error for each.
"""

# A str is also a Sequence[str]: the overload for one id takes precedence.
# mypy: disable-error-code="overload-overlap"

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from types import EllipsisType
from typing import Any, overload

from redrive.broker.api.base import BrokerBase
from redrive.broker.flows import edited_redrive, export_import, manual_changes
from redrive.broker.flows.edited_redrive import EditedRedrive
from redrive.broker.flows.manual_changes import Edit
from redrive.errors import RedriveError
from redrive.model.duration import DurationInput
from redrive.model.failure import Failure
from redrive.model.item import Settled
from redrive.model.state_machine import Verb


class ManualChangeMethods(BrokerBase):
    """Methods of an operator on single items."""

    @overload
    def retry(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def retry(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def retry(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Retry dead or failed items in place, with their counters at 0."""
        return self.run_flow(manual_changes.change(self.core, Verb.RETRY, ids, actor, force))

    @overload
    def redrive(
        self,
        ids: str,
        *,
        to: str | None = None,
        payload: Any = ...,
        headers: Mapping[str, str] | EllipsisType = ...,
        edit: Edit | None = None,
        edit_headers: Edit | None = None,
        actor: str | None = None,
        force: bool = False,
        note: str | None = None,
    ) -> Settled: ...
    @overload
    def redrive(
        self,
        ids: Sequence[str],
        *,
        to: str | None = None,
        payload: Any = ...,
        headers: Mapping[str, str] | EllipsisType = ...,
        edit: Edit | None = None,
        edit_headers: Edit | None = None,
        actor: str | None = None,
        force: bool = False,
        note: str | None = None,
    ) -> list[Settled | RedriveError]: ...
    def redrive(
        self,
        ids: str | Sequence[str],
        *,
        to: str | None = None,
        payload: Any = ...,
        headers: Mapping[str, str] | EllipsisType = ...,
        edit: Edit | None = None,
        edit_headers: Edit | None = None,
        actor: str | None = None,
        force: bool = False,
        note: str | None = None,
    ) -> Any:
        """Redrive dead letters: in place, from a dead queue to the queue of the last death, or `to` a queue.

        `payload` and `headers` replace those of the items. `edit` and `edit_headers` change them: a function
        (value) → value, or a JSON merge patch, a table in which None removes a key.
        """
        edits = manual_changes.Edits(payload, headers, edit, edit_headers)
        return self.run_flow(
            manual_changes.redrive(self.core, ids, to=to, edits=edits, actor=actor, force=force, note=note)
        )

    def redrive_edited(
        self,
        ids: Sequence[str],
        *,
        edit: Edit | None = None,
        edit_headers: Edit | None = None,
        to: str | None = None,
        rate: float | None = None,
        canary: int = 0,
        canary_success_ratio: float = 1.0,
        wait: DurationInput = "1d",
        actor: str | None = None,
        force: bool = False,
        note: str | None = None,
        progress: Callable[[EditedRedrive], object] | None = None,
    ) -> EditedRedrive:
        """Edit and redrive any number of dead letters, batch by batch, in this process. `edit` as in `redrive`.

        rate: maximum items per second. canary: how many are redriven first; the rest follows once
        `canary_success_ratio` of these have completed, and stays dead if that takes longer than `wait`.
        progress: called after each batch.
        """
        flow = edited_redrive.redrive_edited(
            self.core,
            ids,
            manual_changes.Edits(edit=edit, edit_headers=edit_headers),
            to=to,
            rate=rate,
            canary=canary,
            canary_success_ratio=canary_success_ratio,
            wait=wait,
            actor=actor,
            force=force,
            note=note,
            progress=progress,
        )
        return self.run_flow(flow)

    @overload
    def undo(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    def undo(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    def undo(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Undo drops, and redrives of items that were not leased since: each item has its former state again."""
        return self.run_flow(manual_changes.change(self.core, Verb.UNDO, ids, actor))

    @overload
    def move(self, ids: str, to: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def move(
        self, ids: Sequence[str], to: str, *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def move(self, ids: str | Sequence[str], to: str, *, actor: str | None = None, force: bool = False) -> Any:
        """Move items to another queue, unchanged."""
        return self.run_flow(manual_changes.change(self.core, Verb.MOVE, ids, actor, force, to=to))

    @overload
    def reschedule(
        self,
        ids: str,
        *,
        delay: DurationInput = 0,
        enqueue_at: datetime | None = None,
        actor: str | None = None,
        note: str | None = None,
    ) -> Settled: ...
    @overload
    def reschedule(
        self,
        ids: Sequence[str],
        *,
        delay: DurationInput = 0,
        enqueue_at: datetime | None = None,
        actor: str | None = None,
        note: str | None = None,
    ) -> list[Settled | RedriveError]: ...
    def reschedule(
        self,
        ids: str | Sequence[str],
        *,
        delay: DurationInput = 0,
        enqueue_at: datetime | None = None,
        actor: str | None = None,
        note: str | None = None,
    ) -> Any:
        """Reschedule waiting items: they may be leased now, after a delay, or from an instant with a time zone on.

        For pending, scheduled and failed items; failed ones are retried then, with unchanged counters.
        """
        return self.run_flow(manual_changes.reschedule(self.core, ids, actor, note, delay, enqueue_at))

    @overload
    def purge(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    def purge(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    def purge(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Delete archived items permanently. An audit row records their ids."""
        return self.run_flow(manual_changes.change(self.core, Verb.PURGE, ids, actor))

    @overload
    def complete_items(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def complete_items(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def complete_items(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Complete items without a worker."""
        return self.run_flow(manual_changes.change(self.core, Verb.DONE, ids, actor, force))

    @overload
    def drop(self, ids: str, *, actor: str | None = None, force: bool = False) -> Settled: ...
    @overload
    def drop(
        self, ids: Sequence[str], *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def drop(self, ids: str | Sequence[str], *, actor: str | None = None, force: bool = False) -> Any:
        """Drop items into the archive: they can be restored for `keep_dropped`, and are then deleted. Their
        idempotency keys are freed. An audit row records their ids."""
        return self.run_flow(manual_changes.change(self.core, Verb.DROP, ids, actor, force))

    @overload
    def archive(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    def archive(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    def archive(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Archive items that are not leased. They no longer count, and can be restored."""
        return self.run_flow(manual_changes.change(self.core, Verb.ARCHIVE, ids, actor, False))

    @overload
    def restore(self, ids: str, *, actor: str | None = None) -> Settled: ...
    @overload
    def restore(self, ids: Sequence[str], *, actor: str | None = None) -> list[Settled | RedriveError]: ...
    def restore(self, ids: str | Sequence[str], *, actor: str | None = None) -> Any:
        """Restore items from the archive, to their former status."""
        return self.run_flow(manual_changes.change(self.core, Verb.RESTORE, ids, actor, False))

    @overload
    def fail_items(
        self, ids: str, error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> Settled: ...
    @overload
    def fail_items(
        self, ids: Sequence[str], error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def fail_items(
        self, ids: str | Sequence[str], error: str | Failure, *, actor: str | None = None, force: bool = False
    ) -> Any:
        """Fail items that are not leased: they are retried or dead, by the settings of their queues."""
        return self.run_flow(manual_changes.change_with_verdict(self.core, Verb.FAIL, ids, actor, force, error=error))

    @overload
    def bury_items(
        self, ids: str, *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> Settled: ...
    @overload
    def bury_items(
        self, ids: Sequence[str], *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> list[Settled | RedriveError]: ...
    def bury_items(
        self, ids: str | Sequence[str], *, note: str | None = None, actor: str | None = None, force: bool = False
    ) -> Any:
        """Make items dead that are not leased."""
        return self.run_flow(manual_changes.change_with_verdict(self.core, Verb.BURY, ids, actor, force, note=note))

    def hold(self, ids: Sequence[str], held_by: str, *, lasting: bool = False) -> int:
        """Hold pending and failed items under a name: they are not leased until `unhold`. Returns how many.

        An item may be held by up to 16 names, and can be leased when none is left. A retry, redrive or death ends a
        hold, unless it is `lasting`.
        """
        return self.run_flow(manual_changes.hold(ids, held_by, lasting))

    def unhold(self, held_by: str, ids: Sequence[str] | None = None) -> int:
        """End the hold of a name on these items, or on all that it holds. Other names may still hold them.

        Returns how many items it held.
        """
        return self.run_flow(manual_changes.unhold(held_by, ids))

    def import_items(
        self,
        lines: Iterable[bytes | str],
        *,
        queue: str | None = None,
        actor: str | None = None,
        progress: Callable[[export_import.ImportResult], object] | None = None,
    ) -> export_import.ImportResult:
        """Import the lines of `export`, into this queue or the queues of the same names. Known items are ignored.

        Lines are read as needed and committed in batches of 1,000: after an interruption, import all of them again.
        """
        return self.run_flow(export_import.import_items(self.core, lines, queue, actor, progress))
