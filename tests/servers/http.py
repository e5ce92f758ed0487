"""A real Redrive server for tests, as a process of its own, and a small client that makes a load."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.servers.reserved_port import ReservedPort

STARTING_SECONDS = 120.0


class HttpServer:
    """`redrive serve` on a store, on a free port. It can be killed and started again on the same port."""

    def __init__(self, url: str, folder: Path, *options: str) -> None:
        self._port = ReservedPort()
        self.port = self._port.number
        self.store_url = url
        self._options = options
        self._folder = folder
        self.log = folder / "server.log"
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("REDRIVE_")}
        command = [sys.executable, "-m", "redrive", "--url", self.store_url, "serve", "--port", str(self.port)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self._options], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=environment, cwd=self._folder,
            )  # fmt: skip
        end = time.monotonic() + STARTING_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"the server does not answer: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    def kill(self) -> None:
        """As by a crash."""
        self.process.kill()
        self.process.wait(STARTING_SECONDS)

    def stop(self, how: signal.Signals = signal.SIGTERM) -> int:
        """As by an operator; gives the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(STARTING_SECONDS)

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) * 1024


class Caller:
    """One keep-alive connection that calls the JSON routes. A connection that breaks is an OSError."""

    def __init__(self, port: int, token: str | None = None) -> None:
        self._port = port
        self._head = f"authorization: Bearer {token}\r\n" if token else ""
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def call(self, route: str, **arguments: Any) -> tuple[int, Any]:
        """POST /v1/ROUTE: the status, and the answer."""
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        body = json.dumps(arguments).encode()
        head = f"POST /v1/{route} HTTP/1.1\r\nhost: 127.0.0.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        try:
            self._writer.write(head.encode() + body)
            return await self._answer()
        except (OSError, EOFError):
            self.close()
            raise ConnectionError from None

    async def _answer(self) -> tuple[int, Any]:
        assert self._reader is not None
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = int(head.split("content-length:")[1].split("\r\n")[0])
        return int(head.split(" ", 2)[1]), json.loads(await self._reader.readexactly(length))

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Forget the connection; the next call makes another."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None
