"""The tables, and the migration of a file to the newest schema.

The content of an item does not change; its state does. So the payload is in `redrive_item`, written once, and each
state is a narrow table. An item has exactly one row in exactly one of:

    ready       may be leased now; the key is the order of the queue
    scheduled   not due yet (delayed, or failed until the next attempt), or held
    lease       leased by a worker
    finished    completed, dead, archived, or moving to another store; and kept

Times are microseconds. `item_no` is the number of the item's id, and its key everywhere; `id_suffix` is the rest of the
id. `rank` is 9 − priority, so that a plain ascending scan is the order of a queue. A lease has a `dead_reason` if the
item was leased although it is dead. `death_no` is allocated at a death
and numbers the dead letter; it is the rowid of `redrive_search`. `section` is the key of the namespace, negative for
archived items. An archived item that was no dead letter has a `death_no` too, and no cause. In `redrive_idempotency`, a
negative `expires_at` is that of a key that ends with its item: the instant at which maintenance next checks whether the
item exists. A dropped item has the status `dropped` in `redrive_finished`, and `ended_at` is the instant of the drop;
its idempotency key is free, and what it was is in the row of its id, with a negative queue. `held_by` has all holders
of an item (`redrive.model.holder`): an index finds it by the name of an only one, `redrive_holder` by those of several.
"""

from __future__ import annotations

from collections.abc import Callable

import apsw

from redrive.clock import Instant
from redrive.model.holder import SEVERAL

_STATE = """
    rank INTEGER NOT NULL, ready_at INTEGER NOT NULL, seq INTEGER NOT NULL, expire_deadline INTEGER,
    deliveries INTEGER NOT NULL, attempts INTEGER NOT NULL, failures INTEGER NOT NULL, losses INTEGER NOT NULL,
    redrives INTEGER NOT NULL, first_leased_at INTEGER, entries INTEGER NOT NULL, deaths INTEGER NOT NULL,
    death_no INTEGER"""

_COUNTS = """
    pending INTEGER NOT NULL, failed INTEGER NOT NULL, active INTEGER NOT NULL, completed INTEGER NOT NULL,
    dead INTEGER NOT NULL, archived INTEGER NOT NULL, dead_letters INTEGER NOT NULL, put_total INTEGER NOT NULL,
    completed_total INTEGER NOT NULL, failed_total INTEGER NOT NULL, dead_total INTEGER NOT NULL,
    moving INTEGER NOT NULL"""

