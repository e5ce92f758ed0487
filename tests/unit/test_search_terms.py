"""Search words: the same for every store, found as people would look for them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from redrive.model.search_terms import MAX_WORD_CHARS, MAX_WORDS, SearchQuery, parse_query, search_terms_of, tokenize


def test_words_are_runs_of_letters_and_digits() -> None:
    assert tokenize("Timeout after 31ms: user_id=17 (café)") == [
        "timeout",
        "after",
        "31ms",
        "user",
        "id",
        "17",
        "café",
    ]


def test_spellings_that_look_alike_are_one_word() -> None:
    assert tokenize("cafe\u0301") == tokenize("CAFÉ") == ["café"]
    assert tokenize("ﬁle ｆｕｌｌ STRASSE straße") == ["file", "full", "strasse", "strasse"]


def test_nul_and_surrogates_separate() -> None:
    assert tokenize("a\0b\ud800c") == ["a", "b", "c"]


def test_an_error_is_found_by_the_parts_of_its_type() -> None:
    words = search_terms_of("requests.exceptions.ConnectTimeout", "no answer")
    assert {"requests", "connecttimeout", "connect", "timeout", "no", "answer"} <= words


def test_json_payloads_are_read_as_text() -> None:
    payload = '{"note":"one\\ntwo \\u00e9t\\u00e9","path":"a\\\\b","emoji":"😀"}'.encode()
    words = search_terms_of("E", "", payload, "application/json; charset=utf-8")
    assert {"note", "one", "two", "été", "a", "b"} <= words
    assert "ntwo" not in words


def test_text_is_indexed_and_binary_is_not() -> None:
    assert "hello" in search_terms_of("E", "", b"hello", "text/plain")
    assert "hello" not in search_terms_of("E", "", b"hello", "application/octet-stream")


def test_only_the_beginning_of_a_payload_is_indexed() -> None:
    payload = b'"' + b"x " * 2048 + b'late"'
    assert "late" not in search_terms_of("E", "", payload, "application/json")


def test_a_query_is_words_and_prefixes() -> None:
    assert parse_query("Timeout wor*") == SearchQuery(("timeout",), ("wor",))
    assert parse_query("user-id* a*b * timeout timeout") == SearchQuery(("user", "a", "b", "timeout"), ("id",))
    assert parse_query("") == SearchQuery((), ())


def test_a_query_finds_items_that_have_all_of_it() -> None:
    words = search_terms_of("ValueError", "the worker timed out")
    assert parse_query("worker tim*").matches(words)
    assert not parse_query("worker broken").matches(words)
    assert not parse_query("worker zzz*").matches(words)


@given(st.text(alphabet=st.characters()))
def test_every_word_of_a_text_finds_it(text: str) -> None:
    words = tokenize(text)
    assert all(len(word) <= MAX_WORD_CHARS for word in words)
    assert len(words) <= MAX_WORDS
    assert tokenize(" ".join(words)) == words
    found = search_terms_of("E", text)
    for word in words[:20]:
        assert parse_query(word).matches(found)
        assert parse_query(word + "*").matches(found)


@given(st.text(), st.binary(), st.sampled_from(["application/json", "text/plain", "", "image/png"]))
def test_indexing_never_fails_and_leaves_nothing_unstorable(text: str, payload: bytes, content_type: str) -> None:
    for word in search_terms_of(text, text, payload, content_type):
        assert word
        assert "\0" not in word
        word.encode()


@given(st.text(st.characters(max_codepoint=127), max_size=300))
def test_ascii_is_split_as_any_other_text(text: str) -> None:
    """ASCII has a faster way. A letter beyond it, at the end and alone, takes the other one."""
    assert [*tokenize(text), "é"] == tokenize(f"{text} é")


def test_errors_that_are_alike_do_not_share_the_words_of_their_payloads() -> None:
    first, second = (search_terms_of("E", "boom", payload, "text/plain") for payload in (b"one", b"two"))
    assert (first, second) == ({"e", "boom", "one"}, {"e", "boom", "two"})
