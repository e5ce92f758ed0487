"""Types of bodies: encoding to JSON, decoding, and the check of a type when a mailbox is created."""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar, cast, get_args, get_origin

import msgspec

from redrive.errors import InvalidInput, InvalidPayload, short_repr
from redrive.mailbox.mailbox_errors import SerializationError
from redrive.model.caller_input import is_of_a_signal
from redrive.model.exception import plain_name, safe_str
from redrive.model.item import Result
from redrive.model.limits import MAX_STORABLE_BYTES
from redrive.model.payload import JSON, decode_payload, encode_payload, is_json

T = TypeVar("T")
_UNFIT = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError, NotImplementedError)
_PATH = re.compile(r"(.*?)(?: - at `(.*)`)?$", re.DOTALL)


class BodyType(Generic[T]):
    """A type of bodies: any type that msgspec can decode from JSON. None: JSON values and bytes, unchanged."""

    def __init__(self, what: str, type: type[T] | None) -> None:
        self.type = type
        self._what = what
        self._decoder: msgspec.json.Decoder[T] | None = None
        if type is not None:
            try:
                self._decoder = msgspec.json.Decoder(type)
            except (TypeError, ValueError) as error:
                raise InvalidInput(f"{what}={short_repr(type, 80)} cannot be the type of a body: {error}") from error

    def encode(self, value: T) -> Result:
        """Return the value as JSON. Raises SerializationError if it cannot be decoded again as a value of this type."""
        if self._decoder is None:
            return Result(*encode_payload(value, None, MAX_STORABLE_BYTES))
        try:
            payload = msgspec.json.encode(value)
            self._decoder.decode(payload)
        except _UNFIT as error:
            raise _refusal(error) from error
        return Result(*encode_payload(payload, JSON, MAX_STORABLE_BYTES))

    def decode(self, payload: bytes, content_type: str) -> T:
        """Return the decoded value. Raises SerializationError with the message of the decoder."""
        try:
            if self._decoder is None:
                return cast("T", decode_payload(payload, content_type))
            if not is_json(content_type):
                raise SerializationError("$", f"is {content_type}, not JSON")
            return self._decoder.decode(payload)
        except InvalidPayload:
            raise
        except BaseException as error:  # a type of the program may raise anything in __post_init__, also an exit
            if isinstance(error, KeyboardInterrupt) or is_of_a_signal(error):
                raise
            raise _refusal(error) from error

    @property
    def argument(self) -> Any:
        """The first type argument of a generic type, like MyRequest of `DeadLetter[MyRequest]`; None if it has none."""
        return next(iter(get_args(self.type)), None)

    def is_a(self, kind: Any) -> bool:
        """Return whether the type is this generic type, with or without arguments, or a subclass of it."""
        found = get_origin(self.type) or self.type
        return isinstance(found, type) and issubclass(found, kind)


def _refusal(error: BaseException) -> SerializationError:
    """Return the error of msgspec as SerializationError, with its path and message."""
    text = safe_str(error)
    if not isinstance(error, _UNFIT):
        return SerializationError("$", f"raises {plain_name(error)}: {text}")
    found = _PATH.match(text)
    problem, path = (text, None) if found is None else found.groups()
    return SerializationError(path or "$", f"does not fit: {problem[:1].lower()}{problem[1:]}")
