"""The order in which a transaction writes what was left to be written."""

from __future__ import annotations

from typing import Any

from redrive.clock import Instant
from redrive.stores.relational.batch import Batch, SequenceAllocator, Stage
from redrive.stores.relational.queue_rows import NO_QUEUES


class _Written:
    """A session that keeps what is executed."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, int]] = []

    def execute(self, statement: str, values: Any = ()) -> None:
        self.statements.append((statement, 1))

    def executemany(self, statement: str, rows: Any) -> None:
        self.statements.append((statement, len(rows)))

    def table(self, numbers: Any) -> Any:
        return numbers


def test_rows_are_written_in_the_order_of_their_stages_whichever_was_first() -> None:
    session = _Written()
    batch = Batch(session, Instant(0), NO_QUEUES, SequenceAllocator(), "default", "main")  # type: ignore[arg-type]
    for stage in reversed(Stage):
        batch.write(stage.name, (1,), stage)
    batch.write("INSERT_STATE", (2,))
    batch.write("also INSERT_STATE", (1,))
    batch.execute("look")
    expected = [
        ("DELETE_STATE", 1),
        ("INSERT_STATE", 2),
        ("also INSERT_STATE", 1),
        ("RENUMBER", 1),
        ("DELETE_ITEM", 1),
        ("look", 1),
    ]
    assert session.statements == expected
