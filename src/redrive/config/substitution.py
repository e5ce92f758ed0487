"""Variables of the environment in texts of a file: `${NAME}`, so that no secret has to stand in it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

_VARIABLE = re.compile(r"\$\{([^}]*)(\}?)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PREFIX = "REDRIVE_"
_SECRETS = ("REDRIVE_TOKEN", "REDRIVE_URL")
"""Which are for one address, and that is not one of a file."""


def variables_in(text: str) -> tuple[str, ...]:
    """The names of the variables that a text has in it."""
    return tuple(name for name, _ in _VARIABLE.findall(text))


def mistake_in(text: str) -> str | None:
    """What is wrong with how a text names its variables."""
    wrong = any(not end or _NAME.fullmatch(name) is None for name, end in _VARIABLE.findall(text))
    return "has a ${ that begins no variable; write ${NAME}" if wrong else None


def not_for_addresses(text: str, allowed: Collection[str]) -> str | None:
    """What is wrong with the variables of an address: the author of the file could send any of them out by it."""
    for name in variables_in(text):
        if name not in allowed and (not name.startswith(_PREFIX) or name in _SECRETS):
            hint = "" if name in _SECRETS else f"call it {_PREFIX}{name}, or "
            return f"takes the variable {name}, which could send any secret away; {hint}add --allow-variable {name}"
    return None


def filled_in(text: str, environment: Mapping[str, str]) -> tuple[str, str | None]:
    """The text with the values of its variables; and what is wrong, which never shows a value."""
    problem = mistake_in(text)
    unset = [name for name in variables_in(text) if not environment.get(name)]
    if problem is None and unset:
        problem = f"needs the variable {unset[0]} of the environment, which is not set"
    return (text, problem) if problem else (_VARIABLE.sub(lambda found: environment[found[1]], text), None)
