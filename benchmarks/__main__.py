"""`python -m benchmarks sqlite` measures and writes benchmarks/results; `--list` names the cases."""

import argparse
import fnmatch
import json
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import machine, plot, report
from benchmarks.harness import ROOT, Case, Results, Suite, as_json, from_json, judge, measure_in_this_process, run
from benchmarks.load import Facts
from benchmarks.scenarios import SUITES

CACHE = ROOT / ".bench"
RESULTS = ROOT / "benchmarks" / "results"
LEAST_ROUNDS, ROUNDS = 3, 5


def main() -> int:
    arguments = _arguments()
    if arguments.list:
        for suite in SUITES.values():
            for case in suite.cases:
                print(f"{suite.name}  {case.key:32} {case.title}")
        return 0
    suite = SUITES[arguments.suite]
    if arguments.case:
        measure_in_this_process(suite.case(arguments.case), arguments.directory, arguments.prepare)
        return 0
    if arguments.judge:
        document = json.loads((RESULTS / f"{suite.name}.json").read_text())
        _written(RESULTS, suite, document["machine"], document["rounds"], from_json(suite, document))
        return 0
    chosen = _only(suite, arguments.only)
    work = _work_directory(arguments.work)
    facts = machine.facts(work)
    for name, value in facts.items():
        print(f"{name:14} {value}")
    results = run(chosen, arguments.rounds, work, _say)
    whole = chosen.cases == suite.cases and arguments.rounds >= LEAST_ROUNDS
    output = arguments.output or (RESULTS if whole else CACHE / "results")
    not_passed = _written(output, chosen, facts, arguments.rounds, results)
    return int(arguments.strict and not_passed > 0)


def _written(output: Path, suite: Suite, facts: Facts, rounds: int, results: Results) -> int:
    """Writes the report, and returns how many bars are not passed."""
    output.mkdir(parents=True, exist_ok=True)
    text = report.markdown(facts, rounds, suite, results)
    (output / f"{suite.name}.md").write_text(text)
    document = as_json(facts, rounds, suite, results)
    (output / f"{suite.name}.json").write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    (output / f"{suite.name}.svg").write_text(plot.svg(results))
    print(text)
    print(f"written to {output}")
    return sum(judge(bar, results).word not in ("pass", "shown") for bar in suite.bars)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("suite", nargs="?", default="sqlite", choices=sorted(SUITES))
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"medians are over this many (default {ROUNDS})")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="cases such as 'bare.*'")
    parser.add_argument("--work", type=Path, default=CACHE / "work", help="where the databases go: a real disk")
    parser.add_argument("--output", type=Path, help="default: benchmarks/results, or .bench/results for a partial run")
    parser.add_argument("--strict", action="store_true", help="end with 1 unless every bar is passed")
    parser.add_argument("--judge", action="store_true", help="measure nothing: write the report of the last run anew")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def _only(suite: Suite, patterns: list[str]) -> Suite:
    if not patterns:
        return suite

    def wanted(case: Case) -> bool:
        return any(fnmatch.fnmatch(case.key, pattern) for pattern in patterns)

    cases = [case for case in suite.cases if wanted(case)]
    keys = {case.key for case in cases}
    return replace(suite, cases=cases, bars=[bar for bar in suite.bars if keys & {bar.case, *bar.against}])


def _work_directory(path: Path) -> Path:
    CACHE.mkdir(exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    path.mkdir(parents=True, exist_ok=True)
    machine.require_real_disk(path)
    return path.resolve()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
