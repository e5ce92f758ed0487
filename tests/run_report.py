"""What a run of the tests prints at its end: CPU seconds by folder, the slowest tests, workers that died.

CPU seconds are those of the process that runs a test and of its children that have ended. A server that lives as long
as the tests is not among them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

_SLOWEST = 20
_BEGAN = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Report())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    item.stash[_BEGAN] = _cpu()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "teardown":
        report.user_properties.append(("cpu", _cpu() - item.stash[_BEGAN]))
    return report


def _cpu() -> float:
    return sum(os.times()[:4])


class _Report:
    """In the process that is asked to run the tests."""

    def __init__(self) -> None:
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
            terminalreporter.write_line(f"{cpu:7.0f}  {folder}")


def _folder(nodeid: str) -> str:
    return nodeid.split("/")[:2][-1]
