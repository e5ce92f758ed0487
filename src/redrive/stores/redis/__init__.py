"""The Redis store, for many processes and hosts, on a server or a cluster that keeps all data in memory and a log."""

from redrive.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
