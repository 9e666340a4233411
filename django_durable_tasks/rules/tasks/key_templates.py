"""Templates of keys with the syntax of ``str.format``: ``unique=``, ``PerKey`` and ``overlap_key``.
Pure.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.rules.tasks.options import checked_key

_LONGEST = 200
_SPEC = re.compile(
    r"(?s:.?[<>=^])?[-+ ]?z?#?0?(?P<width>\d+)?[,_]?(?:\.(?P<precision>\d+))?[a-zA-Z%]?\Z"
)


@functools.lru_cache(maxsize=1_000)
def checked_template(option: str, template: str) -> str:
    """Return the template; raises InvalidOption if it is malformed or pads a field beyond the
    length of a key.

    The check does not format it: ``{task:>300000000}`` would allocate as many characters.
    """
    try:
        specs = [spec for _, _, spec, _ in Formatter().parse(template) if spec]
    except ValueError as error:
        raise InvalidOption(f"{option}={template!r}: {error}.") from None
    for spec in specs:
        if "{" in spec:
            raise InvalidOption(
                f"{option}={template!r}: a width that is an argument is not allowed, {spec!r}."
            )
        found = _SPEC.match(spec)
        sizes = [size for size in (found["width"], found["precision"]) if size] if found else []
        if any(len(size) > 9 or int(size) > _LONGEST for size in sizes):
            raise InvalidOption(
                f"{option}={template!r}: {spec!r} asks for more than {_LONGEST} characters, the"
                " longest key."
            )
    return template


def formatted(option: str, template: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the key of a template with these arguments; raises InvalidOption."""
    try:
        return checked_key(option, checked_template(option, template).format(*args, **kwargs))
    except InvalidOption:
        raise
    except (LookupError, AttributeError, TypeError) as missing:
        raise InvalidOption(
            f"{option}={template!r} names {missing}, which this call does not pass."
        ) from None
    except Exception as error:  # noqa: BLE001 - formatting calls the arguments' own code
        raise InvalidOption(f"{option}={template!r}: {type(error).__name__}: {error}.") from None
