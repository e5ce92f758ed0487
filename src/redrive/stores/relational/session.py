"""How the statements of this package reach a database.

Statements are written once, in SQL that SQLite understands as it stands. Some marks are for other databases:

    … IN carray(?)      a list of numbers, made by `Session.table`; also `FROM carray(?) AS c`, with c.value and c.rowid
    /*+ FOR UPDATE */   what only a database needs in which several transactions write at once, and only who writes
    /*= AND n > 0 */    what every database but SQLite needs
    /*-*/ … /*-*/       what only SQLite needs
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from redrive.clock import Instant
from redrive.model.search_terms import SearchQuery

if TYPE_CHECKING:
    from redrive.stores.relational.batch import Batch, QueueRow

Row = tuple[Any, ...]


class OverdueCheck(NamedTuple):
    """What may stand against a lease: items that are due and not brought in, or something overdue."""

    due: bool
    overdue: bool


ANY_QUEUE = 0
NO_QUEUE = -1


class HeldAs(NamedTuple):
    """A token: the number of its item and the key of the lease; and the key of the queue that the item must be in."""

    n: int
    key: int
    queue: int = ANY_QUEUE


class LeasedHead(NamedTuple):
    """The first items of a queue, leased; nothing where a look was asked for and found something."""

    look: OverdueCheck
    """What was found of what was asked for."""
    rows: list[Row]
    """The columns of HEAD, see `redrive.stores.relational.leases`."""
    keys: dict[int, int]
    """The key of each lease by the item's number."""


class Words(Protocol):
    """The index of words, as far as databases differ in it."""

    condition: str
    """What a statement asks of redrive_words AS w."""

    def asked(self, query: SearchQuery) -> Row:
        """The values for that condition."""
        ...

    def stored(self, words: Iterable[str]) -> Any:
        """The words of one letter as its row has them."""
        ...


class Executor(Protocol):
    """What can be asked: a session, or a batch."""

    @property
    def words(self) -> Words:
        """The index of words."""
        ...

    @property
    def sequence_is_time_ordered(self) -> bool:
        """Whether nobody draws a number below the instant he draws it at."""
        ...

    def execute(self, statement: str, values: Any = (), /) -> Any:
        """Execute one statement. Gives its rows: `get`, `fetchone`, `fetchall`, or one after the other."""
        ...

    def table(self, numbers: Iterable[int], /) -> Any:
        """Numbers that a statement can read as a table."""
        ...

    def walk(self, statement: str, values: Any = (), /) -> Any:
        """The rows of a query that may have very many, fetched as they are asked for. To be closed."""
        ...


class Session(Executor, Protocol):
    """A connection to a database, in a transaction."""

    def executemany(self, statement: str, rows: Sequence[Row], /) -> Any:
        """Execute one statement for each row."""
        ...

    def blobs(self, payloads: Sequence[bytes], /) -> Any:
        """Payloads that a statement can read as a table. At least one."""
        ...

    def lease_head(
        self, batch: Batch, row: QueueRow, limit: int, deadline: Instant, worker: str | None, look: OverdueCheck, /
    ) -> LeasedHead:
        """Lease the first items of a queue that have not expired, unless the look at its times stands against it."""
        ...

    def delete_leases(self, batch: Batch, held: Sequence[HeldAs], /) -> dict[tuple[int, int], Row]:
        """Remove items that are active under these tokens, of queues in `batch.queues.plain`, and without history:
        their leases and themselves. A store that cannot do it in one statement does nothing.

        Gives the queue and the five counters of each that was removed.
        """
        ...

    def find_idempotency_keys(self, batch: Batch, queue: int, keys: Sequence[str], /) -> dict[str, Row] | None:
        """Lock idempotency keys of a queue, and give (n, tail, digest) of those whose time is not over.

        None where it is no dearer to look at one after the other.
        """
        ...

    def lock_idempotency_keys(self, batch: Batch, queue: int, keys: Sequence[str], /) -> None:
        """Before a look at idempotency keys of a queue: let nobody else put under them until the end."""
        ...

    def roll_up(self, batch: Batch, /) -> None:
        """Add all tallies to the counts, and remove them."""
        ...
