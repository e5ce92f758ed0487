"""Requests as bytes, for servers that must answer alike: usual ones, hostile ones, and mutations of both.

What differs from server to server stands in them as a text of the same length, and is replaced before they are sent:
`LEASE` by the token of a lease, a token of `TOKENS` by one that the server knows.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

LEASE = "feed" * 12
TOKENS = {
    role: f"redrive_{number:08x}_{'a' * 48}"
    for number, role in enumerate(("admin", "producer", "consumer", "limited", "viewer", "elsewhere"))
}
PRODUCE, TAKE, COMPLETE = "/v1/queue.produce", "/v1/queue.lease", "/v1/queue.complete"
BODIES: dict[str, dict[str, Any]] = {
    PRODUCE: {"queue": "own-jobs", "items": [{"payload": {"to": "ann", "n": 1}}]},
    TAKE: {"queue": "own-jobs", "limit": 1, "worker": "w"},
    COMPLETE: {"queue": "own-jobs", "items": [{"token": LEASE}]},
}
"""By path, a request that is usual."""


def encoded(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def request(
    path: str,
    body: bytes,
    *headers: bytes,
    method: bytes = b"POST",
    version: bytes = b"1.1",
    host: bytes = b"host: 127.0.0.1",
    length: bytes | None = None,
    token: str | None = None,
) -> bytes:
    """One request. Headers are lines without their ends."""
    lines = [b"%b %b HTTP/%b" % (method, path.encode(), version)]
    lines += [host] if host else []
    lines += [f"authorization: Bearer {TOKENS[token]}".encode()] if token else []
    lines += headers
    lines += [b"content-length: %d" % len(body)] if length is None else [length] if length else []
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def usual(token: str | None = None) -> Iterator[bytes]:
    """Requests that take the direct path, as clients write them."""
    for path, body in BODIES.items():
        yield request(path, encoded(body), b"content-type: application/json", token=token)
        yield request(path, encoded(body), token=token)
        yield request(path, encoded(body), b"Content-Type: application/json; charset=utf-8", token=token)
        yield request(path, json.dumps(body, indent=2).encode(), b"user-agent: x", b"accept: */*", token=token)


ITEMS: list[Any] = [
    {"payload": 1, "priority": 9},
    {"payload": 1, "priority": 10},
    {"payload": 1, "priority": "5"},
    {"payload": None},
    {"payload": "AAEC", "encoding": "base64"},
    {"payload": "not base64!", "encoding": "base64"},
    {"payload": 1, "delay": "1h"},
    {"payload": 1, "delay": -1},
    {"payload": 1, "delay": 1e300},
    {"payload": 1, "enqueue_at": "2030-01-01T00:00:00Z"},
    {"payload": 1, "enqueue_at": "soon"},
    {"payload": 1, "delay": 5, "enqueue_at": "2030-01-01T00:00:00Z"},
    {"payload": 1, "idempotency_key": "once"},
    {"payload": 1, "idempotency_key": ""},
    {"payload": 1, "idempotency_key": "x" * 3000},
    {"payload": 1, "held_by": "ops"},
    {"payload": 1, "headers": {"a": "b"}},
    {"payload": 1, "headers": {"redrive-reply-to": "own-jobs"}},
    {"payload": 1, "headers": {"a": 1}},
    {"payload": 1, "kind": "k", "headers": {"kind": "k"}},
    {"payload": 1, "kind": "mail", "reference": "r-1", "content_type": "application/json"},
    {"payload": 1, "content_type": "text/plain"},
    {"payload": 1, "max_attempts": 2, "retry": {"cooldown": "1s"}},
    {"payload": 1, "max_attempts": -1},
    {"payload": 1, "unknown": 1},
    {"payload": "\ud800"},
    {"payload": "x" * 5000},
    {},
    7,
    None,
]
VALUES: dict[str, list[Any]] = {
    "queue": [
        "other",
        "own-full",
        "own-paused",
        "own-none",
        "",
        "x" * 300,
        "a b",
        "own-jobs@there",
        "*",
        7,
        None,
        ["q"],
    ],
    "limit": [0, 1, 2, -1, 1000, 1001, 10**30, 1.5, "1", True, None],
    "wait": [0, 0.001, "1ms", "20s", -1, "never", 1e308, None, []],
    "worker": ["w" * 300, "", "a\x00b", "é", 1, None],
    "lease_timeout": ["1h", 60, 0, -5, "x", None],
    "items": [[], {}, None, "x", [{"token": LEASE}] * 2, [{"payload": 1}] * 2, *([each] for each in ITEMS)],
    "nothing_of_this_name": [1],
}
RESULTS: list[Any] = [
    {"token": LEASE, "result": {"a": [1]}},
    {"token": LEASE, "result": 1, "keep_result": "1h"},
    {"token": LEASE, "result": 1, "keep_result": "x"},
    {"token": LEASE, "puts": [{"queue": "own-next", "payload": 1}]},
    {"token": LEASE, "puts": [{"queue": "other", "payload": 1}]},
    {"token": LEASE, "puts": [{"queue": "own-none", "payload": 1}]},
    {"token": "0" * 48},
    {"token": "zz"},
    {"token": LEASE.upper()},
    {"token": 5},
    {"token": LEASE, "more": 1},
]


def bodies() -> Iterator[tuple[str, bytes]]:
    """Bodies of each call with one thing in them that is different, or wrong."""
    for path, body in BODIES.items():
        for name, values in VALUES.items():
            for value in values:
                yield path, encoded({**body, name: value})
        for name in body:
            yield path, encoded({key: value for key, value in body.items() if key != name})
        text = encoded(body)
        yield path, text[:-1]
        yield path, text + b"{}"
        yield path, b""
        yield path, b"null"
        yield path, b"[" * 3000
        yield path, text.replace(b"own-jobs", b"own-\xff")
        yield path, text.replace(b"own-jobs", b"own-\\ud800")
        yield path, b'{"queue":"own-jobs",' + text[1:]
        yield path, b" " * 20_000 + text
        yield path, b" " * 31_000 + text
        yield path, b" " * 70_000 + text
        yield path, b" " * 200_000 + text
    for result in RESULTS:
        yield COMPLETE, encoded({"queue": "own-jobs", "items": [result]})
        yield COMPLETE, encoded({"queue": "own-next", "items": [result]})


def heads() -> Iterator[bytes]:
    """Usual bodies under heads with one thing that is different, or wrong."""
    for path, plain in BODIES.items():
        body = encoded(plain)
        for method in (b"GET", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"PATCH", b"post", b"BREW", b"CONNECT"):
            yield request(path, body, method=method)
        for version in (b"1.0", b"1.1", b"0.9", b"2.0", b"1.2", b"x"):
            yield request(path, body, version=version)
            yield request(path, body, b"connection: keep-alive", version=version)
        for target in ("?", "?a=b", "#x", "/", "%2e", "x", " ", "//", ";v=1"):
            yield request(path + target, body)
        for target in (path.upper(), "/" + path, path.replace(".", "%2E"), "http://127.0.0.1" + path, path[1:], "*"):
            yield request(target, body)
        for line in (
            *(b"connection: close", b"connection: keep-alive, close", b"connection: upgrade", b"expect: 100-continue"),
            *(b"expect: something", b"upgrade: websocket", b"connection: upgrade\r\nupgrade: websocket"),
            *(b"connection: upgrade\r\nupgrade: h2c\r\nhttp2-settings: x", b"te: trailers", b"trailer: x"),
            *(b"content-type: text/plain", b"content-type: application/msgpack", b"content-type:", b"content-type: ;"),
            *(b"content-type: APPLICATION/JSON", b"content-type: application/json\r\ncontent-type: text/plain"),
            *(b"content-type: text/plain\r\ncontent-type: application/json", b"content-encoding: gzip"),
            *(b"origin: http://evil.example", b"origin: http://127.0.0.1", b"origin: null", b"sec-fetch-site: none"),
            *(b"sec-fetch-site: cross-site", b"sec-fetch-site: same-site", b"redrive-namespace: default"),
            *(b"redrive-namespace: \xff", b"redrive-namespace:", b"redrive-namespace: a b", b"redrive-namespace: ../x"),
            *(b"redrive-namespace: redrive-tokens", b"redrive-namespace: team", b"authorization: Bearer x"),
            *(b"authorization: Basic eDp4", b"authorization:", b"x: " + b"y" * 3000, b"x: " + b"y" * 70_000),
            *(b"x\x00y: z", b"x: a\x00b", b"x y: z", b": z", b"x", b"x: a\r\n folded", b"x:\t tab \t", b"\xff\xfe: z"),
            *(b"cookie: a=b", b"range: bytes=0-1", b"traceparent: 00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01"),
        ):
            yield request(path, body, line)
        for host in (b"", b"host: evil.example", b"host: localhost", b"host:", b"host: [::1]:80", b"Host: 127.0.0.1"):
            yield request(path, body, host=host)
        yield request(path, body, b"host: other.example")
        size = len(body)
        for length in (
            *(b"", b"content-length: %d" % (size - 1), b"content-length: %d" % (size + 1), b"content-length: 0"),
            *(b"content-length: -1", b"content-length: +%d" % size, b"content-length: %d, %d" % (size, size)),
            *(b"content-length: %d\r\ncontent-length: %d" % (size, size), b"content-length: 0%d" % size),
            *(b"content-length: 99999999999999999999999", b"content-length: 50000000", b"content-length: x"),
            *(b"transfer-encoding: chunked", b"transfer-encoding: gzip", b"transfer-encoding: identity"),
            b"content-length: %d\r\ntransfer-encoding: chunked" % size,
        ):
            yield request(path, body, length=length)
        chunks = b"%x\r\n%b\r\n%x\r\n%b\r\n0\r\n" % (9, body[:9], size - 9, body[9:])
        for end in (b"\r\n", b"trailer: x\r\n\r\n", b"", b"x\r\n"):
            yield request(path, chunks + end, length=b"transfer-encoding: chunked")
        yield request(path, b"zz\r\n" + body, length=b"transfer-encoding: chunked")
        yield request(path, body, b"expect: 100-continue", version=b"1.0")


def pairs(token: str | None = None) -> Iterator[bytes]:
    """Requests one behind the other in one packet."""
    simple = [request(path, encoded(body), token=token) for path, body in BODIES.items()]
    health = request("/health/live", b"", method=b"GET")
    others = [
        health,
        request(PRODUCE, b"{", token=token),
        request(TAKE, encoded(BODIES[TAKE]), b"connection: close", token=token),
        request(COMPLETE, encoded(BODIES[COMPLETE]), version=b"1.0", token=token),
        b"no request at all\r\n\r\n",
        b"POST /v1/queue.produce HT",
        b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00",
    ]
    for first in simple:
        for second in (*simple, *others):
            yield first + second
            yield second + first
            yield first + first + second


def mutations(chance: random.Random, seeds: list[bytes], count: int) -> Iterator[bytes]:
    """Requests with one to three things wrong with them."""
    for _ in range(count):
        made = chance.choice(seeds)
        for _ in range(chance.choice((1, 1, 1, 2, 3))):
            made = chance.choice(MUTATIONS)(chance, made, seeds)
        yield made


def _truncated(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    return made[: chance.randrange(1, len(made) + 1)]


def _flipped(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    at = chance.randrange(len(made) or 1)
    return made[:at] + bytes([chance.randrange(256)]) + made[at + 1 :]


def _doubled_line(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    head, end, body = made.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    line = chance.choice(lines)
    return b"\r\n".join([*lines, line]) + end + body


def _without_line(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    head, end, body = made.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    del lines[chance.randrange(len(lines))]
    return b"\r\n".join(lines) + end + body


def _cut_piece(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    at = chance.randrange(len(made) or 1)
    return made[:at] + made[at + chance.randrange(1, 20) :]


def _doubled_piece(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    at = chance.randrange(len(made) or 1)
    piece = made[at : at + chance.randrange(1, 20)]
    return made[:at] + piece + made[at:]


_PIECES = (
    *(
        b"99999999999999999999999999",
        b"-1",
        b"1e999",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"null",
        b"[",
        b"{}",
        b'"',
        b"\\u0000",
    ),
    *(b"\r\n", b"\n", b"\x00", b"true", b",", b"%00", b"?x=1", b" ", b'"x":1,', LEASE.encode(), b"Bearer ", b"\t"),
)


def _inserted(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    at = chance.randrange(len(made) + 1)
    return made[:at] + chance.choice(_PIECES) + made[at:]


def _new_body(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    """A body that was changed, with the length it has."""
    head, _, body = made.partition(b"\r\n\r\n")
    changed = chance.choice((_flipped, _inserted, _cut_piece, _doubled_piece))(chance, body or b"{}", seeds)
    lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-length")]
    return b"\r\n".join([*lines, b"content-length: %d" % len(changed)]) + b"\r\n\r\n" + changed


def _followed(chance: random.Random, made: bytes, seeds: list[bytes]) -> bytes:
    return made + chance.choice(seeds)


MUTATIONS = (
    *(_truncated, _flipped, _doubled_line, _without_line, _cut_piece, _doubled_piece, _inserted, _followed),
    *(_new_body, _new_body, _new_body, _new_body),
)
