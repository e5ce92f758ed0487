"""Compare the SQL stores of two checkouts: CPU of rare calls and deaths, and the statements of frequent ones.

    git worktree add /tmp/before f7986d8
    .venv/bin/python -m benchmarks.sql_calls /tmp/before                    # SQLite; µs of CPU per item, and the ratio
    .venv/bin/python -m benchmarks.sql_calls /tmp/before --url postgresql://localhost/bench
    .venv/bin/python -m benchmarks.sql_calls /tmp/before --statements       # SQLite: statements and VM steps
    .venv/bin/python -m benchmarks.sql_calls .                              # the noise: this checkout against itself

Both run in separate processes, in turns. On PostgreSQL the CPU is that of the client.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MANY = 200
"""Deaths in one commit."""
_numbers = itertools.count()


def main() -> None:
    """Run both in turns, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql_calls", description=__doc__.split("\n")[0])
    parser.add_argument("before", type=Path, help="another checkout")
    parser.add_argument("--url", help="a PostgreSQL database; schemas are made in it")
    parser.add_argument("--size", type=int, default=1_000, help="items of a case (default 1,000)")
    parser.add_argument("--rounds", type=int, default=5, help="medians are over this many (default 5)")
    parser.add_argument("--only", default="", help="cases whose names contain this text")
    parser.add_argument("--statements", action="store_true", help="compare statements of frequent calls on SQLite")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        found = statements() if arguments.statements else costs(arguments.url, arguments.size, arguments.only)
        print(json.dumps(found))
    elif arguments.statements:
        before, after = (_run(source, arguments) for source in (arguments.before, ROOT))
        for name, found in after.items():
            same = "identical" if found == before[name] else f"DIFFERENT\n  {before[name]}\n  {found}"
            print(f"{name:12} {len(found):3} statements, {sum(steps for _, steps in found):5} VM steps: {same}")
    else:
        rounds = [[_run(source, arguments) for source in (arguments.before, ROOT)] for _ in range(arguments.rounds)]
        for name in rounds[0][0]:
            before, after = (statistics.median(each[side][name] for each in rounds) for side in range(2))
            print(f"{name:36} {before:9.1f} {after:9.1f} µs   × {after / before:.2f}")


def _run(source: Path, arguments: argparse.Namespace) -> Any:
    given = [
        "--size",
        str(arguments.size),
        "--only",
        arguments.only,
        *(["--statements"] if arguments.statements else []),
    ]
    given += ["--url", arguments.url] if arguments.url else []
    command = [sys.executable, __file__, str(source), "--child", *given]
    environment = {**os.environ, "PYTHONPATH": str(source.resolve() / "src")}
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def _open(folder: str, url: str | None) -> Any:
    from redrive import connect

    number = f"{os.getpid()}_{next(_numbers)}"
    place = f"sqlite:///{folder}/{number}.db" if url is None else f"{url}?schema=bench_{number}"
    return connect(place, maintenance=False, actor="bench", durability="relaxed")


def costs(url: str | None, size: int, only: str) -> dict[str, float]:
    """Measure cases. Returns µs of CPU per item."""
    found = {}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        for name, case in CASES.items():
            if only not in name:
                continue
            with _open(folder, url) as broker:
                broker.create_queue("morgue")
                broker.create_queue("jobs")
                broker.create_queue("sent", dead_queue="morgue")
                steps = case(broker, size)
                count = next(steps)
                began = time.process_time()
                next(steps, None)
                found[name] = (time.process_time() - began) / count * 1e6
    return found


def _leased(broker: Any, queue: str, size: int) -> list[Any]:
    broker.put_many(queue, range(size))
    leases: list[Any] = []
    while len(leases) < size:
        leases += broker.lease(queue, min(1_000, size))
    return leases


def _dead(broker: Any, queue: str, size: int) -> list[str]:
    leases = _leased(broker, queue, size)
    _commit_deaths(broker, leases, 1_000)
    return [lease.id for lease in leases]


def _die(queue: str, together: int) -> Callable[[Any, int], Iterator[int]]:
    def case(broker: Any, size: int) -> Iterator[int]:
        leases = _leased(broker, queue, min(size, 1_000))
        yield len(leases)
        if together == 1:
            for lease in leases:
                broker.fail(lease, ValueError("boom"), final=True)
        else:
            _commit_deaths(broker, leases, together)

    return case


