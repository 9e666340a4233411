"""Key templates are validated before they are formatted, so that no template can pad a key to a
gigabyte.
"""

from __future__ import annotations

import pytest

from django_durable_tasks.exceptions import InvalidOption
from django_durable_tasks.tasks.options import checked_template


@pytest.mark.parametrize(
    "template",
    [
        "{task:>300000000}",
        "{0:300000000}",
        "{0:.300000000f}",
        "{0:0999999999999999999999d}",
        "{0:>{1}}",
        "{0:x<201}",
        "{a.b[0]!r:^1000}",
        "{0:\n>1000}",
        "{",
        "{0",
        "}",
    ],
)
def test_a_template_that_pads_beyond_a_key_or_is_malformed_is_refused(template: str) -> None:
    with pytest.raises(InvalidOption, match="overlap_key="):
        checked_template("overlap_key", template)


@pytest.mark.parametrize(
    "template", ["", "{task}:{0}", "{{x}}", "{0:>200}", "{0:.2f}", "{day:%Y-%m-%d 2026}", "{0!r:5}"]
)
def test_ordinary_templates_are_accepted(template: str) -> None:
    assert checked_template("unique", template) == template
