"""The second plan, for the tree after the first: capability packages instead of layers.

    python layout/capabilities.py ROOT plan2.json

Prints the imports that would point upwards in the order of the packages. The programs
``cycles.py`` and ``merge_modules.py`` take its plan as they take the first one.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

from cycles import imported
from sources import PACKAGE, modules_of

# The order of imports: a package imports those of the lines above it.
ORDER = (
    "exceptions did_you_mean host_clock idle_pool process_state circuit_breaker signals conf ports",
    "encryption registry",
    "models",
    "store",
    "states",
    "audit",
    "limits dependencies tenants",
    "tasks",
    "workflows schedules",
    "cluster",
    "celery decorators",
    "scheduler",
    "operations",
    "admin command",
    "contrib",
)

# The new place of a module, or of all modules below it. The longest match counts.
PLACES = {
    "rules.states": "states.machine",
    "engine.transitions": "states.transitions",
    "rules.audit": "audit.values",
    "engine.audit": "audit.recorder",
    "rules.encryption": "encryption_rules",
    "engine.db": "store",
    "rules.limits": "limits.scopes",
    "engine.limits": "limits",
    "rules.dependencies": "dependencies.joins",
    "engine.dependencies": "dependencies",
    "rules.tasks": "tasks.rules",
    "engine.tasks": "tasks",
    "rules.tenants": "tenants.rules",
    "engine.tenants": "tenants",
    "rules.recurring.timetables": "schedules.timetables",
    "rules.recurring": "schedules.rules",
    "engine.recurring": "schedules",
    "rules.workflows": "workflows.plan",
    "engine.workflows": "workflows",
    "engine.cluster": "cluster",
    "management.durable": "command",
    "rules.targets": "contrib.callbacks.rules",
    "rules.target_types": "tasks.target_types",
    "targets": "contrib.callbacks",
    "targets.internal_tasks": "tasks.internal_tasks",
    "rules.notifications": "contrib.notifications.rules",
    "engine.notification_events": "contrib.notifications.events",
    "engine.notifications": "contrib.notifications.settings",
    "targets.notification_delivery": "contrib.notifications.delivery",
    "rules.metrics": "contrib.metrics.rules",
    "engine.metrics": "contrib.metrics.counts",
    "metrics": "contrib.metrics",
    "rules.verify": "contrib.verify.rules",
    "engine.verify": "contrib.verify",
    "due_index.verify": "contrib.verify.due_index",
    "api": "contrib.api",
    "webhooks": "contrib.callbacks.webhooks",
    "diagrams": "contrib.diagrams",
    "tracing": "contrib.metrics.tracing",
    "engine.tasks.batches": "contrib.batches.batches",
    "celery.execution.batch_runs": "contrib.batches.runs",
    "engine.manager_operations": "operations.manager_operations",
    "notifier": "scheduler.notifier",
    "due_index": "scheduler.due_index",
}


def place_of(module: str) -> str:
    """Return the new name of a module, relative to the package."""
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        old = ".".join(parts[:size])
        if old in PLACES:
            return ".".join([PLACES[old], *parts[size:]])
    return module


def main(root: Path, target: Path) -> None:
    """Write the plan, and print what its order forbids."""
    modules = modules_of(root)
    level = {name: number for number, line in enumerate(ORDER) for name in line.split()}
    moves, order = {}, {}
    for name, module in modules.items():
        short = name.removeprefix(PACKAGE).lstrip(".")
        new = place_of(short) if short else ""
        if new != short and not module.is_package:
            moves[name] = f"{PACKAGE}.{new}"
            order[f"{PACKAGE}.{new}"] = [name]
    known = set(modules)
    upwards: Counter[tuple[str, str]] = Counter()
    for name, module in modules.items():
        here = moves.get(name, name).removeprefix(f"{PACKAGE}.")
        for node, kind in module.imports():
            if kind != "top":
                continue
            for one in imported(node, known):
                there = moves.get(one, one).removeprefix(f"{PACKAGE}.")
                mine, theirs = here.split(".")[0], there.split(".")[0]
                if (
                    mine in level
                    and theirs in level
                    and mine != theirs
                    and level[theirs] >= level[mine]
                ):
                    upwards[here, there] += 1
    packages: Counter[tuple[str, str]] = Counter()
    for (here, there), number in upwards.items():
        packages[here.split(".")[0], there.split(".")[0]] += number
    for (mine, theirs), number in packages.most_common():
        print(f"{mine} -> {theirs}: {number}")
        for (here, there), count in sorted(upwards.items()):
            if (here.split(".")[0], there.split(".")[0]) == (mine, theirs):
                print(f"    {here} -> {there}" + (f" ({count})" if count > 1 else ""))
    target.write_text(
        json.dumps({"moves": moves, "order": order, "renames": {}, "subjects": {}}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