_TABLES = f"""
CREATE TABLE redrive_meta (version INTEGER NOT NULL, epoch INTEGER NOT NULL, created_at INTEGER NOT NULL);

CREATE TABLE redrive_queue (
    key INTEGER PRIMARY KEY, namespace TEXT NOT NULL, name TEXT NOT NULL, settings TEXT NOT NULL,
    version INTEGER NOT NULL, paused INTEGER NOT NULL, is_dead_queue INTEGER NOT NULL, created_at INTEGER NOT NULL,
    source_queues TEXT, UNIQUE (namespace, name)
);

CREATE TABLE redrive_item (
    item_no INTEGER PRIMARY KEY, id_suffix INTEGER NOT NULL, queue INTEGER NOT NULL, put_at INTEGER NOT NULL,
    priority INTEGER NOT NULL, enqueue_at INTEGER, content_type TEXT, headers TEXT, expire_timeout INTEGER,
    idempotency_key TEXT, overrides TEXT, source_id TEXT, origin_id TEXT, origin_queue TEXT, home_store TEXT,
    payload BLOB NOT NULL
);
CREATE INDEX redrive_item_source ON redrive_item (queue, source_id) WHERE source_id IS NOT NULL;

CREATE TABLE redrive_ready (
    queue INTEGER NOT NULL, item_no INTEGER NOT NULL, {_STATE},
    PRIMARY KEY (queue, rank, ready_at, seq)
) WITHOUT ROWID;
CREATE INDEX redrive_ready_requeued ON redrive_ready (item_no) WHERE seq <> item_no;
CREATE INDEX redrive_ready_expiry ON redrive_ready (queue, expire_deadline) WHERE expire_deadline IS NOT NULL;

CREATE TABLE redrive_scheduled (
    item_no INTEGER PRIMARY KEY, queue INTEGER NOT NULL, status TEXT NOT NULL, held_by TEXT, {_STATE}
);
CREATE INDEX redrive_scheduled_due ON redrive_scheduled (queue, ready_at) WHERE held_by IS NULL;
CREATE INDEX redrive_scheduled_expiry ON redrive_scheduled (queue, expire_deadline) WHERE expire_deadline IS NOT NULL;
CREATE INDEX redrive_scheduled_held ON redrive_scheduled (held_by) WHERE held_by IS NOT NULL;

CREATE TABLE redrive_lease (
    item_no INTEGER PRIMARY KEY, queue INTEGER NOT NULL, token INTEGER NOT NULL, deadline INTEGER NOT NULL,
    leased_at INTEGER NOT NULL, worker TEXT, {_STATE}
);
CREATE INDEX redrive_lease_deadline ON redrive_lease (queue, deadline);

CREATE TABLE redrive_finished (
    item_no INTEGER PRIMARY KEY, queue INTEGER NOT NULL, status TEXT NOT NULL, ended_at INTEGER NOT NULL,
    dead_reason TEXT,
    archived_from TEXT, held_by TEXT, result BLOB, result_type TEXT, {_STATE}
);
CREATE INDEX redrive_finished_age ON redrive_finished (queue, status, ended_at);

CREATE TABLE redrive_namespace (key INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE redrive_dead_letter (
    death_no INTEGER PRIMARY KEY, item_no INTEGER NOT NULL, queue INTEGER NOT NULL, section INTEGER NOT NULL,
    died_at INTEGER NOT NULL,
    reason TEXT NOT NULL, fingerprint TEXT NOT NULL, error_name TEXT NOT NULL, error_type TEXT NOT NULL,
    error_class TEXT NOT NULL, deliveries INTEGER NOT NULL, attempts INTEGER NOT NULL, failures INTEGER NOT NULL,
    losses INTEGER NOT NULL
);
CREATE INDEX redrive_dead_letter_section ON redrive_dead_letter (section);
CREATE INDEX redrive_dead_letter_queue ON redrive_dead_letter (queue, section);
CREATE INDEX redrive_dead_letter_fingerprint ON redrive_dead_letter (section, fingerprint, queue);
CREATE INDEX redrive_dead_letter_error ON redrive_dead_letter (section, error_name);
CREATE VIRTUAL TABLE redrive_search USING fts5(
    terms, content = '', contentless_delete = 1, detail = none, tokenize = 'ascii');
CREATE TABLE redrive_search_tombstone (death_no INTEGER PRIMARY KEY);
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
    queue TEXT NOT NULL, item_no INTEGER NOT NULL, id_suffix INTEGER NOT NULL, detail BLOB
);
CREATE TABLE redrive_operation (
    number INTEGER PRIMARY KEY, namespace INTEGER NOT NULL, id TEXT NOT NULL UNIQUE, ended_at INTEGER,
    next_at INTEGER, data BLOB NOT NULL
);
CREATE INDEX redrive_operation_running ON redrive_operation (namespace, next_at) WHERE ended_at IS NULL;
CREATE TABLE redrive_operation_item (
    operation INTEGER NOT NULL, item_no INTEGER NOT NULL, PRIMARY KEY (operation, item_no)
) WITHOUT ROWID;

CREATE TABLE redrive_history (
    key INTEGER PRIMARY KEY, item_no INTEGER NOT NULL, entry INTEGER NOT NULL, data BLOB NOT NULL
);
CREATE INDEX redrive_history_item ON redrive_history (item_no, entry);
CREATE TABLE redrive_death (key INTEGER PRIMARY KEY, item_no INTEGER NOT NULL, data BLOB NOT NULL);
CREATE INDEX redrive_death_item ON redrive_death (item_no);
CREATE TABLE redrive_former_id (
    old_item_no INTEGER PRIMARY KEY, old_id_suffix INTEGER NOT NULL, item_no INTEGER NOT NULL
);
CREATE INDEX redrive_former_id_item ON redrive_former_id (item_no);

CREATE TABLE redrive_idempotency (
    queue INTEGER NOT NULL, key TEXT NOT NULL, item_no INTEGER NOT NULL, id_suffix INTEGER NOT NULL,
    digest BLOB NOT NULL,
    expires_at INTEGER NOT NULL,
    PRIMARY KEY (queue, key)
) WITHOUT ROWID;
CREATE INDEX redrive_idempotency_expiry ON redrive_idempotency (expires_at);
CREATE TABLE redrive_ledger (
    queue INTEGER NOT NULL, source_id TEXT NOT NULL, item_no INTEGER NOT NULL, id_suffix INTEGER NOT NULL,
    closed_at INTEGER,
    store TEXT,
    PRIMARY KEY (queue, source_id)
) WITHOUT ROWID;
CREATE INDEX redrive_ledger_closed ON redrive_ledger (closed_at) WHERE closed_at IS NOT NULL;
CREATE INDEX redrive_ledger_open ON redrive_ledger (store, source_id) WHERE closed_at IS NULL;
CREATE TABLE redrive_moving (
    key INTEGER PRIMARY KEY, item_no INTEGER NOT NULL UNIQUE, namespace INTEGER NOT NULL, target TEXT NOT NULL,
    since INTEGER NOT NULL, kind TEXT NOT NULL, status TEXT NOT NULL
);
CREATE INDEX redrive_moving_target ON redrive_moving (namespace, target, key);

CREATE TABLE redrive_audit (
    number INTEGER PRIMARY KEY AUTOINCREMENT, namespace TEXT NOT NULL, at INTEGER NOT NULL, actor TEXT NOT NULL,
    verb TEXT NOT NULL, queue TEXT, ids TEXT NOT NULL, count INTEGER NOT NULL, note TEXT
);

CREATE TABLE redrive_count (queue INTEGER PRIMARY KEY, {_COUNTS});
CREATE TABLE redrive_count_delta (key INTEGER PRIMARY KEY, queue INTEGER NOT NULL, {_COUNTS});

CREATE TABLE redrive_registration (
    namespace INTEGER NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, version INTEGER NOT NULL, value BLOB NOT NULL,
    at INTEGER NOT NULL, expires_at INTEGER,
    PRIMARY KEY (namespace, kind, name)
);
CREATE INDEX redrive_registration_expiry ON redrive_registration (expires_at) WHERE expires_at IS NOT NULL;
CREATE TABLE redrive_result (
    item_no INTEGER NOT NULL, id_suffix INTEGER NOT NULL, namespace INTEGER NOT NULL, result BLOB NOT NULL,
    result_type TEXT NOT NULL, expires_at INTEGER NOT NULL,
    PRIMARY KEY (item_no, id_suffix)
);
CREATE INDEX redrive_result_expiry ON redrive_result (expires_at);
"""


