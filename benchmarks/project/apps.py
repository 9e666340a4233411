"""The app of the benchmarks."""

from unittest.mock import patch

from django.apps import AppConfig

from benchmarks.project.settings import SWITCHED_OFF


class BenchmarksConfig(AppConfig):
    """Switches off the mechanism that the environment variable BENCHMARK names."""

    name = "benchmarks.project"
    label = "project"

    def ready(self) -> None:
        """Replace its condition, in this process and those that it starts."""
        if SWITCHED_OFF:
            module, name, value = SWITCHED_OFF
            patch(f"django_durable_tasks.{module}.{name}", lambda *_: value).start()
