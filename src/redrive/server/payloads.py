"""Payloads in JSON: as the JSON they are, as text, or as base64."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from enum import StrEnum
from typing import Any

import msgspec

from redrive.errors import InvalidPayload
from redrive.model.payload import BYTES, JSON, TEXT, check_json, is_json


class Encoding(StrEnum):
    """How a payload stands in JSON."""

    JSON = "json"
    """The payload is the value itself."""
    UTF8 = "utf8"
    """The payload is a text."""
    BASE64 = "base64"
    """The payload is bytes, as base64."""


_CONTENT_TYPES = {Encoding.JSON: JSON, Encoding.UTF8: TEXT, Encoding.BASE64: BYTES}
_text_of = msgspec.json.Decoder(str).decode
_value_of = msgspec.json.Decoder().decode


def bytes_of(payload: msgspec.Raw, encoding: Encoding, content_type: str | None) -> tuple[bytes, str]:
    """The bytes to store and their content type. JSON is stored as it was written."""
    if encoding is Encoding.JSON:
        data = bytes(payload)
        check_json(data)
        if content_type is not None and not is_json(content_type):
            raise InvalidPayload("$", f"is JSON and its content type {content_type!r:.80} is not; name its encoding")
        return data, content_type or JSON
    try:
        text = _text_of(payload)
        data = text.encode() if encoding is Encoding.UTF8 else b64decode(text, validate=True)
    except (msgspec.MsgspecError, UnicodeError):
        raise InvalidPayload("$", f"must be a text where its encoding is {encoding}") from None
    except (NotBase64, ValueError) as error:
        raise InvalidPayload("$", f"is not base64: {error}") from None
    return data, content_type or _CONTENT_TYPES[encoding]


def shown(payload: bytes, content_type: str) -> tuple[Encoding, msgspec.Raw | str]:
    """A payload as an answer has it: the JSON itself, else the text of what is text, else base64."""
    if is_json(content_type):
        try:
            _value_of(payload)
            return Encoding.JSON, msgspec.Raw(payload)
        except (msgspec.MsgspecError, ValueError, OverflowError, RecursionError):
            pass  # whoever put these bytes called them JSON
    elif not content_type.startswith("text/"):
        return Encoding.BASE64, b64encode(payload).decode()
    try:
        return Encoding.UTF8, bytes(payload).decode()
    except UnicodeDecodeError:
        return Encoding.BASE64, b64encode(payload).decode()


def payload_view(payload: bytes, content_type: str) -> dict[str, Any]:
    """A payload with what is needed to read it."""
    encoding, form = shown(payload, content_type)
    return {"payload": form, "encoding": encoding, "content_type": content_type}