def _create(connection: apsw.Connection, now: Instant) -> None:
    connection.execute(_TABLES)
    connection.execute("INSERT INTO redrive_meta VALUES (0, 1, ?)", (now,))


def _add_has_replies(connection: apsw.Connection, now: Instant) -> None:
    connection.execute("ALTER TABLE redrive_queue ADD COLUMN has_replies INTEGER NOT NULL DEFAULT 0")


def _add_queues_of_results(connection: apsw.Connection, now: Instant) -> None:
    """Add the queues of kept results. Earlier results name none: only callers that may use every queue read them."""
    connection.execute("ALTER TABLE redrive_result ADD COLUMN queue TEXT NOT NULL DEFAULT ''")
    connection.execute("ALTER TABLE redrive_result ADD COLUMN put_to TEXT")


def _add_dead_reason_of_leases(connection: apsw.Connection, now: Instant) -> None:
    connection.execute("ALTER TABLE redrive_lease ADD COLUMN dead_reason TEXT")


def _add_totals(connection: apsw.Connection, now: Instant) -> None:
    for table in ("redrive_count", "redrive_count_delta"):
        for column in ("redriven_total", "archived_total", "exhausted_total", "captured_total"):
            connection.execute(f"ALTER TABLE {table} ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")


def _add_dropped(connection: apsw.Connection, now: Instant) -> None:
    """Change no table, but the version: a Redrive that does not know dropped items, and archived ones that never died,
    must not read them."""


def _add_gates_and_breakers(connection: apsw.Connection, now: Instant) -> None:
    for column in ("gates", "breakers"):
        connection.execute(f"ALTER TABLE redrive_queue ADD COLUMN {column} TEXT")


def _add_holders(connection: apsw.Connection, now: Instant) -> None:
    connection.execute("""
        CREATE TABLE redrive_holder (
            item_no INTEGER NOT NULL, namespace INTEGER NOT NULL, name TEXT NOT NULL, PRIMARY KEY (item_no, name)
        ) WITHOUT ROWID;
        CREATE INDEX redrive_holder_name ON redrive_holder (namespace, name);
        DROP INDEX redrive_scheduled_held;""")
    for table in ("redrive_scheduled", "redrive_finished"):
        # A name that could be mistaken for the text of several is stored as such a text.
        connection.execute(f"""
            UPDATE {table} SET held_by = '[' || json_quote(held_by) || ',false]' WHERE substr(held_by, 1, 1) = '[';
            CREATE INDEX {table}_held ON {table} (held_by) WHERE substr(held_by, 1, 2) <> '{SEVERAL}'""")


FIRST = 5
"""The first schema of a release. Lower numbers were used during development; such files are refused."""
MIGRATIONS: tuple[Callable[[apsw.Connection, Instant], None], ...] = (
    _create,
    _add_has_replies,
    _add_queues_of_results,
    _add_dead_reason_of_leases,
    _add_totals,
    _add_dropped,
    _add_gates_and_breakers,
    _add_holders,
)
"""Migrations. The first creates schema FIRST in an empty file; each of the others migrates a file to the next schema,
in one transaction with the change of the version."""
NEWEST = FIRST + len(MIGRATIONS) - 1


def version_of(connection: apsw.Connection) -> int:
    """Return the schema of this file; 0 if it has none yet."""
    # Not connection.table_exists(): it trusts the connection's cached schema, and another process may have been first.
    if connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'redrive_meta'").get is None:
        return 0
    version: int = connection.execute("SELECT version FROM redrive_meta").get
    return version


def migrate(connection: apsw.Connection, now: Instant) -> None:
    """Migrate the file to the newest schema. The caller holds the write lock, so only one process does it."""
    found = version_of(connection)
    for version in range(max(found + 1, FIRST), NEWEST + 1):
        MIGRATIONS[version - FIRST](connection, now)
        connection.execute("UPDATE redrive_meta SET version = ?", (version,))
