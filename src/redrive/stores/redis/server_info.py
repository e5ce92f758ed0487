"""Version, durability and memory of a server, according to its own report."""

from __future__ import annotations

from typing import Any, NamedTuple

import redis.exceptions as rs

from redrive.errors import EngineUnsupported, StoreUnavailable
from redrive.store import Durability
from redrive.stores.redis.connection import ErrorEffect, NotSent, RedisConnection, classify_error

OLDEST_SERVER = (6, 2)
WARN_AT = 0.7
"""The share of maxmemory at which operators are warned."""
_SETTINGS = ("appendonly", "appendfsync", "maxmemory-policy")
_HOW = "set appendonly yes, appendfsync always and maxmemory-policy noeviction, or pass durability='relaxed'"


class RedisServerInfo(NamedTuple):
    """The report of a server. A field is None if the server does not report it."""

    version: str
    appendonly: bool | None
    appendfsync: str | None
    """`always`, `everysec` or `no`."""
    policy: str | None
    """Policy for a full memory; with `noeviction` the server refuses writes."""


class Memory(NamedTuple):
    """Memory of a server, in bytes."""

    used: int
    limit: int
    """0 if it has none."""

    @property
    def share(self) -> float | None:
        """Used of limit; None without a limit."""
        return self.used / self.limit if self.limit else None

    @property
    def warning(self) -> str | None:
        """A warning for operators, or None."""
        if self.share is None or self.share < WARN_AT:
            return None
        return (
            f"Redis uses {self.share:.0%} of its maxmemory ({self.limit:,} bytes); when it is full, puts are refused. "
            f"Dead letters stay until they are redriven or removed: set keep_dead, raise maxmemory, or send them to a "
            f"dead queue in another store"
        )


def read_server_info(connection: RedisConnection) -> RedisServerInfo:
    """Read settings and version. Managed servers forbid CONFIG: then INFO has all except the sync of the log."""
    *values, info = answers = connection.request(*[("CONFIG", "GET", name) for name in _SETTINGS], ("INFO",))
    for answer in answers:
        if isinstance(answer, rs.ResponseError) and classify_error(answer)[0] is ErrorEffect.RETRY:
            raise NotSent(classify_error(answer)[1]) from answer
    facts = _facts(info)
    settings = {_word(answer[0]): _word(answer[1]) for answer in values if isinstance(answer, list) and len(answer) > 1}
    only = settings.get("appendonly") or {"1": "yes", "0": "no"}.get(facts.get("aof_enabled", ""))
    return RedisServerInfo(
        version=facts.get("valkey_version") or facts.get("redis_version", ""),
        appendonly=None if only is None else only == "yes",
        appendfsync=settings.get("appendfsync"),
        policy=settings.get("maxmemory-policy") or facts.get("maxmemory_policy"),
    )


def check(found: RedisServerInfo, name: str) -> None:
    """Refuse a server that is too old, or could lose acknowledged changes."""
    check_version(found)
    problem = None
    if found.appendonly is False:
        problem = "it keeps no log (appendonly no): a crash loses what was acknowledged"
    elif found.appendfsync not in ("always", None):
        problem = f"it syncs its log later (appendfsync {found.appendfsync}): a crash loses what was acknowledged"
    elif found.policy not in ("noeviction", None):
        problem = f"it removes items when its memory is full (maxmemory-policy {found.policy})"
    elif None in (found.appendonly, found.appendfsync, found.policy):
        problem = "it does not report its durability (CONFIG GET is forbidden)"
    if problem is not None:
        raise StoreUnavailable(name, f"{problem}; {_HOW}")


def check_version(found: RedisServerInfo) -> None:
    """Refuse a server that is too old. One that reports no version is accepted."""
    numbers = tuple(int(part) for part in found.version.split(".")[:2] if part.isdigit())
    if numbers and numbers < OLDEST_SERVER:
        needed = ".".join(map(str, OLDEST_SERVER))
        raise EngineUnsupported("Redis", found.version, f"{needed} or newer is needed")


def describe_durability(found: RedisServerInfo, replicas: int) -> Durability:
    """Return the durability of acknowledged calls on such a server."""
    kept = found.appendonly and found.policy == "noeviction"
    if kept and found.appendfsync == "always":
        replaced = "" if replicas else ", unless a replica takes over that had not yet got it"
        return Durability(
            "full", "a crash of the program or the server, and a power cut", f"nothing acknowledged{replaced}"
        )
    losses = []
    if found.appendonly is False:
        losses.append("all since the last snapshot, if the server fails")
    elif found.appendfsync == "everysec":
        losses.append("the last second or two, if the server fails")
    elif found.appendfsync != "always":
        losses.append("what the server had not yet written, if it fails")
    if found.policy not in ("noeviction", None):
        losses.append(f"any item, when the memory is full ({found.policy})")
    return Durability("relaxed", "a crash of the program", "; ".join(losses) or "not reported by the server")


def memory(connection: RedisConnection) -> Memory:
    """Read the memory usage of a server."""
    (info,) = connection.request(("INFO", "memory"))
    facts = _facts(info)
    return Memory(int(facts.get("used_memory", 0)), int(facts.get("maxmemory", 0)))


def _facts(info: Any) -> dict[str, str]:
    """Return the lines of INFO; nothing if it is forbidden."""
    if isinstance(info, rs.ResponseError):
        return {}
    pairs = (line.partition(":") for line in _word(info).splitlines())
    return {name: value.strip() for name, colon, value in pairs if colon}


def _word(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
