"""The tables, and how older files are brought up to date.

What an item is does not change; where it stands does. So the payload lies in `item`, written once, and each place an
item can be in is a narrow table of its own. An item has exactly one row in exactly one of:

    ready     may be leased now; the key is the order of the queue
    waiting   scheduled, failed until its next attempt, or held
    lease     a worker holds it
    ended     completed, dead, archived, or on its way to another store; and kept

Times are microseconds. `n` is the number of the item's id and its key everywhere; `tail` is the rest of the id.
`rank` is 9 − priority, so that a plain ascending scan is the order of a queue.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from redrive.clock import Instant

_STATE = """
    rank INTEGER NOT NULL, ready_at INTEGER NOT NULL, seq INTEGER NOT NULL, expire_deadline INTEGER,
    deliveries INTEGER NOT NULL, attempts INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL,
    redrives INTEGER NOT NULL, first_leased_at INTEGER, entries INTEGER NOT NULL, deaths INTEGER NOT NULL,
    letter INTEGER"""

_TABLES = f"""
CREATE TABLE redrive_meta (version INTEGER NOT NULL, epoch INTEGER NOT NULL, created_at INTEGER NOT NULL);

CREATE TABLE redrive_queue (
    key INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, settings TEXT NOT NULL,
    version INTEGER NOT NULL, paused INTEGER NOT NULL, is_dead_queue INTEGER NOT NULL, created_at INTEGER NOT NULL,
    UNIQUE (namespace, name)
);

CREATE TABLE redrive_item (
    n INTEGER PRIMARY KEY, tail INTEGER NOT NULL, queue INTEGER NOT NULL, put_at INTEGER NOT NULL,
    priority INTEGER NOT NULL, enqueue_at INTEGER, content_type TEXT, headers TEXT, expire_timeout INTEGER,
    idempotency_key TEXT, overrides TEXT, source_id TEXT, origin_id TEXT, origin_queue TEXT, payload BLOB NOT NULL
);
CREATE INDEX redrive_item_source ON redrive_item (queue, source_id) WHERE source_id IS NOT NULL;

CREATE TABLE redrive_ready (
    queue INTEGER NOT NULL, n INTEGER NOT NULL, {_STATE},
    PRIMARY KEY (queue, rank, ready_at, seq)
) WITHOUT ROWID;
CREATE INDEX redrive_ready_requeued ON redrive_ready (n) WHERE seq <> n;
CREATE INDEX redrive_ready_expiry ON redrive_ready (queue, expire_deadline) WHERE expire_deadline IS NOT NULL;

CREATE TABLE redrive_waiting (
    n INTEGER PRIMARY KEY, queue INTEGER NOT NULL, status TEXT NOT NULL, held_by TEXT, {_STATE}
);
CREATE INDEX redrive_waiting_due ON redrive_waiting (queue, ready_at) WHERE held_by IS NULL;
CREATE INDEX redrive_waiting_expiry ON redrive_waiting (queue, expire_deadline) WHERE expire_deadline IS NOT NULL;
CREATE INDEX redrive_waiting_held ON redrive_waiting (held_by) WHERE held_by IS NOT NULL;

CREATE TABLE redrive_lease (
    n INTEGER PRIMARY KEY, queue INTEGER NOT NULL, token INTEGER NOT NULL, deadline INTEGER NOT NULL,
    leased_at INTEGER NOT NULL, worker TEXT, {_STATE}
);
CREATE INDEX redrive_lease_deadline ON redrive_lease (queue, deadline);

CREATE TABLE redrive_ended (
    n INTEGER PRIMARY KEY, queue INTEGER NOT NULL, status TEXT NOT NULL, ended_at INTEGER NOT NULL, dead_reason TEXT,
    archived_from TEXT, held_by TEXT, result BLOB, result_type TEXT, {_STATE}
);
CREATE INDEX redrive_ended_age ON redrive_ended (queue, status, ended_at);

