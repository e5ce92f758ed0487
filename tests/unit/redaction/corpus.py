"""The corpus of secrets and innocent texts, read from the files beside this one."""

from __future__ import annotations

import json
import random
import re
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parent
_ALPHABETS = {
    "alnum": string.ascii_letters + string.digits,
    "hex": "0123456789abcdef",
    "base64": string.ascii_letters + string.digits + "+/",
    "digits": string.digits,
    "upper": string.ascii_uppercase + string.digits,
}
_PLACEHOLDER = re.compile(r"\{\{(alnum|hex|base64|digits|upper):(\d+)(?::(\d+))?\}\}")


class Case(NamedTuple):
    """A value as it was put, and what of it must not be seen. Nothing: it must come out as it is."""

    where: str
    kind: Any
    value: Any
    secrets: tuple[str, ...]


def cases(path: Path) -> list[Case]:
    """The cases of a file. Their random parts are made here, so that no scanner of code takes them for real ones."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [_case(f"{path.name}:{number}", json.loads(line)) for number, line in enumerate(lines, 1)]


def _case(where: str, row: dict[str, Any]) -> Case:
    expand = _expander(where)
    secret = row.get("secret", [])
    secrets = [secret] if isinstance(secret, str) else secret
    return Case(where, row["kind"], _everywhere(row["value"], expand), tuple(map(expand, secrets)))


def _expander(where: str) -> Callable[[str], str]:
    """Within a line, a placeholder that has a number is the same text each time."""
    chance, known = random.Random(where), {}

    def one(found: re.Match[str]) -> str:
        text = "".join(chance.choices(_ALPHABETS[found[1]], k=int(found[2])))
        return known.setdefault(found[0], text) if found[3] else text

    return lambda text: _PLACEHOLDER.sub(one, text)


def _everywhere(value: Any, change: Callable[[str], str]) -> Any:
    match value:
        case str():
            return change(value)
        case list():
            return [_everywhere(member, change) for member in value]
        case dict():
            return {change(key): _everywhere(member, change) for key, member in value.items()}
    return value


def texts_in(value: Any) -> list[str]:
    """Every text and number that a person would see of a value."""
    match value:
        case list() | tuple():
            return [text for member in value for text in texts_in(member)]
        case dict():
            return [text for key, member in value.items() for text in (key, *texts_in(member))]
    return [str(value)]


def is_seen(secret: str, shown: Any) -> bool:
    """Whether a secret can be read, or 8 characters of a long random one."""
    pieces = {secret}
    if len(secret) >= 16 and secret.isascii() and not any(char in " -" for char in secret) and not secret.isdigit():
        pieces |= {secret[at : at + 8] for at in range(len(secret) - 7)}
    return any(piece in text for text in texts_in(shown) for piece in pieces)
