"""The migrations match the models."""

from django.apps import apps
from django.db import models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.state import ModelState, ProjectState

from tests.architecture.sources import PACKAGE, expect_none


def _missing(wanted: ProjectState) -> list[str]:
    loader = MigrationLoader(None)
    changes = MigrationAutodetector(loader.project_state(), wanted).changes(graph=loader.graph)
    return [
        operation.describe()
        for migration in changes.get(PACKAGE, [])
        for operation in migration.operations
    ]


def test_the_migrations_match_the_models() -> None:
    expect_none(_missing(ProjectState.from_apps(apps)))


def test_the_migrations_have_one_leaf() -> None:
    assert MigrationLoader(None).detect_conflicts() == {}


def test_a_model_without_a_migration_is_found() -> None:
    wanted = ProjectState.from_apps(apps)
    wanted.add_model(ModelState(PACKAGE, "Attic", [("id", models.AutoField(primary_key=True))]))
    assert _missing(wanted) == ["Create model Attic"]
