"""What a run of the tests prints at its end: CPU seconds by folder, the slowest tests, workers that died.

CPU seconds are those of the process that runs a test and of its children that have ended. A server that lives as long
as the tests is not among them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

BUDGETS: dict[str, int] = {}
"""CPU seconds of each folder, on the machine of CI."""
TOLERATED = 1.5
"""So far above its budget a folder makes the run fail, where budgets are enforced."""
_SLOWEST = 20
_BEGAN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budgets", action="store_true", help="fail if a folder takes far more CPU than its budget")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report(config.getoption("--budgets")))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.stash[_BEGAN] = _cpu()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report: Any = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu", _cpu() - item.stash[_BEGAN]))
    return report


def _cpu() -> float:
    return sum(os.times()[:4])


class _Report:
    """In the process that is asked to run the tests."""

    def __init__(self, enforces: bool) -> None:
        self._enforces = enforces
        self._cpu: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        self._died: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._seconds[report.nodeid] += report.duration
        self._cpu[_folder(report.nodeid)] += dict(report.user_properties).get("cpu", 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker that died has reported nothing: its exit status is what there is, and -n is a signal."""
        if error:
            self._died.append(f"{node.gateway.id} ended with status {node.gateway._io.popen.wait(60)}")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for line in self._died:
            terminalreporter.write_line(line)
        if len(self._seconds) < _SLOWEST:
            return
        terminalreporter.section(f"slowest {_SLOWEST} tests")
        for name, seconds in self._seconds.most_common(_SLOWEST):
            terminalreporter.write_line(f"{seconds:7.1f} s  {name}")
        terminalreporter.section("CPU seconds by folder")
        for folder, cpu in self._cpu.most_common():
            terminalreporter.write_line(f"{cpu:7.0f}  of {BUDGETS.get(folder, 0):4}  {folder}")

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        over = [folder for folder, cpu in self._cpu.items() if cpu > TOLERATED * BUDGETS.get(folder, 0)]
        if self._enforces and over and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _folder(nodeid: str) -> str:
    return nodeid.split("/")[1]
