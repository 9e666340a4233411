"""Masks secrets: values under sensitive names are replaced wherever they are displayed."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MASK = "********"
_CUT = "... [cut]"
# Bytes of an error text or a traceback that are stored. The row of each attempt has both.
ERROR_MAX_BYTES = 16_384
_STRUCTURES = ("{", "[")
_LONG_CREDENTIAL = 20
# Of a long text this multiple of the bytes that are kept is masked, because masking makes texts
# shorter. It takes 0.3 s of processor time for each MB.
_MASKED_MULTIPLE = 4
# JSON texts in each other that are parsed. Each level is parsed and searched on its own. Without a
# limit, 62 texts of 16 KB with 57 levels took 7 s of processor time for each list that showed them.
_JSON_TEXT_LEVELS = 4
# The value of the key "url" in JSON; its end may be missing.
_URL = re.compile(r'("url"\s{0,20}+:\s{0,20}+")((?:[^"\\]|\\.)*+)')


@dataclass(frozen=True, slots=True)
class _Patterns:
    name: re.Pattern[str]
    pair: re.Pattern[str]
    pair_of_structure: re.Pattern[str]


@functools.cache
def _patterns(names: str) -> _Patterns:
    # Possessive, with no open-ended prefix: a long word must not take quadratic time.
    end, sign = r"""[\w-]{0,100}+(?:\\{0,3}["'])?""", r"\s{0,20}+[:=]\s{0,20}+"
    key = f"(?P<key>(?:{names}){end}{sign})"
    to_quote = r"""[^"'\\\n]{0,100}+["']"""  # a key of JSON may contain blanks
    key_of_structure = f"(?P<key>(?:{names})(?:{end}|{to_quote}){sign})"
    # The end of a truncated text ends a value too.
    quoted = r"""\\{1,3}"[^"]*+"?|"(?:[^"\\]|\\[\s\S])*+"?|'(?:[^'\\]|\\[\s\S])*+'?"""
    word = r"(?:(?:bearer|basic|token)\s+)?[^\s,;&)}\]]+"
    # The end of a list or an object is not searched: its values may contain any bracket.
    to_end_of_line, to_end = r"[{\[][^\n]*+", r"[{\[][\s\S]*+"
    return _Patterns(
        re.compile(names, re.IGNORECASE),
        re.compile(f"{key}(?:{quoted}|{to_end_of_line}|{word})", re.IGNORECASE),
        re.compile(f"{key_of_structure}(?:{quoted}|{to_end}|{word})", re.IGNORECASE),
    )


def masked_text(text: str, names: str) -> str:
    """Return the text with the value of every ``name=value`` and ``"name": value`` masked.

    A text that is a JSON object or array is masked as this value. If it is not complete, everything
    after the start of a list or an object under a sensitive name is masked. JSON texts in more than
    four others are masked as a whole.
    """
    return _masked_text(text, names, _JSON_TEXT_LEVELS)


def _masked_text(text: str, names: str, levels: int) -> str:
    """``levels``: how many JSON texts in each other are parsed."""
    if not text.lstrip().startswith(_STRUCTURES):
        return _masked_pairs(_patterns(names).pair, text)
    if not levels:
        # Escapes can hide a sensitive name from a search in the text.
        return MASK
    masked_json = _masked_json(text, names, levels - 1)
    if masked_json is not None:
        return masked_json
    hidden = _masked_pairs(_patterns(names).pair_of_structure, text)
    return _URL.sub(lambda match: match[1] + masked_url(match[2]), hidden)


def masked_excerpt(text: str, names: str, max_bytes: int) -> str:
    """Return the text masked and truncated to ``max_bytes`` bytes, at a cost that they bound.

    Only the beginning is kept. The name of a secret precedes its value, so that no truncation
    separates a value from its name.
    """
    start = text[: _MASKED_MULTIPLE * max_bytes]
    hidden = masked_text(start, names)
    return shortened(hidden if len(start) == len(text) else f"{hidden}{_CUT}", max_bytes)


def _masked_pairs(pair: re.Pattern[str], text: str) -> str:
    return pair.sub(lambda match: match["key"] + MASK, text)


def _masked_json(text: str, names: str, levels: int) -> str | None:
    """Return the JSON text masked; None if it is not JSON, or contains no sensitive name."""
    try:
        value = json.loads(text)
        hidden = _masked(value, names, levels)
        if hidden == value:
            return None
        json_text = json.dumps(hidden, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
    # A database does not accept the lone surrogates that JSON can contain as escapes.
    return json_text.encode("utf-8", "backslashreplace").decode()


def masked_url(text: str) -> str:
    """Return the URL with all values of its query masked, and the parts of its path that look like
    credentials: at least 20 characters with a letter and a digit.
    """
    address, _, fragment = text.partition("#")
    path, mark, query = address.partition("?")
    segments = [MASK if _is_credential(segment) else segment for segment in path.split("/")]
    pairs = [pair.partition("=") for pair in query.split("&")] if query else []
    hidden = [f"{name}={MASK}" if separator else MASK for name, separator, _ in pairs]
    end = f"#{MASK}" if fragment else ""
    return f"{'/'.join(segments)}{mark}{'&'.join(hidden)}{end}"


def _is_credential(segment: str) -> bool:
    return (
        len(segment) >= _LONG_CREDENTIAL
        and "." not in segment
        and any(character.isdigit() for character in segment)
        and any(character.isalpha() for character in segment)
    )


def masked(value: Any, names: str) -> Any:
    """Return the JSON value with everything under a sensitive name masked, at every depth."""
    return _masked(value, names, _JSON_TEXT_LEVELS)


def _masked(value: Any, names: str, levels: int) -> Any:
    if isinstance(value, dict):
        hides = _patterns(names).name.search
        return {
            key: MASK if hides(str(key)) else _masked_item(key, item, names, levels)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(item, names, levels) for item in value]
    return _masked_text(value, names, levels) if isinstance(value, str) else value


def _masked_item(key: Any, item: Any, names: str, levels: int) -> Any:
    if key == "url" and isinstance(item, str):
        return masked_url(item)
    return _masked(item, names, levels)


def masked_positional(
    values: Sequence[Any], parameters: Sequence[str] | None, names: str
) -> list[Any]:
    """Return positional arguments masked by the names of their parameters; ``None``: unknown, so
    all are masked.

    Values beyond the last parameter belong to it, as those of ``*values`` do.
    """
    if parameters is None:
        return [MASK for _ in values]
    called = [
        *parameters,
        *[parameters[-1] if parameters else ""] * (len(values) - len(parameters)),
    ]
    return [masked({name: value}, names)[name] for name, value in zip(called, values, strict=False)]


def shortened(text: str, max_bytes: int) -> str:
    """Return the text truncated to ``max_bytes`` bytes of UTF-8.

    NUL and lone surrogates, which some databases refuse, are escaped.
    """
    clean = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace")
    if len(clean) <= max_bytes:
        return clean.decode()
    kept = clean[: max(0, max_bytes - 16)].decode("utf-8", "ignore")
    return f"{kept}{_CUT}"


# Texts for tenants, who cannot change or read the settings of the installation.


_SETTING = re.compile(r"DURABLE_TASKS\[(['\"])[A-Z_]+\1\]")
_EXPLAINED = re.compile(rf"\({_SETTING.pattern}")
_UNREADABLE = re.compile(r"\w+ of durable_tasks_\w+ [^\n]*")


def text_for_tenants(text: str) -> str:
    """Return the text without the names of settings, tables and encryption keys, for example that
    of an exception.
    """
    if "durable_tasks_" in text:
        text = _UNREADABLE.sub("A stored value cannot be decrypted. Ask the operator.", text)
    if "DURABLE_TASKS" not in text:
        return text
    return _SETTING.sub("a setting of the operator", _EXPLAINED.sub("(set by the operator", text))
