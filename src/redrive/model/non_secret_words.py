"""Values in the place of a secret that are none: words of a message, code, placeholders."""

from __future__ import annotations

import re


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# The first word of a message about a secret: `password: must be at least 8 characters`.
_BEGINNINGS = _words(
    "can't cannot contains did didn't does doesn't ensure expected expired failed field has have incorrect invalid "
    "is isn't may mismatch missing must needs no not please required requires shall should this too unable unknown "
    "value was will wrong"
)
# The same without quotes, if a sentence follows: `use --token to sign in`.
_WORDS = _BEGINNINGS | _words(
    "a about access after allowed already an and any apply are argument as at attribute auth authentication bad be "
    "bearer because been before being bool boolean both but by bytes can changed char could default denied "
    "deprecated different disabled don't empty enabled error exceeded exception exists expires expiry failure false "
    "fetch file flag for forbidden format found from generated given had header hidden if ignored in insufficient "
    "int integer issued it its leaked length less longer malformed manager mandatory masked method more never new "
    "nil none null number of off ok on only option optional optional[str] or parameter parsing policy present "
    "protected provided rate read redacted rejected removed reset retrieved retry revoked rotated rotation same "
    "secret secretstr server set signed since specified str string supplied text than that the their there to true "
    "type unauthorized undefined unexpected unset unsupported updated use used user using valid validation values "
    "varchar verification verified via were when which with without yes you your"
)
# The same, if it is the only word: `token=None`.
_ALONE = _words(
    "absent active anonymous approved bad basic bearer booked canceled cancelled changed closed completed denied "
    "disabled empty enabled error exists expired failed failure false forbidden hidden ignored inactive include "
    "incorrect inherit invalid kerberos ldap malformed masked mismatch missing n/a nil no none not null oauth "
    "oauth2 off oidc ok omitted opened pass passed pending provided read redacted rejected removed required reset "
    "revoked rotated same-origin saml scheduled set sso true unauthorized undefined unknown unset unsupported "
    "updated valid verified write wrong yes"
)
# The same, if it is a type: `password varchar(64)`, `token: string`.
_TYPES = _words(
    "bigint binary blob bool boolean bytea bytes char citext clob int integer json jsonb keyword longtext mediumtext "
    "nchar nvarchar optional secretstr smallint str string text uuid varbinary varchar varchar2"
)
_SIZE = re.compile(r"\(\d{1,6}(?: char)?\)?", re.I)
_FIRST = re.compile(r"&?[\w'/-]{1,32}+(?:\[\w{1,16}\])?")
_GOES_ON = re.compile(r"[,;:]?[ \t|]{1,3}[\w'\"(|=<>≥]")
# `Token has expired.`, `Your password must …`
_SUBJECT = re.compile(
    r"(?:the |your |this )?(?:[a-z]{1,16} )?"
    r"(?:token|password|secret|session|code|pin|key|cookie|signature|credentials?) "
    r"(?:has|have|is|was|were|are|must|may|can|cannot|can't|should|does|doesn't|did|not|expired|required|invalid)\b"
    # `12 characters minimum`, `Reset your password`
    r"|\d{1,3} (?:char|digit|letter|segment)|[^\d\s]{1,16}(?: [^\d\s]{1,16}){0,4} (?:password|passphrase|passwort)\b",
    re.I,
)
_PLACEHOLDER = re.compile(
    r"[*•]{2,64}\w{0,4}|[\w-]{1,8}[*•]{4,64}\w{0,4}|[xX#_.?-]{3,64}|<[^<>]{0,64}>?|\[[A-Za-z]{3,12}\]?"
    r"|(?:hidden|redacted|masked|filtered|omitted|sensitive)|\([a-z]{3,16}\)?|!(?:Ref|Sub|GetAtt|vault|secret|env)"
    r"|\$[A-Z][A-Z0-9_]{0,64}|\$\{{1,2}[^{}]{0,128}\}{0,2}|\$\([^()]{1,128}\)?|\{{1,2}[ \w.:!]{0,64}\}{0,2}"
    r"|\{\{[^{}]{0,128}\}\}|(?:\{[\w.]{1,64}\}[-:/._]?){2,8}"
    r"|[$:@][a-z_]{0,32}(?:pass|pw|secret|token|key|auth|cred)[a-z_]{0,32}|%\w{0,8}\(\w{1,32}\)[s%]|%[sdr]|[?-]|\$\d{1,2}"
    r"|(?:YOUR|Your|your)[-_ ][A-Za-z_ -]{2,40}"
)
_SCHEME = re.compile(r"(?:bearer|basic|token|apikey) ", re.I)
# `get_token(user)`, `config["password"]`, `self._password`.
_CODE = re.compile(
    r"\(?(?:await |new |not |lambda )?[A-Za-z_$]\w{0,64}(?:\.[A-Za-z_]\w{0,64}){0,8}[(\[]"
    r"|(?:Read|Get|Import|ConvertTo)-[A-Z][A-Za-z]{1,32} "
    r"|\(?(?:self|cls|this|os|process|settings|config|conf|cfg|app|request|req|response|ctx|context|args|opts|options"
    r"|params|env|environ|kwargs|data|user|form|var|local|module|obj|secrets|credentials|creds|Values|vault)"
    r"(?:\.[A-Za-z_]\w{0,64}){1,8}(?![\w.-])"
)
_FILE_BEGINS = re.compile(r"https?://|\./|/[a-z]{2,24}/")
_FILE_ENDS = re.compile(r"/.{0,256}\.[a-z]{2,8}$")
_FILE_END_CHARS = 300  # more than the pattern can match
# Ids that services and systems allocate: `SM` and 32 digits, `S-1-5-21-…`.
_ID = re.compile(r"[A-Z]{2}[0-9a-f]{32}|S-1(?:-\d{1,12}){2,16}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d[\d:.,+Z -]{0,32}")
_PIECE = r"(?:[A-Za-z]{1,24}+\d{0,4}+|\d{1,12}+)"
_SLUG = re.compile(rf"{_PIECE}(?:[-_/.:]{{1,3}}+{_PIECE}){{1,32}}")
_PLACE = re.compile(
    rf"(?:[a-z][a-z0-9+]{{1,15}}:///?|arn:|~?/|\.{{1,2}}/)(?:[._-]?{_PIECE}(?:[-_/.:@#]{{1,3}}+|\Z)){{0,32}}"
)
_LOOKED_AT_CHARS = 512


