"""A dot per rate with its min–max line, on a logarithmic axis, as an SVG that suits light and dark pages."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.harness import Results, Spread

WIDTH, LEFT, RIGHT, ROW, HEAD = 860, 270, 90, 22, 34

STYLE = """
  text { font: 12px system-ui, sans-serif; fill: #57606a } .title { font-size: 14px; font-weight: 600 }
  .grid { stroke: #8b949e; stroke-opacity: .3 } .end { text-anchor: end } .middle { text-anchor: middle }
  .redrive { fill: #d9622b; stroke: #d9622b } .engine { fill: #8b949e; stroke: #8b949e }
  .peer { fill: #3b82c4; stroke: #3b82c4 } text.redrive, text.engine, text.peer { stroke: none }
  @media (prefers-color-scheme: dark) { text { fill: #b1bac4 } }
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a panel: a label, who it belongs to, and the case it shows."""

    label: str
    kind: str
    case: str


def _rows(scenario: str, engine: str, batch: int) -> list[Row]:
    rows = [
        Row(f"{name}, k={k}", "engine", f"{name}.{engine}.200B.k{k}") for name in ("bare", "raw") for k in (1, batch)
    ]
    rows += [
        Row(f"Redrive, {n} blocking caller{'s' if n > 1 else ''}", "redrive", f"blocking.{engine}.200B.threads{n}")
        for n in (1, 8)
    ]
    return rows + [
        Row(f"Redrive, {n} async callers", "redrive", f"async.{scenario}.200B.callers{n}") for n in (32, 256)
    ]


def _peer_rows(scenario: str) -> list[Row]:
    return [
        Row(f"{peer.replace('_', '-')}, {n} thread{'s' if n > 1 else ''}", "peer", f"{peer}.{scenario}.threads{n}")
        for peer in ("litequeue", "persist_queue", "huey")
        for n in (1, 32)
    ]


PANELS = {
    "put, 200 B: items/s, logarithmic": _rows("put", "put", 1000) + _peer_rows("put"),
    "lease and complete, 200 B: items/s, logarithmic": _rows("lease_complete", "lease_complete", 100),
    "put, lease and complete, 200 B: items/s, logarithmic": [
        *(Row(f"Redrive, {n} async callers", "redrive", f"async.cycle.200B.callers{n}") for n in (32, 256)),
        *_peer_rows("cycle"),
    ],
}


def _postgres_rows(scenario: str, batch: str) -> list[Row]:
    return [
        *(Row(f"raw, k={k}", "engine", f"raw.{scenario}.k{k}") for k in (1, 100)),
        Row("Redrive, 256 async callers", "redrive", f"async.{scenario}.callers256"),
        Row(f"Redrive, {batch}", "redrive", f"hand.{scenario}"),
    ]


PANELS |= {
    "PostgreSQL: put, 200 B: items/s, logarithmic": [
        *_postgres_rows("put", "put_many of 1,000"),
        Row("Redrive, keyed, 256 async callers", "redrive", "async.keyed.callers256"),
        Row("pgqueuer, one by one", "peer", "pgqueuer.one"),
        Row("pgqueuer, 1,000 at a time", "peer", "pgqueuer.bulk"),
    ],
    "PostgreSQL: lease and complete, 200 B: items/s, logarithmic": _postgres_rows("lease_complete", "100 at a time"),
    "PostgreSQL: how deliveries end, 256 async callers: items/s, logarithmic": [
        Row(words, "redrive", f"settle.{end}")
        for end, words in (("complete", "complete"), ("retry", "failed, tried again"), ("dead", "failed, dead"))
    ],
}


def _drain_rows(store: str, peers: Mapping[str, str], suffix: str = "") -> list[Row]:
    ours = {
        "threads": "Redrive, 8 threads",
        "threads.x2": "Redrive, 2 × 8 threads",
        "awaited": "Redrive, 100 coroutines",
        "awaited.x2": "Redrive, 2 × 100 coroutines",
        "processes2": "Redrive, 2 processes",
    }
    return [
        *(Row(label, "redrive", f"{store}.redrive.{way}{suffix}") for way, label in ours.items()),
        *(Row(label, "peer", f"{store}.{way}{suffix}") for way, label in peers.items()),
    ]


_SQLITE_PEERS = {
    "huey.threads1": "huey, 1 thread",
    "huey.threads8": "huey, 8 threads",
    "huey.processes2": "huey, 2 processes",
    "persist_queue.threads1": "persist-queue, 1 thread",
    "persist_queue.threads8": "persist-queue, 8 threads",
    "litequeue.processes1": "litequeue, 1 process",
    "litequeue.processes2": "litequeue, 2 processes",
}
_POSTGRES_PEERS = {
    f"{peer}.x{n}": f"{peer}, {n} process{'es' if n > 1 else ''}"
    for peer in ("pgqueuer", "procrastinate", "saq")
    for n in (1, 2)
}
_REDIS_PEERS = {
    "dramatiq.p2t8": "dramatiq, 2 × 8 threads",
    "taskiq.stream10": "taskiq, stream, 2 × 10 tasks",
    "taskiq.stream100": "taskiq, stream, 2 × 100 tasks",
    "taskiq.list": "taskiq, list (may lose), 2 × 10 tasks",
    "saq.x2": "saq, 2 processes",
    "rq.x2": "rq, 2 × SimpleWorker",
    "arq.x1": "arq, 1 process",
    "arq.x2": "arq, 2 processes",
    "celery.solo2": "celery, 2 × solo",
    "celery.prefork2": "celery, prefork 2",
}
PANELS |= {
    f"{words}: failures that are kept: items/s, logarithmic": [
        Row("Redrive, 1 worker", "redrive", f"{store}.die"),
        Row("Redrive, 2 workers", "redrive", f"{store}.redrive.fail"),
        *(Row(f"{peer}, 2 processes", "peer", f"{store}.{peer}.fail") for peer in peers),
    ]
    for store, words, peers in (
        ("sqlite", "SQLite", ("huey",)),
        ("postgres", "PostgreSQL", ("pgqueuer", "procrastinate", "saq")),
        ("redis", "Redis, appendfsync always", ("dramatiq", "saq", "huey", "celery", "rq")),
    )
}
PANELS |= {
    "SQLite: drain of tasks that do nothing: items/s, logarithmic": _drain_rows("sqlite", _SQLITE_PEERS),
    "PostgreSQL: drain of tasks that do nothing: items/s, logarithmic": _drain_rows("postgres", _POSTGRES_PEERS),
    **{
        f"Redis, appendfsync {sync}: drain of tasks that do nothing: items/s, logarithmic": _drain_rows(
            "redis", _REDIS_PEERS, f".{sync}"
        )
        for sync in ("always", "everysec")
    },
}


def svg(results: Results) -> str:
    """Panels one below the other; rows that were not measured are left out."""
    panels = {title: _measured(rows, results) for title, rows in PANELS.items()}
    panels = {title: rows for title, rows in panels.items() if rows}
    spreads = [spread for rows in panels.values() for _, spread in rows]
    low = math.floor(math.log10(min((spread.low for spread in spreads), default=1)))
    high = math.ceil(math.log10(max((spread.high for spread in spreads), default=10)))

    def x(value: float) -> float:
        return LEFT + (math.log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    parts, top = [], 10
    for title, rows in panels.items():
        bottom = top + HEAD + ROW * len(rows)
        parts.append(f'<text class="title" x="12" y="{top + 16}">{escape(title)}</text>')
        for power in range(low, high + 1):
            at = x(10**power)
            parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top + HEAD - 6}" y2="{bottom}"/>')
            parts.append(f'<text class="middle" x="{at:.1f}" y="{bottom + 16}">{10**power:,}</text>')
        for index, (row, spread) in enumerate(rows):
            y = top + HEAD + ROW * index + ROW / 2 - 3
            parts.append(_dot(row, y, x(spread.low), x(spread.median), x(spread.high), spread.median))
        top = bottom + 40
    box = f'xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" width="{WIDTH}" height="{top}"'
    return "\n".join([f'<svg {box} role="img" aria-label="rates">', f"<style>{STYLE}</style>", *parts, "</svg>", ""])


def _measured(rows: list[Row], results: Results) -> list[tuple[Row, Spread]]:
    found = ((row, results[row.case].samples("rate")) for row in rows if row.case in results)
    return [(row, Spread.of(samples)) for row, samples in found if samples]


def _dot(row: Row, y: float, low: float, middle: float, high: float, median: float) -> str:
    return (
        f'<text class="end" x="{LEFT - 14}" y="{y + 4:.1f}">{escape(row.label)}</text>'
        f'<line class="{row.kind}" stroke-width="2" x1="{low:.1f}" x2="{high:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<circle class="{row.kind}" cx="{middle:.1f}" cy="{y:.1f}" r="4.5"/>'
        f'<text class="{row.kind}" x="{high + 10:.1f}" y="{y + 4:.1f}">{median:,.0f}</text>'
    )
