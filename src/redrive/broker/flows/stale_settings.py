"""Judge again where the settings of a queue have changed: the store refuses what was judged by older ones."""

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
"""How often a change that met newer settings is tried again before giving up."""


def judge_until_current(core: Core, judge: Callable[[], Flow[Any]]) -> Flow[Any]:
    """Judge and commit one change by the settings last seen; again while the result is `StaleSettings`."""

    def judge_one(_: Sequence[None]) -> Flow[dict[None, Any]]:
        return {None: (yield from judge())}

    results = yield from judge_one((None,))
    yield from judge_stale(core, results, judge_one)
    return raise_if_refused(results[None])


def judge_stale(
    core: Core, results: dict[_K, Any], judge: Callable[[Sequence[_K]], Flow[Mapping[_K, Any]]]
) -> Flow[None]:
    """Replace each `StaleSettings` among the results: `judge` gets their keys, judges by the newest settings, commits,
    and gives the new results."""
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
    """Nobody edits settings that fast: something is wrong with the store, and giving up loses nothing."""
    return StoreFailed(core.store.name, f"the settings of queue '{name}' changed {MAX_ROUNDS} times meanwhile")
