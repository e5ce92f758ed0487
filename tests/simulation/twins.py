"""Two stores that are asked the same things: every answer must be the same, but for ids, tokens and numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

import pytest

from redrive import Broker, Lease, Receipt, RedriveError, Settled, connect
from redrive.contract import Call, Query
from redrive.contract.queries import ListGroups
from redrive.testing import FakeClock

QUEUES = ("a", "b", "dead")
_ID = re.compile(r"\b(?:[0-9a-f]{48}|[0-9a-f]{32})\b")
# Rows that Clean removes beside items are as many as a store has need of.
_OWN_AFFAIR = re.compile(
    r"\b(?:version|number|mark|position|last|removed)=(?:\d+|None)|\b(?:store|cursor|id_prefix)='[^']*'"
    r'|"id_prefix":"[^"]*"'
)

Ask = Callable[[int, Broker], Any]
Opener = Callable[[FakeClock], Broker]
ELSEWHERE = "there"
"""The store in memory that each of the two knows by this name. It is called `here` itself."""


def opens(url: str) -> Opener:
    """A broker on the store of a URL."""
    return lambda clock: connect(
        url,
        store_name="here",
        stores={ELSEWHERE: "memory://"},
        clock=clock,
        maintenance=False,
        actor="me",
        durability="relaxed",
    )


class Twins:
    """Brokers on two stores that are asked the same things."""

    def __init__(self, seed: int, *openers: Opener) -> None:
        self.random = random.Random(seed)
        self.clocks = [FakeClock(), FakeClock()]
        self.brokers = [open_one(clock) for open_one, clock in zip(openers, self.clocks, strict=True)]
        for broker in self.brokers:
            broker.on_store(ELSEWHERE).create_queue("far")
        self._names: list[dict[str, str]] = [{}, {}]
        self.ids: list[list[str]] = [[], []]
        self.leases: list[list[Lease]] = [[], []]
        self.operations: list[list[str]] = [[], []]
        self.log: list[str] = []

    def ask(self, what: str, question: Ask) -> list[Any]:
        answers = [self._answer(side, question) for side in (0, 1)]
        if what.endswith("with puts") and all(isinstance(answer, RedriveError) for answer in answers):
            # Where several things stand against one call, stores may name either first, and other items with it.
            self.log.append(f"{what} -> refused")
            return answers
        shown = [self._shown(side, answer) for side, answer in enumerate(answers)]
        self.log.append(f"{what} -> {shown[0][:160]}")
        if shown[0] != shown[1]:
            pytest.fail("\n".join([*self.log[-8:], *_where_they_differ(*shown)]), pytrace=False)
        return answers

    def _answer(self, side: int, question: Ask) -> Any:
        try:
            return question(side, self.brokers[side])
        except RedriveError as refusal:
            return refusal

    def _shown(self, side: int, answer: Any) -> str:
        text = f"{type(answer).__name__}: {answer}" if isinstance(answer, RedriveError) else repr(answer)
        names = self._names[side]

        def rename(match: re.Match[str]) -> str:
            id, rest = match.group()[:32], match.group()[32:]
            return names.setdefault(id, f"id{len(names)}") + ("+token" if rest else "")

        return _ID.sub(rename, _OWN_AFFAIR.sub("", text))

    def keep(self, answers: list[Any], *, leases: bool = False) -> None:
        if isinstance(answers[0], RedriveError):
            return
        for side, answer in enumerate(answers):
            if leases:
                self.leases[side] += answer
            else:
                receipts: tuple[Receipt, ...] = answer if isinstance(answer, tuple) else (answer,)
                self.ids[side] += [receipt.id for receipt in receipts]

    def keep_settled(self, answers: list[Any]) -> None:
        """New ids of items that were moved or made anew."""
        if isinstance(answers[0], tuple):
            for side, answer in enumerate(answers):
                self.ids[side] += [each.id for each in answer if isinstance(each, Settled) and each.source_id]

    @property
    def fingerprints(self) -> list[str]:
        """The causes of death so far: the same on both sides."""
        return [group.fingerprint for group in self.brokers[0].core.store.read(ListGroups())]

    def commit(self, what: str, call: Callable[[int], Call]) -> list[Any]:
        """Give both stores a call of their own, with their own ids."""

        def carry_out(side: int, broker: Broker) -> Any:
            store = broker.core.store
            return store.commit([call(side)], self.clocks[side].now()).results[0]

        return self.ask(what, carry_out)

    def read(self, what: str, query: Callable[[int], Query]) -> list[Any]:
        """Ask both stores."""
        return self.ask(what, lambda side, broker: broker.core.store.read(query(side)))


def _where_they_differ(first: str, second: str) -> list[str]:
    same = next((place for place, pair in enumerate(zip(first, second, strict=False)) if len(set(pair)) > 1), 0)
    begin = max(0, same - 200)
    return [f"{name}: …{text[begin : same + 300]}" for name, text in (("first ", first), ("second", second))]


def by_queue(entries: Iterable[Any]) -> list[Any]:
    """Entries of the audit or the feed, but those of one round of retention, and what the feed tells of one change of
    many, by queue: stores take the queues in any order."""
    ordered: list[Any] = []
    for (_, by_rule, kind), run in groupby(entries, key=_round):
        entries_of_run = list(run)
        if by_rule or kind is not None:
            entries_of_run.sort(key=lambda entry: entry.queue)
        ordered += entries_of_run
    return ordered


def _round(entry: Any) -> tuple[int, bool, str | None]:
    by_rule = entry.actor == "retention"
    return entry.at, by_rule, None if by_rule else getattr(entry, "kind", None)
