"""What an error that the server answers means: whether the script ran, and what a person can do."""

from __future__ import annotations

import re
from enum import Enum, auto

import redis.exceptions as rs


class Meaning(Enum):
    """What is known of a script that was answered with an error."""

    LATER = auto()
    """It did not run, or stopped before its first write, and may run in a moment."""
    REFUSED = auto()
    """The same, and it will not run until somebody does something."""
    BROKE = auto()
    """It may have stopped half way."""


_MEMORY = "remove items, raise maxmemory, or send dead letters to a dead queue in another store"
_MEANINGS = {
    "NOSCRIPT": (Meaning.LATER, "it forgets scripts as soon as it is told them; somebody runs SCRIPT FLUSH in a loop"),
    "READONLY": (Meaning.LATER, "this server is a replica; connect to the primary"),
    "MASTERDOWN": (Meaning.LATER, "this server is a replica that lost its primary; connect to the primary"),
    "CLUSTERDOWN": (Meaning.LATER, "the cluster is down ({text}); see CLUSTER INFO, and bring the lost servers back"),
    "TRYAGAIN": (Meaning.LATER, "the cluster is moving these keys to another server; try again when that is done"),
    "BUSY": (Meaning.LATER, "a script runs there that does not end; wait, or end it with SCRIPT KILL"),
    "NOREPLICAS": (Meaning.LATER, "fewer replicas are there than its min-replicas-to-write asks for"),
    "OOM": (Meaning.REFUSED, f"its memory is full, nothing was changed; {_MEMORY}"),
    "MISCONF": (Meaning.REFUSED, "it cannot write to its disk ({text}); see its log, and free space"),
    "NOPERM": (Meaning.REFUSED, "{text}; grant this user the rights that the guide to Redis lists"),
    "CROSSSLOT": (Meaning.REFUSED, "{text}; this is a mistake in Redrive"),
}
_BEFORE_THE_FIRST_WRITE = ("READONLY", "MISCONF", "NOREPLICAS", "OOM")
"""What the server says within a script too: before its first write, and not again."""
_WITHIN = re.compile(rf"@user_script: ?\d+: -?({'|'.join(_BEFORE_THE_FIRST_WRITE)}) ")
"""How Redis 6 says it. Newer servers say it as outside a script, and name the script at the end."""
_REDIRECTION = re.compile(r"(MOVED|ASK) \d+ (.*):(\d+)")
_CODES: dict[type[rs.ResponseError], str] = {
    rs.NoScriptError: "NOSCRIPT",
    rs.ReadOnlyError: "READONLY",
    rs.MasterDownError: "MASTERDOWN",
    rs.ClusterDownError: "CLUSTERDOWN",
    rs.TryAgainError: "TRYAGAIN",
    rs.OutOfMemoryError: "OOM",
    rs.NoPermissionError: "NOPERM",
    rs.ClusterCrossSlotError: "CROSSSLOT",
}
"""Codes that the driver has taken from the text."""


def meaning(error: rs.ResponseError) -> tuple[Meaning, str]:
    """What the answer says of the script, and the problem in words."""
    text = str(error).strip().partition("\n")[0]
    code = _CODES.get(type(error)) or text.partition(" ")[0]
    if within := _WITHIN.search(text):
        code = within[1]
    elif "script:" in text and code not in _BEFORE_THE_FIRST_WRITE:
        return Meaning.BROKE, text
    known, words = _MEANINGS.get(code, (Meaning.BROKE, "{text}"))
    return known, words.replace("{text}", text)


def redirection(error: rs.ResponseError) -> tuple[str, int, bool] | None:
    """Where a cluster sends us: host (empty for the one that was asked), port, and whether for this once only."""
    code = "MOVED" if isinstance(error, rs.MovedError) else "ASK" if isinstance(error, rs.AskError) else ""
    found = _REDIRECTION.fullmatch(f"{code} {error}".strip())
    return None if found is None else (found[2], int(found[3]), found[1] == "ASK")
