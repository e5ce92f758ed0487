"""A process that makes HTTP requests as fast as they are answered, over keep-alive connections, and counts items.

`python -m benchmarks.http_load PORT KIND CONNECTIONS ITEMS SECONDS TOKEN` prints one line of JSON. Requests are made
once and sent again and again; of an answer only its length and, for leases, its tokens are read. On uvloop it makes
several times the requests that the server answers; the share of its core that it used is in its answer.
"""

import asyncio
import json
import sys
import time
from typing import Any

from benchmarks.load import payload

WARM_UP_SECONDS = 0.3
_TOKEN = b'"token":"'
_TOKEN_CHARS = 48
QUEUE = "q"


def head_of(route: str, token: str) -> bytes:
    head = f"POST /v1/{route} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}authorization: Bearer {token}\r\n".encode() if token else head.encode()


def request(route: str, body: dict[str, Any], token: str) -> bytes:
    text = json.dumps(body, separators=(",", ":")).encode()
    return head_of(route, token) + b"content-length: %d\r\n\r\n" % len(text) + text


class Load:
    """What all connections did together."""

    def __init__(self, kind: str, items: int, token: str) -> None:
        self.kind = kind
        self.items = items
        self.put = request("queue.produce", {"queue": QUEUE, "items": [{"payload": payload()}] * items}, token)
        self.lease = request("queue.lease", {"queue": QUEUE, "limit": items, "worker": "load"}, token)
        self.complete = head_of("queue.complete", token)
        self.finished = 0
        self.requests = 0
        self.empty = False
        self.counting = False


class Connection(asyncio.Protocol):
    """Sends a request, waits for its answer, sends the next."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.buffer = b""
        self.completing = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        transport.write(self.load.put if self.load.kind == "put" else self.load.lease)

    def data_received(self, data: bytes) -> None:
        self.buffer = self.buffer + data if self.buffer else data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        start = self.buffer.find(b"content-length: ") + 16
        size = int(self.buffer[start : self.buffer.find(b"\r", start)])
        if len(self.buffer) < end + 4 + size:
            return
        answer, self.buffer = self.buffer, b""
        if not answer.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"the server refused: {answer[:500]!r}")
        self.load.requests += self.load.counting
        self._next(answer)

    def _next(self, answer: bytes) -> None:
        load = self.load
        if load.kind == "put":
            load.finished += load.items if load.counting else 0
            self.transport.write(load.put)
        elif self.completing:
            load.finished += self.completing if load.counting else 0
            self.completing = 0
            self.transport.write(load.lease)
        else:
            parts = answer.split(_TOKEN)[1:]
            if not parts:
                load.empty = True
                return
            self.completing = len(parts)
            items = b",".join(b'{"token":"' + part[:_TOKEN_CHARS] + b'"}' for part in parts)
            body = b'{"queue":"' + QUEUE.encode() + b'","items":[' + items + b"]}"
            self.transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (load.complete, len(body), body))


async def run(port: int, kind: str, connections: int, items: int, seconds: float, token: str) -> dict[str, float]:
    load = Load(kind, items, token)
    loop = asyncio.get_running_loop()
    opened = [await loop.create_connection(lambda: Connection(load), "127.0.0.1", port) for _ in range(connections)]
    await asyncio.sleep(WARM_UP_SECONDS)
    load.counting = True
    began, busy = time.perf_counter(), time.process_time()
    await asyncio.sleep(seconds)
    load.counting = False
    took, used = time.perf_counter() - began, time.process_time() - busy
    for transport, _ in opened:
        transport.abort()
    if load.empty:
        raise SystemExit("the queue ran empty: fill it with more")
    return {"items": load.finished, "requests": load.requests, "seconds": took, "busy": used / took}


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        arguments = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]), sys.argv[6]
        print(json.dumps(runner.run(run(*arguments))))
