"""What stands where a secret could stand and is none: words of a message, code, placeholders."""

from __future__ import annotations

import re

# The first word of what a message says of a secret: `password: must be at least 8 characters`, `token=None`.
_WORDS = frozenset(
    ["a", "about", "access", "after", "allowed", "already", "an", "and", "any", "apply", "are", "argument", "as", "at", "attribute", "auth", "authentication", "bad", "be", "because", "been", "before", "being", "bool", "boolean", "both", "but", "by", "bytes", "can", "cannot", "can't", "changed", "char", "contains", "could", "default", "denied", "deprecated", "did", "different", "disabled", "does", "doesn't", "don't", "empty", "enabled", "error", "exceeded", "exception", "exists", "expired", "expires", "expiry", "failed", "failure", "false", "fetch", "field", "file", "flag", "for", "forbidden", "format", "found", "from", "generated", "given", "had", "has", "have", "header", "hidden", "if", "ignored", "in", "incorrect", "insufficient", "int", "integer", "invalid", "is", "issued", "it", "its", "leaked", "length", "less", "longer", "malformed", "manager", "mandatory", "masked", "may", "method", "mismatch", "missing", "missing_key", "more", "must", "never", "new", "nil", "no", "none", "not", "null", "number", "of", "off", "ok", "on", "only", "option", "optional", "optional[str]", "or", "parameter", "parsing", "please", "policy", "present", "protected", "provided", "rate", "read", "redacted", "rejected", "removed", "required", "reset", "retrieved", "retry", "revoked", "rotated", "rotation", "same", "secret", "secretstr", "server", "set", "shall", "should", "signed", "since", "specified", "str", "string", "supplied", "text", "than", "that", "the", "their", "there", "this", "to", "too", "true", "type", "unable", "unauthorized", "undefined", "unexpected", "unknown", "unset", "unsupported", "updated", "use", "used", "user", "using", "valid", "validation", "value", "values", "varchar", "verification", "verified", "via", "was", "were", "when", "which", "will", "with", "without", "wrong", "yes", "you", "your"]
)
# The same, where it stands in quotes or in a table.
_BEGINNINGS = frozenset(
    ["can't", "cannot", "contains", "did", "didn't", "does", "doesn't", "ensure", "expected", "expired", "failed", "field", "has", "have", "incorrect", "invalid", "is", "isn't", "may", "mismatch", "missing", "must", "no", "not", "please", "required", "shall", "should", "this", "too", "unable", "unknown", "value", "was", "will", "wrong"]
)
# The same, where it is all that is said.
_ALONE = frozenset(
    ["absent", "bad", "bool", "boolean", "bytes", "changed", "denied", "disabled", "empty", "enabled", "error", "exists", "expired", "failed", "failure", "false", "forbidden", "hidden", "ignored", "incorrect", "int", "integer", "invalid", "malformed", "masked", "mismatch", "missing", "n/a", "nil", "no", "none", "not", "null", "ok", "omitted", "optional", "provided", "redacted", "rejected", "removed", "required", "reset", "revoked", "rotated", "secretstr", "set", "str", "string", "true", "unauthorized", "undefined", "unknown", "unset", "unsupported", "updated", "valid", "varchar", "verified", "wrong", "yes"]
)
_FIRST = re.compile(r"[\w'/-]{1,32}+(?:\[\w{1,16}\])?")
_GOES_ON = re.compile(r"[,;:]?[ \t|]{1,3}[\w'\"(|=<>≥]")
_PLACEHOLDER = re.compile(
    r"[*•]{2,64}\w{0,4}|[xX#_.?-]{3,64}|<[^<>]{0,64}>?|\[[A-Za-z]{4,12}\]?"
    r"|\(?(?:hidden|redacted|masked|filtered|omitted|sensitive)\)?"
    r"|\$[A-Z][A-Z0-9_]{0,64}|\$\{{1,2}[^{}]{1,128}\}{0,2}|\$\([^()]{1,128}\)?|\{{1,2}[ \w.:!]{0,64}\}{0,2}"
    r"|[$:@][a-z_]{0,32}(?:pass|pw|secret|token|key|auth|cred)[a-z_]{0,32}|%\(\w{1,32}\)s|%[sdr]|\?"
)
# `os.environ['X']`, `self._password`, `get_token(user)`, `config["password"]`.
_CODE = re.compile(
    r"(?:await |new |not |lambda )?[A-Za-z_]\w{0,64}(?:\.[A-Za-z_]\w{0,64}){0,8}+[(\[]"
    r"|(?:self|cls|this|os|process|settings|config|conf|cfg|app|request|req|response|ctx|context|args|opts|options|params"
    r"|env|environ|kwargs|data|user|form|var|local|module|obj|secrets|credentials|creds|Values|vault)"
    r"(?:\.[A-Za-z_]\w{0,64}){1,8}+(?![\w.-])"
)


def is_said(value: str, after: str | None = None) -> bool:
    """Whether a text reads like what a message says of a secret, instead of one.

    `after` is what follows a value without quotes, of which any word may be the first of a sentence.
    """
    first = _FIRST.match(value)
    if first is None:
        return False
    word, rest = first[0].lower(), value[first.end() :] + (after or "")
    if _GOES_ON.match(rest):
        return word in (_BEGINNINGS if after is None else _WORDS)
    return first.end() == len(value.rstrip(".,;:!?)")) and word in _ALONE


def is_placeholder(value: str) -> bool:
    """Whether it stands for a secret that is filled in elsewhere, or was hidden by someone else: `${TOKEN}`, `****`."""
    return _PLACEHOLDER.fullmatch(value) is not None


def is_code(value: str) -> bool:
    """Whether it is an expression of a program that gives a secret."""
    return _CODE.match(value) is not None


def is_random(value: str, least: int) -> bool:
    """Whether it looks made by a machine: long, in one piece, and no word, number or path."""
    if len(value) < least or value.isdigit() or any(char.isspace() for char in value[:512]):
        return False
    if not any(char.isdigit() for char in value[:512]):
        return len(value) >= 20 and not value.islower() and not value.isupper() and value.isalnum()
    return re.search(r"[A-Za-z]", value) is not None and _FILE.search(value) is None


_FILE = re.compile(r"^(?:https?://|/|\./)|/.{0,256}\.[a-z]{2,4}$")
