"""A route of a server, with its decoder and its request counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from redrive.errors import InvalidInput, RequestTooLarge
from redrive.server.request import JSON, MESSAGEPACK
from redrive.server.responses import UnsupportedMediaType
from redrive.server.route import Route
from redrive.telemetry import metrics as names
from redrive.telemetry.metrics import Metrics

_LARGE_BODY = 1024 * 1024


class RequestTally:
    """Counts of the responses of one call. Updated in the event loop, and read from any thread."""

    __slots__ = ("call", "seconds", "statuses")

    def __init__(self, call: str, seconds: names.Histogram) -> None:
        self.call = call
        self.seconds = seconds
        self.statuses: dict[int, int] = {}

    def count(self, status: int, seconds: float) -> None:
        """Count a response."""
        self.statuses[status] = self.statuses.get(status, 0) + 1
        self.seconds.observe(seconds)


class ServedRoute:
    """A route with its prepared decoder, content type and counts."""

    __slots__ = ("content_type", "decoder", "route", "tally")

    def __init__(self, route: Route, metrics: Metrics) -> None:
        self.route = route
        self.decoder = None if route.request_type is None else msgspec.json.Decoder(route.request_type)
        self.content_type = MESSAGEPACK if route.request_type is None else JSON
        self.tally = RequestTally(route.name, metrics.distribution(names.HTTP_SECONDS, (route.name,)))

    def check_content_type(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise `UnsupportedMediaType` if a body is of another type. A request without a type is accepted."""
        given = headers.get(b"content-type")
        if given is None or given == self.content_type:
            return
        if given.partition(b";")[0].strip().lower() != self.content_type:
            raise UnsupportedMediaType(self.content_type.decode())

    def decode(self, body: bytes, max_values: int) -> Any:
        """Return the call in a JSON body. Raises `InvalidInput`, and `RequestTooLarge` if it has too many values."""
        assert self.decoder is not None
        if len(body) > _LARGE_BODY:
            _check_values(body, max_values)
        try:
            return self.decoder.decode(body or b"{}")
        except RecursionError:
            raise InvalidInput(f"the request is nested too deep for {self.route.name}") from None
        except ValueError as error:  # an error of msgspec about JSON or values, or text that is not UTF-8
            raise InvalidInput(f"the request is not what {self.route.name} takes: {error}") from None


def _check_values(body: bytes, most: int) -> None:
    """Raise `RequestTooLarge` if a JSON body has more values than may be parsed without a break."""
    if sum(map(body.count, (b",", b"[", b"{"))) > most:
        raise RequestTooLarge("the number of values in the request", most)
