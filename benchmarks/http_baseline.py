"""The same stack without Redrive: uvicorn, plain ASGI, msgspec. Each path parses a request and answers the same JSON.

`python -m benchmarks.http_baseline PORT ITEMS` serves until it is stopped. There is no routing, no token, no limit, no
count and no store: what is left is what nobody can do without.
"""

import os
import sys
from typing import Any

import msgspec
import uvicorn

from benchmarks.load import payload
from redrive.model.item import Counters, Receipt
from redrive.server.responses import SettledItem, SettledItems
from redrive.server.routes.leases import LeaseCall, LeasedItem, LeasedItems
from redrive.server.routes.produce import ProduceCall, Produced
from redrive.server.routes.settle import CompleteCall

ID = "4f0c91a27b3d000000068f1c2a3b4800"
AT = "2026-07-01T03:12:55.000000Z"


def answers(items: int) -> dict[str, tuple[Any, Any]]:
    """By path: what parses the request, and what is answered."""
    leased = LeasedItem(
        ID, ID + "0" * 16, AT, payload(), "json", "application/json", {}, 5, AT, 1, 1, 0, 0, 0
    )  # fmt: skip
    ended = SettledItem(ID, "q", "removed", Counters(1, 1))
    return {
        "/v1/queue.produce": (msgspec.json.Decoder(ProduceCall).decode, Produced((Receipt(ID),) * items)),
        "/v1/queue.lease": (msgspec.json.Decoder(LeaseCall).decode, LeasedItems([leased] * items)),
        "/v1/queue.complete": (msgspec.json.Decoder(CompleteCall).decode, SettledItems([ended] * items)),
    }


def application(items: int) -> Any:
    """Parse, answer."""
    table = answers(items)
    encode = msgspec.json.Encoder().encode

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        decode, answer = table[scope["path"]]
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        decode(body)
        text = encode(answer)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    return app


if __name__ == "__main__":
    if len(sys.argv) > 3:
        os.sched_setaffinity(0, {int(sys.argv[3])})
    uvicorn.run(
        application(int(sys.argv[2])),
        port=int(sys.argv[1]),
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )
