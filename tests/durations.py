"""The duration of each run of the test matrix, by its suite, its database and its broker."""

CHECK_SECONDS = 12
"""The mean of the checks, which have no folders."""
SECONDS: dict[tuple[str, str | None, str | None], int] = {
    ("architecture", None, None): 40,
    ("unit", None, None): 165,
    ("documentation", None, None): 40,
    ("browser", "sqlite", None): 65,
    ("database", "postgresql", None): 600,
    ("database", "mariadb", None): 400,
    ("database", "sqlite", None): 250,
    ("portable", "mariadb", None): 200,
    ("portable", "sqlite", None): 130,
    ("crash_points", "postgresql", None): 125,
    ("crash_points", "mariadb", None): 115,
    ("crash_points", "sqlite", None): 95,
    ("broker", "postgresql", "rabbitmq"): 120,
    ("broker", "postgresql", "redis"): 215,
    ("broker", "postgresql", "filesystem"): 120,
    ("processes", "postgresql", "rabbitmq"): 430,
    ("processes", "postgresql", "redis"): 430,
    ("processes", "postgresql", "filesystem"): 250,
    ("processes", "mariadb", "rabbitmq"): 430,
    ("processes", "sqlite", "filesystem"): 460,
    ("smoke", "postgresql", "rabbitmq"): 20,
    ("smoke", "postgresql", "filesystem"): 65,
    ("smoke", "mariadb", "rabbitmq"): 75,
    ("smoke", "sqlite", "filesystem"): 100,
    ("pgbouncer", "postgresql", "redis"): 95,
    ("mutants", "postgresql", "redis"): 400,
    ("chaos", "postgresql", "rabbitmq"): 230,
    ("newest", None, None): 250,
    ("newest", "sqlite", None): 330,
    ("newest", "postgresql", "redis"): 110,
    ("alternatives", "postgresql", "redis"): 130,
}
"""Seconds on a machine with two busy processors: for the order and the progress lines, never a
limit.
"""
