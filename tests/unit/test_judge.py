"""Verdicts that a program brings: what can be meant is taken, what cannot is refused with what there is."""

from __future__ import annotations

from typing import Any

import pytest

from redrive.errors import InvalidInput
from redrive.model.death import DeadReason
from redrive.model.item import Status
from redrive.model.judge import Dead, RetryVerdict, check_custom_verdict


@pytest.mark.parametrize("reason", DeadReason)
def test_reason_as_text_is_the_reason_it_names(reason: DeadReason) -> None:
    brought: Any = check_custom_verdict(Dead(reason.value, "morgue", True))  # type: ignore[arg-type]
    assert brought == Dead(reason, "morgue", True)
    assert isinstance(brought.reason, DeadReason)


@pytest.mark.parametrize("reason", ["nonsense", "POLICY", "", None, 7, []], ids=repr)
def test_text_that_names_no_reason_is_refused_with_those_there_are(reason: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a reason of death; there are buried, undecodable"):
        check_custom_verdict(Dead(reason))


def test_status_as_text_is_the_status_it_names() -> None:
    brought: Any = check_custom_verdict(RetryVerdict(5, "failed"))  # type: ignore[arg-type]
    assert brought == RetryVerdict(5, Status.FAILED)
    assert isinstance(brought.status, Status)


@pytest.mark.parametrize("status", ["dead", Status.ACTIVE, "", None, []], ids=repr)
def test_item_is_tried_again_as_pending_or_failed_only(status: Any) -> None:
    with pytest.raises(InvalidInput, match="is pending or failed, not"):
        check_custom_verdict(RetryVerdict(0, status))