def is_said(value: str, after: str | None = None) -> bool:
    """Return whether a text reads like a message about a secret, and not like a secret.

    `after` is the text after a value without quotes: more words may then start a sentence.
    """
    first = _FIRST.match(value)
    if first is None:
        return False
    word, rest = first[0].lower(), value[first.end() :] + (after or "")
    if _GOES_ON.match(rest):
        return word in (_BEGINNINGS if after is None else _WORDS) or _SUBJECT.match(first[0] + rest) is not None
    word = word.removeprefix("&")
    if word in _TYPES and _SIZE.match(rest):
        return True
    return first.end() == len(value.rstrip(" .,;:!?)")) and (word in _ALONE or word in _TYPES)


def is_placeholder(value: str) -> bool:
    """Return whether it is a placeholder for a secret, or a secret that is hidden already: `${TOKEN}`, `****`."""
    scheme = _SCHEME.match(value)
    return _PLACEHOLDER.fullmatch(value, scheme.end() if scheme else 0) is not None


def is_code(value: str) -> bool:
    """Return whether it is a code expression that returns a secret."""
    return _CODE.match(value) is not None


def is_slug(value: str) -> bool:
    """Return whether it consists of readable words and numbers: `checkout-redesign-2026-q4`."""
    return _SLUG.fullmatch(value) is not None


def is_place_or_time(value: str) -> bool:
    """Return whether it is a path or an address without random parts, or a time."""
    return _PLACE.fullmatch(value) is not None or _TIME.fullmatch(value) is not None


def is_random(value: str, least: int) -> bool:
    """Return whether it seems machine-generated: long, in one piece, and no word, number or path."""
    beginning = value[:_LOOKED_AT_CHARS]
    if len(value) < least or value.isdigit() or any(map(str.isspace, beginning)):
        return False
    if not any(map(str.isdigit, beginning)):
        return len(value) >= 20 and value.isalnum() and not value.islower() and not value.isupper()
    return any(map(str.isalpha, beginning)) and not (_is_file(value) or _ID.fullmatch(value))


def _is_file(value: str) -> bool:
    """Return whether it starts or ends like a path. Only the last `_FILE_END_CHARS` characters are searched."""
    begins = _FILE_BEGINS.match(value)
    return bool(begins or _FILE_ENDS.search(value, max(0, len(value) - _FILE_END_CHARS)))
