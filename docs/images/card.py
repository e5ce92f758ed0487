"""What all pictures share: an opaque card, so that text is readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

SANS = "system-ui, -apple-system, 'Segoe UI', 'Liberation Sans', sans-serif"
STYLE = f"""\
text {{ font: 14px {SANS}; fill: #1f2328 }}
.card {{ fill: #ffffff; stroke: #d0d7de }}
.muted {{ fill: #57606a; font-size: 12.5px }}
.strong {{ font-weight: 600 }}
.middle {{ text-anchor: middle }}
.end {{ text-anchor: end }}
"""
DARK = """\
text { fill: #e6edf3 }
.card { fill: #0d1117; stroke: #3d444d }
.muted { fill: #9198a1 }
"""


def document(width: int, height: int, title: str, parts: Iterable[str], *, style: str = "", dark: str = "") -> str:
    """A whole SVG: the parts on a card. `style` and `dark` are rules beside those that all pictures have."""
    rules = f"{STYLE}{style}@media (prefers-color-scheme: dark) {{\n{DARK}{dark}}}\n"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' role="img" aria-label={quoteattr(title)}>',
            "<!-- Made by ./dev pictures; do not edit. -->",
            f"<title>{escape(title)}</title>",
            f"<style>\n{rules}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"/>',
            *parts,
            "</svg>",
            "",
        ]
    )


def text(x: float, y: float, words: str, classes: str = "") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}"{f" class={quoteattr(classes)}" if classes else ""}>{escape(words)}</text>'
