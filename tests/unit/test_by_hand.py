"""Who may change what by hand: one rule for every store."""

from __future__ import annotations

import pytest

from redrive.errors import InvalidInput, ItemActive, WrongStatus
from redrive.model.by_hand import Standing, check_change, check_verb, redrive_queue, stays_dead_letter
from redrive.model.ids import ItemId
from redrive.model.item import Status
from redrive.model.transitions import BY_HAND, Verb

ID = ItemId("0123456789abcdef" * 2)
VERBS = sorted(BY_HAND)
RESTING = [status for status in Status if status not in (Status.ACTIVE, Status.MOVING)]

# The verbs that apply to an item in each status, when it is no dead letter (a dead one always is) and when it is one.
APPLIES = {
    (Status.PENDING, False): "bury done drop fail",
    (Status.FAILED, False): "bury done drop fail retry",
    (Status.PENDING, True): "archive bury done drop fail redrive",
    (Status.FAILED, True): "archive bury done drop fail redrive retry",
    (Status.DEAD, True): "archive done drop redrive retry",
    (Status.ARCHIVED, False): "done drop restore",
    (Status.COMPLETED, False): "drop",
}
FORCED = {False: "bury done drop fail retry", True: "archive bury done drop fail redrive retry"}


def applying(item: Standing, *, force: bool = False) -> str:
    found = []
    for verb in VERBS:
        try:
            check_change(verb, item, force=force)
        except (WrongStatus, ItemActive):
            continue
        found.append(verb.value)
    return " ".join(found)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize(("status", "is_dead_letter"), APPLIES)
def test_status_decides_which_verbs_apply(status: Status, is_dead_letter: bool, force: bool) -> None:
    assert applying(Standing(ID, status, is_dead_letter), force=force) == APPLIES[status, is_dead_letter]


def test_every_status_that_an_item_rests_in_is_named_above() -> None:
    assert {status for status, _ in APPLIES} == set(RESTING)


@pytest.mark.parametrize("verb", VERBS)
def test_active_item_is_refused_with_its_worker(verb: Verb) -> None:
    with pytest.raises(ItemActive, match="worker 'w1'"):
        check_change(verb, Standing(ID, Status.ACTIVE, True, "w1"), force=False)


@pytest.mark.parametrize("is_dead_letter", FORCED)
def test_force_applies_to_an_active_item_what_applies_to_work(is_dead_letter: bool) -> None:
    assert applying(Standing(ID, Status.ACTIVE, is_dead_letter, "w1"), force=True) == FORCED[is_dead_letter]


def test_refusal_names_the_statuses_that_fit_and_never_active() -> None:
    with pytest.raises(WrongStatus, match="for items that are pending or failed") as refusal:
        check_change(Verb.BURY, Standing(ID, Status.DEAD, True), force=False)
    assert (refusal.value.status, refusal.value.allowed) == ("dead", (Status.PENDING, Status.FAILED))
    with pytest.raises(WrongStatus) as refusal:
        check_change(Verb.REDRIVE, Standing(ID, Status.PENDING, False), force=False)
    assert refusal.value.allowed == (Status.DEAD,)


def test_verbs_that_need_a_token_are_not_done_by_hand() -> None:
    for verb in Verb:
        if verb in BY_HAND:
            check_verb(verb)
        else:
            with pytest.raises(InvalidInput, match=f"{verb} cannot be done by hand; there are archive"):
                check_verb(verb)


def test_redrive_goes_where_the_call_says_else_where_the_item_died() -> None:
    assert redrive_queue("jobs", None) == "jobs"
    assert redrive_queue("jobs", "slow") == "slow"


@pytest.mark.parametrize(
    ("verb", "status", "is_dead_letter", "stays"),
    [
        (Verb.RETRY, Status.FAILED, True, True),
        (Verb.RETRY, Status.ACTIVE, True, True),
        (Verb.RETRY, Status.DEAD, True, False),
        (Verb.RETRY, Status.FAILED, False, False),
        (Verb.REDRIVE, Status.PENDING, True, False),
        (Verb.REDRIVE, Status.DEAD, True, False),
    ],
)
def test_only_a_retry_in_a_dead_queue_leaves_a_dead_letter(
    verb: Verb, status: Status, is_dead_letter: bool, stays: bool
) -> None:
    assert stays_dead_letter(verb, Standing(ID, status, is_dead_letter)) is stays
