"""Sphinx: ``pip install -e '.[docs]'``, then ``python -m sphinx -W -b html docs
docs/_build/html``.
"""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

project = "django-durable-tasks"
author = "The django-durable-tasks authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_fence_as_directive = ["mermaid"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "django-durable-tasks"
html_js_files = ["https://cdn.jsdelivr.net/npm/mermaid@11/dist/mermaid.min.js"]
suppress_warnings = ["myst.xref_missing"]  # links out of docs/, which tests/documentation follows


class Mermaid(SphinxDirective):
    """A diagram that the browser draws; without a network its text is read."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        """Hand the text on."""
        text = nodes.literal_block(
            "\n".join(self.content), "\n".join(self.content), classes=["mermaid"]
        )
        text["language"] = "none"
        drawn = nodes.raw(
            "", f'<pre class="mermaid">\n{nodes.unescape(text.astext())}\n</pre>', format="html"
        )
        return [drawn] if self.env.app.builder.format == "html" else [text]


def setup(app: Any) -> dict[str, bool]:
    """Add the diagram."""
    app.add_directive("mermaid", Mermaid)
    return {"parallel_read_safe": True}
