"""Repeated judging after a change of settings: the store refuses verdicts that were judged by older ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.broker.flow import Flow, raise_if_refused
from redrive.contract.item_calls import StaleSettings
from redrive.errors import StoreFailed

if TYPE_CHECKING:
    from redrive.broker.core import Core

_K = TypeVar("_K")

MAX_ROUNDS = 100
"""Maximum number of retries of a change that was judged by stale settings."""


def judge_until_current(core: Core, judge: Callable[[], Flow[Any]]) -> Flow[Any]:
    """Judge and commit one change by the cached settings; retry while the result is `StaleSettings`."""

    def judge_one(_: Sequence[None]) -> Flow[dict[None, Any]]:
        return {None: (yield from judge())}

    results = yield from judge_one((None,))
    yield from judge_stale(core, results, judge_one)
    return raise_if_refused(results[None])


def judge_stale(
    core: Core, results: dict[_K, Any], judge: Callable[[Sequence[_K]], Flow[Mapping[_K, Any]]]
) -> Flow[None]:
    """Replace each `StaleSettings` among the results: `judge` gets their keys, judges by the newest settings, commits,
    and returns the new results."""
    for _ in range(MAX_ROUNDS):
        stale = [key for key, result in results.items() if isinstance(result, StaleSettings)]
        if not stale:
            return
        for key in stale:
            core.cache_queue(results.pop(key).queue)
        results.update((yield from judge(stale)))
    for key, result in results.items():
        if isinstance(result, StaleSettings):
            results[key] = _unsettled(core, result.queue.name)


def _unsettled(core: Core, name: str) -> StoreFailed:
    """Return the error after MAX_ROUNDS: settings do not change that often, so the store is faulty. Nothing is lost."""
    return StoreFailed(core.store.name, f"the settings of queue '{name}' changed {MAX_ROUNDS} times concurrently")
