"""The interface between the statements of this package and a database.

Statements are written once, in the SQL of SQLite. Marks adapt them for other databases:

    … IN carray(?)      a list of numbers, made by `Session.table`; also `FROM carray(?) AS c`, with c.value and c.rowid
    /*+ FOR UPDATE */   only for a database with concurrent writers, and only in a transaction that writes
    /*= AND x > 0 */    for every database except SQLite
    /*-*/ … /*-*/       only for SQLite
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from redrive.clock import Instant
from redrive.model.search_terms import SearchQuery

if TYPE_CHECKING:
    from redrive.stores.relational.batch import Batch
    from redrive.stores.relational.queue_rows import QueueRow

Row = tuple[Any, ...]


class OverdueCheck(NamedTuple):
    """Checks before a lease: promote items that are due, settle items that are overdue."""

    due: bool
    overdue: bool


ANY_QUEUE = 0
NO_QUEUE = -1


LeaseKey = tuple[int, int, int]
"""A token: the item's number and the lease's key; and the key of the queue that the item must be in."""


class LeasedHead(NamedTuple):
    """The first items of a queue, leased; empty if a requested check found something."""

    check: OverdueCheck
    """The findings of the requested checks."""
    rows: list[Row]
    """Rows with the columns of HEAD, see `redrive.stores.relational.leases`."""
    keys: dict[int, int]
    """The key of each lease by the item's number."""


class SearchIndex(Protocol):
    """The full-text index, as far as databases differ in it."""

    condition: str
    """The condition on redrive_search AS w."""

    def asked(self, query: SearchQuery) -> Row:
        """Return the values for that condition."""
        ...

    def stored(self, words: Iterable[str]) -> Any:
        """Return the terms of one dead letter as its row stores them."""
        ...


class Executor(Protocol):
    """Executes statements: a session, or a batch."""

    @property
    def search_index(self) -> SearchIndex:
        """The search index."""
        ...

    @property
    def sequence_is_time_ordered(self) -> bool:
        """True if every allocated number is at or above the instant of its allocation."""
        ...

    def execute(self, statement: str, values: Any = (), /) -> Any:
        """Execute one statement. Returns its rows: `get`, `fetchone`, `fetchall`, or an iterator."""
        ...

    def request(self, statement: str, values: Any = (), /) -> Callable[[], Any]:
        """Return a function that returns the rows of a query. It is sent now, or executed then if that costs less."""
        ...

    def table(self, numbers: Iterable[int], /) -> Any:
        """Return numbers in a form that a statement reads as a table."""
        ...

    def stream(self, statement: str, values: Any = (), /) -> Any:
        """Return the rows of a query as an iterator, which the caller closes."""
        ...


class Session(Executor, Protocol):
    """A connection to a database, in a transaction."""

    def executemany(self, statement: str, rows: Sequence[Row], /) -> Any:
        """Execute a statement for each row."""
        ...

    def blobs(self, payloads: Sequence[bytes], /) -> Any:
        """Return payloads in a form that a statement reads as a table. At least one."""
        ...

    def lease_head(
        self, batch: Batch, row: QueueRow, limit: int, deadline: Instant, worker: str | None, check: OverdueCheck, /
    ) -> LeasedHead:
        """Lease the first items of a queue that have not expired, unless a requested check finds something."""
        ...

    def scan(self, batch: Batch, statement: str, values: Row, /) -> Any:
        """Execute a statement that starts at low-water marks. It finds what this transaction inserted below them."""
        ...

    def complete_leases(self, batch: Batch, held: Sequence[LeaseKey], /) -> dict[tuple[int, int], Row]:
        """Delete leases and items that are active under these tokens, of queues in `batch.queues.plain` and without
        history. A store that cannot do it in one statement deletes nothing.

        Returns the queue and the five counters of each deleted item.
        """
        ...

    def find_idempotency_keys(self, batch: Batch, queue: int, keys: Sequence[str], /) -> dict[str, Row] | None:
        """Lock idempotency keys of a queue, and return the fields of KnownKey of those that are known.

        Returns None if reading them one by one costs no more.
        """
        ...

    def lock_idempotency_keys(self, batch: Batch, queue: int, keys: Sequence[str], /) -> None:
        """Lock idempotency keys of a queue until the end of the transaction, before they are read."""
        ...

    def roll_up(self, batch: Batch, /) -> None:
        """Add all count deltas to the counts, and delete them."""
        ...
