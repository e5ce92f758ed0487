"""The servers of a cluster, and the server of each slot."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import redis.exceptions as rs

from redrive.stores.redis.connection import Address, ConnectionLost, NotSent, RedisConnection


class Cluster:
    """The known servers of a cluster. For any thread: the next answer corrects outdated entries."""

    def __init__(self, first: Address, open_connection: Callable[[Address], RedisConnection]) -> None:
        self._open = open_connection
        self._first = first
        self._servers: tuple[Address, ...] = (first,)
        self._owners: dict[int, Address] = {}

    def owner(self, slot: int) -> Address:
        """Return the last known primary of the slot. Raises `NotSent` if no server answers."""
        found = self._owners.get(slot)
        return self._find_owner(slot) if found is None else found

    def moved(self, slot: int, to: Address) -> None:
        """Record the new server of a slot."""
        self._owners[slot] = to

    def forget(self, slot: int) -> None:
        """Forget the server of a slot, which cannot be reached or no longer has it. The next call asks again."""
        self._owners.pop(slot, None)

    def _find_owner(self, slot: int) -> Address:
        problems = []
        for server in dict.fromkeys((*self._servers, self._first)):
            try:
                connection = self._open(server)
            except NotSent as problem:
                problems.append(f"{server[0]}:{server[1]} {problem}")
                continue
            with contextlib.closing(connection):
                try:
                    (ranges,) = connection.request(("CLUSTER", "SLOTS"))
                except (NotSent, ConnectionLost) as problem:
                    problems.append(f"{server[0]}:{server[1]} {problem}")
                    continue
            if isinstance(ranges, rs.ResponseError):
                raise NotSent(f"{ranges}; leave +cluster out of the URL if this server is not part of a cluster")
            if owner := self._learn(ranges, slot, server):
                return owner
            problems.append(f"{server[0]}:{server[1]} knows no server for slot {slot}")
        raise NotSent("; ".join(problems))

    def _learn(self, ranges: list[Any], slot: int, asked: Address) -> Address | None:
        servers: dict[Address, None] = {}
        owner: Address | None = None
        for first, last, *nodes in ranges:
            addresses = [_address(node, asked) for node in nodes]
            servers |= dict.fromkeys(addresses)
            if first <= slot <= last:
                owner = addresses[0]
        if servers:
            self._servers = tuple(servers)
        if owner is not None:
            self._owners[slot] = owner
        return owner


def _address(node: list[Any], asked: Address) -> Address:
    """Return the address of a server. A server without a name is the one that was asked."""
    host = node[0].decode() if node[0] else asked[0]
    return host, int(node[1])
