"""The Redis store: many processes and hosts on a server, or a cluster, that keeps everything in memory and a log."""

from redrive.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
