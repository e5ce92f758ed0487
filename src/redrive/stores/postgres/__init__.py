"""The store on PostgreSQL: for several machines."""

from redrive.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
