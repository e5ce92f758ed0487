"""The results as a page of Markdown: machine, bars, then every figure with its spread."""

from itertools import groupby

from benchmarks.harness import Bar, Case, Results, Spread, Suite, Verdict, judge
from benchmarks.load import Facts

UNITS = {
    "rate": "items/s",
    "microseconds": "µs",
    "vm_steps": "VM steps",
    "statements": "statements",
    "rows": "rows written",
    "mib": "MiB",
    "early_mib": "MiB, early",
    "seconds": "s",
    "p50_ms": "ms, median",
    "p99_ms": "ms, p99",
    "longest_ms": "ms, longest",
    "completed_share": "of what was offered",
    "recovered": "of before a kill, median of the kills",
    "worst": "of before a kill, after the worst one",
    "put_ms": "ms, raw put",
    "told_ms": "ms, raw notice heard",
    "lease_ms": "ms, raw lease",
    "round_ms": "ms, these three",
    "times": "×",
    "p50_times": "× the median before",
    "p99_times": "× the p99 before",
}


def markdown(machine: Facts, rounds: int, suite: Suite, results: Results) -> str:
    """Made by `python -m benchmarks`; nobody edits it by hand."""
    lines = [
        f"# Benchmark: {suite.name}",
        "",
        f"Made by `./dev bench {suite.name}`; do not edit. Medians of {rounds} interleaved rounds, smallest and",
        "largest beside them; ratios are taken within a round. Rates count items that are durably finished.",
        suite.durable,
        "",
        *_machine(machine | _disk_during_the_run(results)),
        "",
        *_bars([judge(bar, results) for bar in suite.bars]),
        "",
        f"![rates]({suite.name}.svg)",
    ]
    for group, cases in groupby(suite.cases, key=lambda case: case.group):
        members = list(cases)
        lines += ["", f"## {group}", "", *_figures(members, results), *_kept(members, results)]
    return "\n".join(lines) + "\n"


def _disk_during_the_run(results: Results) -> Facts:
    probes = [measurement.sync_microseconds for series in results.values() for measurement in series.rounds]
    if not probes:
        return {}
    spread = Spread.of(probes)
    return {"sync before each case": f"{spread.median:.0f} µs median, {spread.low:.0f}–{spread.high:.0f} µs"}


def _machine(machine: Facts) -> list[str]:
    return ["| machine | |", "|---|---|", *(f"| {name} | {value} |" for name, value in machine.items())]


def _bars(verdicts: list[Verdict]) -> list[str]:
    head = ["## Bars", "", "| bar | limit | measured | min–max | against | |", "|---|--:|--:|--:|---|---|"]
    missed = [f"- {verdict.bar.text}: {verdict.bar.why}." for verdict in verdicts if verdict.word == "miss"]
    return head + [_bar(verdict) for verdict in verdicts] + (missed and ["", "Missed:", "", *missed])


def _bar(verdict: Verdict) -> str:
    bar, ratio = verdict.bar, verdict.ratio
    times = " ×" if bar.against else ""
    measured = f"{ratio.median:.2f}{times} | {ratio.low:.2f}–{ratio.high:.2f}" if ratio else "– | –"
    word = f"**{verdict.word}**" if verdict.word == "miss" else verdict.word
    return f"| {bar.text} | {_limit(bar)} | {measured} | {verdict.against or ', '.join(bar.against[:1])} | {word} |"


def _limit(bar: Bar) -> str:
    times = " ×" if bar.against else ""
    if bar.at_least is not None:
        return f"≥ {bar.at_least:g}{times}"
    return "–" if bar.at_most is None else f"≤ {bar.at_most:g}{times}"


def _figures(cases: list[Case], results: Results) -> list[str]:
    lines = ["| case | | median | min–max | unit |", "|---|---|--:|--:|---|"]
    for case in cases:
        series = results[case.key]
        if series.missing or not series.rounds:
            lines.append(f"| {case.title} | `{case.key}` | – | – | not measured: {series.missing} |")
            continue
        for figure in series.rounds[0].figures:
            spread = Spread.of(series.samples(figure))
            lines.append(f"| {case.title} | `{case.key}` | {_numbers(spread)} | {UNITS[figure]} |")
    return lines


def _kept(cases: list[Case], results: Results) -> list[str]:
    """What is kept of each failure, where a case read that back."""
    found = [(case, series.rounds[-1].facts) for case in cases if (series := results[case.key]).rounds]
    rows = [
        f"| {case.title} | {facts['keeps']} | {facts['listed']} | {facts['again']} |"
        for case, facts in found
        if "keeps" in facts
    ]
    return rows and ["", "| case | keeps of a failure | lists failures | runs one again |", "|---|---|---|---|", *rows]


def _numbers(spread: Spread) -> str:
    digits = 0 if spread.median >= 100 else 1
    return f"{spread.median:,.{digits}f} | {spread.low:,.{digits}f}–{spread.high:,.{digits}f}"
