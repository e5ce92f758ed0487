"""The statuses of an item and what leads from one to the next. Every arrow is checked against the state machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from docs.images.card import document, text

from redrive.model.item import Status
from redrive.model.state_machine import TRANSITIONS, Verb

TITLE = "Item lifecycle: the statuses of an item and what leads from one to the next"
WIDTH, HEIGHT = 840, 400
BOX_WIDTH, BOX_HEIGHT = 116, 46

NODES = {
    Status.PENDING: (165, 105, "work"),
    Status.ACTIVE: (430, 105, "work"),
    Status.COMPLETED: (705, 105, "good"),
    Status.FAILED: (265, 235, "wait"),
    Status.DEAD: (490, 235, "bad"),
    Status.ARCHIVED: (705, 235, "idle"),
    Status.MOVING: (705, 335, "idle"),
}
"""status → the centre of its box, and its colour."""


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow: its verbs, the statuses at its ends (None: the item does not exist), its path, and its label."""

    verbs: tuple[Verb, ...]
    start: Status | None
    end: Status | None
    path: str
    label: str
    x: float
    y: float


ARROWS = (
    Arrow((Verb.PUT,), None, Status.PENDING, "M35 105H105", "put", 70, 97),
    Arrow((Verb.LEASE,), Status.PENDING, Status.ACTIVE, "M223 105H370", "lease", 297, 97),
    Arrow((Verb.COMPLETE,), Status.ACTIVE, Status.COMPLETED, "M488 105H645", "complete", 567, 97),
    Arrow(
        (Verb.RELEASE, Verb.LOSE),
        Status.ACTIVE,
        Status.PENDING,
        "M425 82C405 25 190 25 170 80",
        "release, or the lease expired",
        297,
        30,
    ),
    Arrow((Verb.FAIL,), Status.ACTIVE, Status.FAILED, "M395 128 300 210", "fail", 372, 182),
    Arrow((Verb.PROMOTE,), Status.FAILED, Status.PENDING, "M235 212 187 131", "backoff elapsed", 270, 166),
    Arrow(
        (Verb.FAIL, Verb.LOSE, Verb.RELEASE, Verb.BURY),
        Status.ACTIVE,
        Status.DEAD,
        "M440 128 478 209",
        "limit reached, final error, bury",
        567,
        172,
    ),
    Arrow((Verb.ARCHIVE,), Status.DEAD, Status.ARCHIVED, "M548 227H645", "archive", 597, 219),
    Arrow((Verb.RESTORE,), Status.ARCHIVED, Status.DEAD, "M647 243H550", "restore", 597, 262),
    Arrow(
        (Verb.REDRIVE, Verb.RETRY),
        Status.DEAD,
        Status.PENDING,
        "M470 258C420 350 130 360 125 131",
        "redrive, retry",
        290,
        349,
    ),
    Arrow(
        (Verb.REDRIVE, Verb.MOVE),
        Status.DEAD,
        Status.MOVING,
        "M505 258C520 320 580 335 645 335",
        "to another store",
        545,
        355,
    ),
    Arrow((Verb.FINISH_MOVE,), Status.MOVING, None, "M763 335H812", "", 0, 0),
    Arrow((Verb.PURGE,), Status.ARCHIVED, None, "M763 235H812", "purge", 788, 227),
)
NOTES = ((705, 147, "kept for keep_completed"), (265, 277, "until ready_at"), (788, 327, "arrived"))

STYLE = """\
.arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#tip) }
.tip { fill: #57606a }
.box { stroke-width: 1.5 }
.work { fill: #ddf4ff; stroke: #0969da }
.good { fill: #dafbe1; stroke: #1a7f37 }
.wait { fill: #fff8c5; stroke: #9a6700 }
.bad { fill: #ffebe9; stroke: #cf222e }
.idle { fill: #f6f8fa; stroke: #57606a }
"""
DARK = """\
.arrow { stroke: #9198a1 }
.tip { fill: #9198a1 }
.work { fill: #0c2d6b; stroke: #58a6ff }
.good { fill: #0f3d1e; stroke: #3fb950 }
.wait { fill: #3d2e00; stroke: #d29922 }
.bad { fill: #5c1a1a; stroke: #f85149 }
.idle { fill: #212830; stroke: #9198a1 }
"""
TIP = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
    'orient="auto"><path class="tip" d="M0 0 10 5 0 10z"/></marker></defs>'
)


def svg() -> str:
    """The diagram as a picture."""
    return document(WIDTH, HEIGHT, TITLE, [TIP, *_arrows(), *_boxes(), *_notes()], style=STYLE, dark=DARK)


def wrong_arrows() -> list[Arrow]:
    """Arrows that the state machine does not have."""
    return [
        arrow
        for arrow in ARROWS
        for verb in arrow.verbs
        if arrow.start not in TRANSITIONS[verb][0] or arrow.end not in TRANSITIONS[verb][1]
    ]


def _arrows() -> Iterator[str]:
    for arrow in ARROWS:
        yield f'<path class="arrow" d="{arrow.path}"/>'
        if arrow.label:
            yield text(arrow.x, arrow.y, arrow.label, "muted middle")


def _boxes() -> Iterator[str]:
    for status, (x, y, colour) in NODES.items():
        left, top = x - BOX_WIDTH / 2, y - BOX_HEIGHT / 2
        yield (
            f'<rect class="box {colour}" x="{left:g}" y="{top:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" '
            f'rx="{BOX_HEIGHT / 2:g}"/>'
        )
        yield text(x, y + 5, status.value, "strong middle")


def _notes() -> Iterator[str]:
    for x, y, words in NOTES:
        yield text(x, y, words, "muted middle")
