"""What a run of the tests prints at its end: CPU seconds by folder, the slowest tests, workers that died.

CPU seconds are those of the process that runs a test and of its children that have ended. A server that lives as long
as the tests is not among them: it ends after the last one, in whose clean-up nothing is counted.

Each folder has a budget. With REDRIVE_BUDGETS=1, as in `.ci/run`, a run fails if a folder takes half as much again.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Mapping
from typing import Any

import pytest
from tests.sizes import THOROUGH

BUDGETS = {
    "acceptance": 420,
    "access": 12,
    "conformance": 345,
    "integration": 190,
    "simulation": 190,
    "unit": 100,
}
"""CPU seconds of all tests of a folder, with CPython 3.11 on two cores of 2026."""
_ALLOWED = 1.5
"""How much more than its budget a folder may take: machines differ, and a busy one takes longer for the same."""
_SLOWEST = 20
_BEGAN = pytest.StashKey[float]()
_IS_LAST = pytest.StashKey[bool]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.stash[_BEGAN] = _cpu()
    item.stash[_IS_LAST] = nextitem is None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    now = _cpu()
    if call.when != "teardown" or not item.stash[_IS_LAST]:
        report.user_properties.append((f"cpu of {call.when}", now - item.stash[_BEGAN]))
    item.stash[_BEGAN] = now
    return report


def _cpu() -> float:
    return sum(os.times()[:4])


def over_budget(cpu: Mapping[str, float]) -> list[str]:
    """Which folders took too long, and what to do about it."""
    return [
        f"{folder}: {seconds:.0f} CPU seconds, and its budget is {BUDGETS[folder]}. "
        "Make its slowest tests smaller, move what is large into ./dev soak, or raise the budget and say why."
        for folder, seconds in cpu.items()
        if seconds > BUDGETS.get(folder, float("inf")) * _ALLOWED
    ]


class _Report:
    """In the process that is asked to run the tests."""

    def __init__(self) -> None:
        self._cpu: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._died: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        self._cpu[_folder(report.nodeid)] += dict(report.user_properties).get(f"cpu of {report.when}", 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker that died has reported nothing: its exit status is what there is, and -n is a signal."""
        if error:
            self._died.append(f"{node.gateway.id} ended with status {node.gateway._io.popen.wait(60)}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._over_budget() and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _over_budget(self) -> list[str]:
        return over_budget(self._cpu) if os.environ.get("REDRIVE_BUDGETS") and not THOROUGH else []

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._died:
            terminalreporter.write_line(line)
        if len(self._seconds) >= _SLOWEST:
            terminalreporter.section(f"slowest {_SLOWEST} tests")
            for name, seconds in self._seconds.most_common(_SLOWEST):
                terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
            terminalreporter.section("CPU seconds by folder, and the budget of each")
            for folder, cpu in self._cpu.most_common():
                terminalreporter.write_line(f"{cpu:7.0f} of {BUDGETS.get(folder, 0):4}  {folder}")
        for line in self._over_budget():
            terminalreporter.write_line(line, red=True)


def _folder(nodeid: str) -> str:
    return nodeid.split("/")[:2][-1]
