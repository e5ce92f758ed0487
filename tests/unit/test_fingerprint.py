"""Fingerprints: one for one cause, whatever varies."""

from __future__ import annotations

import subprocess
import sys

import pytest

from redrive.model.fingerprint import fingerprint, frame_location, normalise_text


def test_texts_that_differ_in_numbers_are_one_group() -> None:
    one = fingerprint("TimeoutError", (), "timeout after 31 ms for user 17")
    assert one == fingerprint("TimeoutError", (), "timeout after 29 ms for user 4")
    assert one != fingerprint("TimeoutError", (), "timeout after 29 ms for order 4")
    assert one != fingerprint("ValueError", (), "timeout after 31 ms for user 17")
    assert len(one) == 16


@pytest.mark.parametrize(
    ("text", "normalised"),
    [
        ("user 17 took -3.5 s", "user <n> took <n> s"),
        ("order42 not found", "order<n> not found"),
        ("item 018f3c5e-7b1a-7c3d-9e2f-0123456789ab", "item <uuid>"),
        ("at 0x7f92a97a47d0", "at <hex>"),
        ("commit 9fceb02d0ae598e9", "commit <hex>"),
        ("the deadbeef effaced", "the deadbeef effaced"),
        ("key 'user:17' can't be read", "key <text> can't be read"),
        ("the users' and the owners' files", "the users' and the owners' files"),
        ('no "such thing" here', "no <text> here"),
        ("open /var/lib/app/x.db failed", "open <path> failed"),
        (r"open C:\data\x.db failed", "open <path> failed"),
        ("mail to jane.doe+x@example.co.uk bounced", "mail to <email> bounced"),
        ("connect to 10.0.0.17:5432", "connect to <address>"),
        ("connect to fe80:0:0:1:2:3:4:5", "connect to <address>"),
        ("GET https://api.example.com/v1/users/17?x=1 failed", "GET <url> failed"),
        ("since 2026-11-15T20:25:13.189Z", "since <date>"),
        ("at 20:25:13", "at <time>"),
        ("  two\n\twords ", "two words"),
        ("read and/or write", "read and/or write"),
    ],
)
def test_what_varies_is_replaced(text: str, normalised: str) -> None:
    assert normalise_text(text) == normalised


def test_with_a_traceback_the_text_does_not_count() -> None:
    places = [frame_location("/srv/app/tasks.py", "send"), frame_location("/srv/app/mail.py", "Mailer.deliver")]
    assert fingerprint("E", places, "one") == fingerprint("E", places, "two")
    assert fingerprint("E", places, "") != fingerprint("E", places[:1], "")


def test_folders_do_not_count_and_packages_do() -> None:
    assert (
        frame_location("/a/b/tasks.py", "f")
        == frame_location("/c/tasks.py", "f")
        == frame_location(r"C:\x\tasks.py", "f")
    )
    assert frame_location("/a/one/__init__.py", "f") != frame_location("/a/two/__init__.py", "f")


def test_a_recursion_has_one_fingerprint_at_every_depth() -> None:
    assert fingerprint("E", ["a", "b", "c", "b", "c", "b"], "") == fingerprint("E", ["a", "b", "c"], "")


def test_long_texts_and_lone_surrogates_have_fingerprints() -> None:
    assert fingerprint("E\ud800", (), "x" * 10_000_000 + "\ud800")


def test_the_same_in_every_process() -> None:
    code = "from redrive.model.fingerprint import fingerprint as f; print(f('E', ['a.py:b'], ''), f('E', [], 'user 1'))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed == [fingerprint("E", ["a.py:b"], ""), fingerprint("E", [], "user 2")]
