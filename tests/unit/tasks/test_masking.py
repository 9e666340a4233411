"""Secrets with recognizable names are masked wherever they are shown, and texts fit every database."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.conf import Settings
from django_durable_tasks.masking import (
    MASK,
    masked,
    masked_excerpt,
    masked_text,
    masked_url,
    shortened,
)

NAMES = Settings().SECRET_NAMES


@pytest.mark.parametrize(
    "text",
    [
        "password=hunter2",
        "password: hunter2",
        'password = "hunter2"',
        "db_password='hunter2'",
        '{"api_key": "hunter2"}',
        "{'X-Api-Key': 'hunter2', 'b': 1}",
        "Authorization: hunter2",
        "https://host/?access_token=hunter2&page=2",
        "call(token=hunter2)",
        "IBAN: hunter2",
        "client_secret_value=hunter2",
        "PASSWORD=hunter2",
    ],
)
def test_the_value_of_a_secret_name_is_masked(text: str) -> None:
    assert "hunter2" not in masked_text(text, NAMES)
    assert MASK in masked_text(text, NAMES)


@pytest.mark.parametrize(
    "text",
    [
        '{"card": {"number": "hunter2", "name": "hunter2"}}',
        '{"tokens": ["aaa", "hunter2"]}',
        '{"a": [{"credentials": {"x": [1, {"pw": "hunter2"}]}}]}',
        '{"password": "ab\\"cd hunter2"}',
        '{"body": "{\\"card\\": {\\"number\\": \\"hunter2\\"}}"}',
        '{"password": {"a": ["hunter2", 1',
        '{"a": 1, "tokens": ["aaa",\n "hunter2", ',
        '{"password": "ab\\"cd hunter2',
        '"{\\"password\\": \\"a hunter2\\"',
        "before {'card': {'number': 'hunter2'}} after",
    ],
)
def test_a_structure_under_a_secret_name_is_masked_inside_of_text(text: str) -> None:
    assert "hunter2" not in masked_text(text, NAMES)
    assert MASK in masked_text(text, NAMES)
    assert "hunter2" not in str(masked({"body": text}, NAMES))


def test_json_without_secrets_is_left_unchanged_and_lone_surrogates_stay_escaped() -> None:
    for text in ('{"b":1,  "a":"\u00fc"}', "[1,2", '{"a": "\\ud800"}', "[" * 100_000):
        assert masked_text(text, NAMES) == text
    masked_text('{"password": 1, "a": "\\ud800"}', NAMES).encode()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h/p?sig=hunter2&page=hunter2", f"https://h/p?sig={MASK}&page={MASK}"),
        ("https://h/?auth%5Btoken%5D=hunter2", f"https://h/?auth%5Btoken%5D={MASK}"),
        ("https://h/?hunter2", f"https://h/?{MASK}"),
        ("/relative?code=hunter2#hunter2", f"/relative?code={MASK}#{MASK}"),
        ("https://h/services/T0/B0/hunter2hunter2hunter2", f"https://h/services/T0/B0/{MASK}"),
        ("https://h/orders/42/callback", "https://h/orders/42/callback"),
    ],
)
def test_the_credentials_of_a_url_are_masked(url: str, expected: str) -> None:
    assert masked_url(url) == expected
    assert masked({"url": url}, NAMES) == {"url": expected}


@pytest.mark.parametrize(
    "text", ["", "user=bob", "the password was wrong", "KeyError: 'day'", "tokens are fine"]
)
def test_other_text_is_left_unchanged(text: str) -> None:
    assert masked_text(text, NAMES) == text


@pytest.mark.parametrize("scheme", ["Bearer", "Basic"])
def test_the_credentials_after_a_scheme_are_masked_too(scheme: str) -> None:
    assert "hunter2" not in masked_text(f"Authorization: {scheme} hunter2", NAMES)


@pytest.mark.parametrize("word", ["a", "token", "secret-", "token =", "token="])
def test_the_time_for_a_long_word_is_not_quadratic(word: str) -> None:
    # With quadratic time this would take hours without any heartbeat, because the search
    # holds the GIL.
    assert masked_text(f"{word * 200_000} password=hunter2", NAMES).endswith(f" password={MASK}")


def _json_texts(levels: int, inner: str) -> str:
    """Return JSON texts in each other, whose quotes are escaped so that the length of the whole is
    quadratic and not exponential.
    """

    def quote(level: int) -> str:
        return f"\\{'u005c' * (level - 1)}u0022" if level else '"'

    quotes = [quote(level) for level in range(levels)]
    return f"{''.join(f'[{mark}' for mark in quotes)}{inner}{''.join(f'{mark}]' for mark in quotes[::-1])}"


def test_the_number_of_json_texts_in_each_other_that_are_parsed_is_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []
    loads = json.loads

    def counting(text: str) -> Any:
        parsed.append(len(text))
        return loads(text)

    monkeypatch.setattr(json, "loads", counting)
    text = _json_texts(57, "[]")
    masked({"body": text}, NAMES)
    assert len(parsed) <= 4
    assert sum(parsed) < 4 * len(text)


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 8, 100])
def test_a_secret_in_json_texts_in_each_other_is_masked(levels: int) -> None:
    secret = '{"token":"hunter2"}'
    for _ in range(min(levels, 8)):
        secret = json.dumps([secret])
    for text in (secret, _json_texts(levels, "token=hunter2")):
        assert "hunter2" not in masked_text(text, NAMES)


def test_values_are_masked_at_every_depth() -> None:
    value = {
        "user": "bob",
        "auth": [{"password": "a"}, {"Token": {"deep": "b"}}],
        "note": "secret=c",
        "n": 1,
    }
    assert masked(value, NAMES) == {
        "user": "bob",
        "auth": [{"password": MASK}, {"Token": MASK}],
        "note": f"secret={MASK}",
        "n": 1,
    }


json_values = st.recursive(
    st.none() | st.integers() | st.text(max_size=10),
    lambda v: st.lists(v) | st.dictionaries(st.text(max_size=5), v),
)


@given(st.text(min_size=4).filter(lambda text: text not in MASK), json_values)
def test_a_secret_never_remains_under_its_name(secret: str, value: Any) -> None:
    assert masked({"card_number": [secret, value]}, NAMES) == {"card_number": MASK}


@given(json_values)
def test_masking_is_idempotent(value: Any) -> None:
    once = masked(value, NAMES)
    assert masked(once, NAMES) == once


@given(st.text(st.characters(), max_size=200), st.integers(min_value=16, max_value=300))
def test_a_shortened_text_fits_and_is_valid_in_every_database(text: str, limit: int) -> None:
    short = shortened(text, limit)
    assert len(short.encode()) <= limit
    assert "\x00" not in short


def test_a_short_text_is_not_changed_and_a_long_one_says_that_it_was_truncated() -> None:
    assert shortened("brief", 100) == "brief"
    assert shortened("x" * 101, 100).endswith("... [cut]")


_FORMS = (
    "password={}",
    "login failed for token: {} here",
    '{{"n": 1, "api_key": "{}", "b": [1, 2]}}',
    '{{"list": ["{{}}", {{"client secret of x": {{"a": "{}"}}}}]}}',
    '{{"url": "https://h/services/{}a1b2c3d4e5f6g7h8i9j0"}}',
    "call(x=1, secret='{}')",
)


@given(
    st.text("ab {}[],\n\"'", max_size=300),
    st.sampled_from(_FORMS),
    st.text("hunter2", min_size=12, max_size=600),
    st.integers(40, 200),
)
def test_no_truncation_shows_a_part_of_a_secret(
    before: str, form: str, secret: str, max_bytes: int
) -> None:
    json_like = form.startswith("{{")
    text = form.format("é" + secret.upper())
    filler = "[" + "1, " * len(before) if json_like else before.replace('"', "").replace("'", "")
    shown = masked_excerpt(f"{filler}{text}" * 3, NAMES, max_bytes)
    assert "é" not in shown
    assert len(shown.encode()) <= max_bytes


def test_the_cost_of_masking_is_bounded_by_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def measured(text: str, names: str) -> str:
        lengths.append(len(text))
        return text

    monkeypatch.setattr("django_durable_tasks.masking.masked_text", measured)
    shown = masked_excerpt("x" * 50_000_000, NAMES, 1_000)
    assert (shown[-5:], len(shown)) == ("[cut]", 1_000 - 16 + 9)
    assert lengths == [4_000]