CREATE TABLE redrive_namespace (key INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE redrive_letter (
    d INTEGER PRIMARY KEY, n INTEGER NOT NULL, queue INTEGER NOT NULL, shelf INTEGER NOT NULL, died_at INTEGER NOT NULL,
    reason TEXT NOT NULL, fingerprint TEXT NOT NULL, error_name TEXT NOT NULL, error_type TEXT NOT NULL,
    error_class TEXT NOT NULL, deliveries INTEGER NOT NULL, attempts INTEGER NOT NULL, failures INTEGER NOT NULL,
    losses INTEGER NOT NULL
);
CREATE INDEX redrive_letter_shelf ON redrive_letter (shelf);
CREATE INDEX redrive_letter_queue ON redrive_letter (queue, shelf);
CREATE INDEX redrive_letter_fingerprint ON redrive_letter (shelf, fingerprint, queue);
CREATE INDEX redrive_letter_error ON redrive_letter (shelf, error_name);
CREATE VIRTUAL TABLE redrive_words USING fts5(
    words, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii');
CREATE TABLE redrive_wordless (d INTEGER PRIMARY KEY);
CREATE TABLE redrive_group (
    queue INTEGER NOT NULL, fingerprint TEXT NOT NULL, count INTEGER NOT NULL, first_at INTEGER NOT NULL,
    last_at INTEGER NOT NULL,
    PRIMARY KEY (queue, fingerprint)
) WITHOUT ROWID;
CREATE TABLE redrive_group_hour (
    queue INTEGER NOT NULL, fingerprint TEXT NOT NULL, hour INTEGER NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (queue, fingerprint, hour)
) WITHOUT ROWID;
CREATE TABLE redrive_feed (
    number INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, at INTEGER NOT NULL, kind TEXT NOT NULL,
    queue TEXT NOT NULL, n INTEGER NOT NULL, tail INTEGER NOT NULL, detail BLOB
);
CREATE TABLE redrive_operation (
    number INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, ended_at INTEGER,
    next_at INTEGER, data BLOB NOT NULL
);
CREATE INDEX redrive_operation_running ON redrive_operation (namespace, next_at) WHERE ended_at IS NULL;
CREATE TABLE redrive_operation_item (
    operation INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (operation, n)
) WITHOUT ROWID;

CREATE TABLE redrive_history (key INTEGER PRIMARY KEY, n INTEGER NOT NULL, entry INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX redrive_history_item ON redrive_history (n, entry);
CREATE TABLE redrive_death (key INTEGER PRIMARY KEY, n INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX redrive_death_item ON redrive_death (n);
CREATE TABLE redrive_lineage (old INTEGER PRIMARY KEY, tail INTEGER NOT NULL, n INTEGER NOT NULL);
CREATE INDEX redrive_lineage_item ON redrive_lineage (n);

CREATE TABLE redrive_idempotency (
    queue INTEGER NOT NULL, key TEXT NOT NULL, n INTEGER NOT NULL, tail INTEGER NOT NULL, digest BLOB NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX redrive_idempotency_until ON redrive_idempotency (until);
CREATE TABLE redrive_ledger (
    queue INTEGER NOT NULL, source_id TEXT NOT NULL, n INTEGER NOT NULL, tail INTEGER NOT NULL, closed_at INTEGER,
    PRIMARY KEY (queue, source_id)
) WITHOUT ROWID;
CREATE INDEX redrive_ledger_closed ON redrive_ledger (closed_at) WHERE closed_at IS NOT NULL;

CREATE TABLE redrive_audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, at INTEGER NOT NULL, actor TEXT NOT NULL,
    verb TEXT NOT NULL, queue TEXT, ids TEXT NOT NULL, count INTEGER NOT NULL, note TEXT
);

CREATE TABLE redrive_count (
    queue INTEGER PRIMARY KEY, pending INTEGER NOT NULL, failed INTEGER NOT NULL, active INTEGER NOT NULL,
    completed INTEGER NOT NULL, dead INTEGER NOT NULL, archived INTEGER NOT NULL, dead_letters INTEGER NOT NULL,
    put_total INTEGER NOT NULL, completed_total INTEGER NOT NULL, failed_total INTEGER NOT NULL,
    dead_total INTEGER NOT NULL
);
CREATE TABLE redrive_tally (
    key INTEGER PRIMARY KEY, queue INTEGER NOT NULL, pending INTEGER NOT NULL, failed INTEGER NOT NULL,
    active INTEGER NOT NULL, completed INTEGER NOT NULL, dead INTEGER NOT NULL, archived INTEGER NOT NULL,
    dead_letters INTEGER NOT NULL, put_total INTEGER NOT NULL, completed_total INTEGER NOT NULL,
    failed_total INTEGER NOT NULL, dead_total INTEGER NOT NULL
);
"""


def _create(connection: apsw.Connection, now: Instant) -> None:
    connection.execute(_TABLES)
    connection.execute("INSERT INTO redrive_meta VALUES (0, 1, ?)", (now,))


_MOVES = """
ALTER TABLE redrive_queue ADD COLUMN source_queues TEXT;
ALTER TABLE redrive_item ADD COLUMN home TEXT;
ALTER TABLE redrive_ledger ADD COLUMN store TEXT;
ALTER TABLE redrive_count ADD COLUMN moving INTEGER NOT NULL DEFAULT 0;
ALTER TABLE redrive_tally ADD COLUMN moving INTEGER NOT NULL DEFAULT 0;
CREATE TABLE redrive_moving (
    key INTEGER PRIMARY KEY, n INTEGER NOT NULL UNIQUE, namespace INTEGER NOT NULL, target TEXT NOT NULL,
    since INTEGER NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL
);
CREATE INDEX redrive_moving_target ON redrive_moving (namespace, target, key);
CREATE INDEX redrive_ledger_open ON redrive_ledger (store, source_id) WHERE closed_at IS NULL;
"""


def _add_moves(connection: apsw.Connection, now: Instant) -> None:
    """Moves between stores: what is on its way, what came from elsewhere, and who sends his dead here."""
    connection.execute(_MOVES)


_REGISTRATIONS = """
CREATE TABLE redrive_registration (
    namespace INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL,
    at INTEGER NOT NULL, until INTEGER,
    PRIMARY KEY (namespace, kind, name)
);
CREATE INDEX redrive_registration_until ON redrive_registration (until) WHERE until IS NOT NULL;
CREATE TABLE redrive_result (
    n INTEGER NOT NULL, tail INTEGER NOT NULL, namespace INTEGER NOT NULL, result BLOB NOT NULL,
    result_type TEXT NOT NULL, until INTEGER NOT NULL,
    PRIMARY KEY (n, tail)
);
CREATE INDEX redrive_result_until ON redrive_result (until);
"""


def _add_registrations(connection: apsw.Connection, now: Instant) -> None:
    """Workers that announce themselves, and results that outlive their items."""
    connection.execute(_REGISTRATIONS)


FIRST = 2
"""The first schema that a release has. Files with schema 1 were written while Redrive was made, and are refused."""

MIGRATIONS: tuple[Callable[[apsw.Connection, Instant], None], ...] = (_create, _add_moves, _add_registrations)
"""What brings an empty file to FIRST, and then a file from schema i to schema i + 1. Each runs in the same transaction
as the change of the version."""

NEWEST = FIRST + len(MIGRATIONS) - 1


def version_of(connection: apsw.Connection) -> int:
    """The schema of this file; 0 where there is none yet."""
    # Not connection.table_exists(): that trusts what the connection remembers of the schema, and others may be first.
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'redrive_meta'").get is None:
        return 0
    version: int = connection.execute("SELECT version FROM redrive_meta").get
    return version


def migrate(connection: apsw.Connection, now: Instant) -> None:
    """Bring the file up to date. The caller holds the write lock: of many processes that start at once, one does it."""
    found = version_of(connection)
    for version in range(max(found + 1, FIRST), NEWEST + 1):
        MIGRATIONS[version - FIRST](connection, now)
        connection.execute("UPDATE redrive_meta SET version = ?", (version,))
