"""The quick look passes over no secret: with it and without it, a text comes out the same."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.redaction.corpus import FOLDER, Case, cases, texts_in

from redrive.model import secret_patterns
from redrive.model.redact import Redactor
from redrive.model.redact_rules import NO_RULES, RedactRules

RULES = [NO_RULES, RedactRules(keys=("customer iban", "nation"), patterns=("ACME-[0-9]{6}",), allow=("api_key",))]
CASES = [case for path in sorted(FOLDER.glob("*.jsonl")) for case in cases(path)]
TEXTS = [text for case in CASES for text in texts_in(case.value)]
WORDS = sorted({word for text in TEXTS for word in re.findall(r"\w{1,64}|\W{1,16}", text)})
composed = st.lists(st.sampled_from(WORDS) | st.sampled_from(TEXTS), max_size=12).map("".join)


def thorough(rules: RedactRules) -> Any:
    """One that tries all forms on every text, and judges every name in it."""
    redactor = Redactor(rules)
    redactor._marks = re.compile("")
    redactor._hints = re.compile(r"[\w.$-]")
    return redactor


QUICK = [Redactor(rules) for rules in RULES]
THOROUGH = [thorough(rules) for rules in RULES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.where)
def test_values_of_the_corpus_come_out_the_same(case: Case) -> None:
    for quick, slow in zip(QUICK, THOROUGH, strict=True):
        assert quick(case.kind, case.value) == slow(case.kind, case.value)
        for text in texts_in(case.value):
            shown = slow.text(text)
            assert quick.text(text) == shown
            assert quick.text(text.upper()) == slow.text(text.upper())
            assert shown == text or quick.may_hold_secrets(text)


def test_every_form_can_be_compiled() -> None:
    forms = [form for value in vars(secret_patterns).values() if isinstance(value, tuple) for form in value]
    compiled = [form.pattern for form in forms if isinstance(form, secret_patterns.Form)]
    assert len(compiled) > 100


@given(composed)
def test_texts_composed_of_it_come_out_the_same(text: str) -> None:
    for quick, slow in zip(QUICK, THOROUGH, strict=True):
        assert quick.text(text) == slow.text(text)
