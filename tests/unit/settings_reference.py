"""The tables of docs/reference/settings.md, made of what is declared: `python -m tests.unit.settings_reference` writes
them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from redrive.model.declaration import Option, options_of, texts_of
from redrive.model.duration import MAX_DURATION, DurationInput, format_duration
from redrive.model.feed import FeedKind
from redrive.model.options import Conditions, ConnectOptions, ItemOptions, OperationOptions
from redrive.model.queue_options import DEFAULTS, SETTINGS, QueueOptions

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"
RANGES = {
    "retry": "a table, see [below](#retry)",
    "final_errors": "a list of error types and classes",
    "error_rules": "a list of tables, see [below](#error_rules)",
    "dead_queue": "a queue, or a table",
    "feed": "`all`, `none`, or a list of kinds",
    "breakers": "a table, see [below](#breakers)",
    "redact": "a table, see [below](#redact)",
}
"""Of settings that are more than a number or a word."""
LINKS = {
    "Circuit breakers": "../guides/breakers.md",
    "how long to wait": "../guides/retries.md#retry-after",
    "another store": "../guides/cross-store-dead-letters.md",
    "while its item exists": "../concepts/durability.md#idempotency-keys",
    "dropped items": "../concepts/item-lifecycle.md#archive-and-drop",
    "Other stores": "../guides/cross-store-dead-letters.md",
    "a power cut": "../concepts/durability.md",
    "table of rules": "#redact",
    "a server knows": "../guides/authentication.md",
}
"""Where the page says more of what a text names."""


def text() -> str:
    """The page, with its tables as they must be."""
    page = PAGE.read_text()
    for heading, header, rows in (
        ("Of a queue", "| setting | default | range | for one item | meaning |", map(_setting, SETTINGS)),
        ("Of an item", "| option | meaning |", _meanings(ItemOptions)),
        ("Of a search", "| condition | meaning |", _meanings(Conditions)),
        ("Of an operation", "| option | meaning |", _meanings(OperationOptions)),
        ("Of connect", "| argument | meaning |", _meanings(ConnectOptions)),
    ):
        lines = [header, "|---" * (header.count("|") - 1) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
        table = "\n".join(lines) + "\n"
        pattern = rf"(\n## {heading}\n(?:\n[^|\n].*|\n)*?\n)(?:\|.*\n)+"
        page, found = re.subn(pattern, lambda before, table=table: before[1] + table, page)  # type: ignore[misc]
        assert found == 1, heading
    return page


def _meanings(declared: Any) -> Iterator[Sequence[str]]:
    return ((f"`{name}`", _linked(text)) for name, text in texts_of(declared).items())


def _setting(name: str) -> Sequence[str]:
    option = SETTINGS[name]
    item = f"`{name}`" if name in options_of(ItemOptions) else "no"
    return f"`{name}`", _default(name), _range(name, option), item, _linked(texts_of(QueueOptions)[name])


def _default(name: str) -> str:
    value = getattr(DEFAULTS, name)
    if name == "feed":
        left_out = [f"`{kind}`" for kind in FeedKind if kind not in value]
        return f"all but {', '.join(left_out)}"
    if value is None or name in RANGES:
        return "unset" if value is None else "none"
    if SETTINGS[name].type == DurationInput:
        return f"`{format_duration(value)}`"
    return f"`{value:,}`" if type(value) is int else f"`{str(value).lower()}`"


def _range(name: str, option: Option) -> str:
    if name in RANGES:
        return RANGES[name]
    if option.type == DurationInput:
        smallest = format_duration(0 if option.bounds.gt is None else 1)
        more = ", or `item`" if name == "idempotency_timeout" else ""
        return f"`{smallest}` to `{format_duration(MAX_DURATION)}`{more}"
    if option.type is int:
        return f"`{option.bounds.ge:,}` to `{option.bounds.le:,}`"
    *others, last = [f"`{word}`" for word in option.choices or ("true", "false")]
    return f"{', '.join(others)} or {last}"


def _linked(text: str) -> str:
    """A text as a cell: a part of a sentence, with links."""
    for phrase, target in LINKS.items():
        text = text.replace(phrase, f"[{phrase}]({target})", 1)
    first = text[0] if text.startswith(("`", "[")) else text[0].lower()
    return (first + text[1:]).removesuffix(".").replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(text())
