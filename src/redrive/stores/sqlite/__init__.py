"""The embedded store: one SQLite file, any number of threads and processes on one machine."""

from redrive.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
