"""The test project as a Django application, with optional failpoints, mutants, and clock shifts."""

from django.apps import AppConfig


class ProjectConfig(AppConfig):
    """Enables the features that the environment names."""

    name = "tests.project"

    def ready(self) -> None:
        from tests.mutants import apply
        from tests.project.clocks import shift
        from tests.project.failpoints import arm

        arm()
        apply()
        shift()
