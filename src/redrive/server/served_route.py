"""A route of a server, with its decoder and its request counts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import msgspec.inspect

from redrive.errors import InvalidInput, RequestTooLarge
from redrive.model.text import suggest
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
            problem = _problem(self.route.request_type, body, error)
            raise InvalidInput(f"the request is not what {self.route.name} takes: {problem}") from None


_UNKNOWN = re.compile(r"unknown field `(?P<name>[^`]*)`(?: - at `\$(?P<path>[^`]*)`)?")
_ESCAPE = re.compile(
    rb"\\(?:u(d[89ab][0-9a-f]{2})(\\ud[c-f][0-9a-f]{2})?|u(d[c-f][0-9a-f]{2})|.)", re.DOTALL | re.IGNORECASE
)


def _problem(kind: Any, body: bytes, error: ValueError) -> str:
    """Return what is wrong with a request, in words about JSON."""
    if isinstance(error, UnicodeDecodeError):
        return "it has a text that is not UTF-8"
    if not isinstance(error, msgspec.ValidationError):
        for escape in _ESCAPE.finditer(body):
            high, low, alone = escape.groups()
            if alone or (high and not low):
                return f"it has the lone surrogate {escape[0].decode()}, which UTF-8 cannot hold"
        return str(error)
    unknown = _UNKNOWN.search(str(error))
    if unknown is None:
        return str(error)
    known = _fields_at(msgspec.inspect.type_info(kind), re.findall(r"\.(\w+)|\[", unknown["path"] or ""))
    return f"{error}{suggest(unknown['name'], known, {})}; there are {', '.join(sorted(known))}"


def _fields_at(kind: Any, path: Sequence[str]) -> set[str]:
    """Return the names of the fields of the objects at a path into a type. An empty step leads to the members."""
    if isinstance(kind, msgspec.inspect.Metadata):
        return _fields_at(kind.type, path)
    if isinstance(kind, msgspec.inspect.UnionType):
        return set().union(*(_fields_at(each, path) for each in kind.types))
    if isinstance(kind, msgspec.inspect.StructType):
        if not path:
            return {field.encode_name for field in kind.fields}
        return set().union(*(_fields_at(each.type, path[1:]) for each in kind.fields if each.encode_name == path[0]))
    inner = getattr(kind, "item_type", None) or getattr(kind, "value_type", None)
    return _fields_at(inner, path[1:]) if inner is not None and path else set()


def _check_values(body: bytes, most: int) -> None:
    """Raise `RequestTooLarge` if a JSON body has more values than may be parsed without a break."""
    if sum(map(body.count, (b",", b"[", b"{"))) > most:
        raise RequestTooLarge("the number of values in the request", most)
