"""The test project as a Django application: a test may ask it for failpoints, for mutants, and for
a wrong clock.
"""

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    """Plug in what a test asked for."""

    name = "tests.project"

    def ready(self) -> None:
        from tests.mutants import apply
        from tests.project.clocks import shift
        from tests.project.failpoints import arm

        arm()
        apply()
        shift()
