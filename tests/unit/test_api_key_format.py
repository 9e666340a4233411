"""The format of API keys."""

import secrets

from hypothesis import given
from hypothesis import strategies as st

from django_durable_tasks.choices import KeyMode
from django_durable_tasks.contrib.api.access import composed, digest_of, presented

KEY = composed(KeyMode.LIVE, "0a1b2c3d", "s" * 43)


def test_a_key_has_a_prefix_an_id_a_secret_and_a_checksum() -> None:
    assert KEY.startswith("ddt_live_0a1b2c3d_" + "s" * 43)
    assert len(KEY) == len("ddt_live_") + 8 + 1 + 43 + 6
    key = composed(KeyMode.TEST, "0a1b2c3d", secrets.token_urlsafe(32))
    assert presented(key) == "0a1b2c3d"
    assert digest_of(key) != digest_of(key + " ")


@given(st.integers(0, len(KEY) - 1), st.characters(min_codepoint=33, max_codepoint=126))
def test_one_wrong_character_is_found_without_a_query(place: int, character: str) -> None:
    wrong = KEY[:place] + character + KEY[place + 1 :]
    assert (presented(wrong) is None) == (wrong != KEY)


@given(st.text())
def test_any_text_can_be_presented(text: str) -> None:
    assert presented(text) is None