def _commit_deaths(broker: Any, leases: list[Any], together: int) -> None:
    from redrive import Dead, DeadReason
    from redrive.contract.item_calls import Settle
    from redrive.model.failure import failure_from_fields
    from redrive.model.judge import OutcomeKind

    core = vars(broker).get("core") or vars(broker)["_core"]  # of an older checkout
    store = core.store
    queue = broker.get_queue(leases[0].queue)
    verdict = Dead(DeadReason.FINAL_ERROR, queue.settings.dead_queue)
    failure = failure_from_fields("ValueError", "boom")
    for start in range(0, len(leases), together):
        some = leases[start : start + together]
        store.commit([Settle(lease.token, OutcomeKind.FAILED, verdict, queue.version, failure) for lease in some])


def _change_each(verb: str, before: str | None = None) -> Callable[[Any, int], Iterator[int]]:
    def case(broker: Any, size: int) -> Iterator[int]:
        ids = _dead(broker, "jobs", min(size, 300))
        if before is not None:
            getattr(broker, before)(ids)
        yield len(ids)
        for id in ids:
            getattr(broker, verb)(id)

    return case


def _step(verb: str, queue: str, before: str | None = None, **filter: Any) -> Callable[[Any, int], Iterator[int]]:
    def case(broker: Any, size: int) -> Iterator[int]:
        ids = _dead(broker, "sent" if queue == "morgue" else queue, size)
        if before is not None:
            found = broker.run_operation(broker.start_operation(before, queue=queue, reason=None).id)
            filter["operation"] = found.id
        started = broker.start_operation(verb, queue=queue, **({"reason": None} if before is None else filter))
        yield len(ids)
        broker.run_operation(started.id)

    return case


CASES: dict[str, Callable[[Any, int], Iterator[int]]] = {
    "death, alone": _die("jobs", 1),
    "death, to a dead queue": _die("sent", 1),
    f"death, {MANY} in a commit": _die("jobs", MANY),
    f"death, {MANY} in a commit, to a dead queue": _die("sent", MANY),
    "redrive of one": _change_each("redrive"),
    "undo of one": _change_each("undo", "redrive"),
    "drop of one": _change_each("drop"),
    "step: redrive in place": _step("redrive", "jobs"),
    "step: archive": _step("archive", "jobs"),
    "step: redrive from a dead queue": _step("redrive", "morgue"),
    "step: undo": _step("undo", "jobs", "redrive"),
}


def statements() -> dict[str, list[tuple[str, int]]]:
    """Trace frequent calls on SQLite. Returns the statements of each, with their VM steps."""
    import apsw

    found: list[tuple[str, int]] = []

    def seen(event: dict[str, Any]) -> None:
        found.append((" ".join(event["sql"].split()), event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]))

    apsw.connection_hooks.append(lambda connection: connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, seen))
    traced = {}
    with tempfile.TemporaryDirectory() as folder, _open(folder, None) as broker:
        broker.create_queue("jobs")
        for name, call in frequent_calls(broker):
            found.clear()
            call()
            traced[name] = list(found)
    return traced


def frequent_calls(broker: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Yield frequent calls, each after those that it needs."""
    from redrive import RetryVerdict

    yield "put", lambda: broker.put("jobs", 1)
    yield "put_many", lambda: broker.put_many("jobs", range(20))
    yield "put by key", lambda: broker.put("jobs", 1, idempotency_key="k")
    leases: list[Any] = []
    yield "lease", lambda: leases.extend(broker.lease("jobs"))
    yield "lease many", lambda: leases.extend(broker.lease("jobs", 9))
    yield "extend", lambda: broker.extend(leases[0])
    yield "complete", lambda: broker.complete(leases.pop())
    yield "result", lambda: broker.complete(leases.pop(), result=1)
    yield "retry", lambda: broker.fail(leases.pop(), "boom", verdict=RetryVerdict.after("1ms"))
    yield "release", lambda: broker.release(leases.pop(), counted=False)
    time.sleep(0.01)
    yield "promote", broker.run_maintenance


if __name__ == "__main__":
    main()
