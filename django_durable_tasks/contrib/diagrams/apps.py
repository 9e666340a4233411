"""The configuration of the optional app."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from django_durable_tasks import contrib


class DiagramsConfig(contrib.OptionalAppConfig):
    """Adds the formats ``mermaid`` and ``svg``, and the drawings on the pages of the admin."""

    name = "django_durable_tasks.contrib.diagrams"
    label = "durable_tasks_diagrams"
    verbose_name = _("Durable tasks: diagrams")

    def ready(self) -> None:
        """Register the formats."""
        from django_durable_tasks.contrib.diagrams.drawings import as_html, as_mermaid, as_svg
        from django_durable_tasks.workflows.diagrams import FORMATS

        FORMATS.update(mermaid=as_mermaid, svg=as_svg, html=as_html)
