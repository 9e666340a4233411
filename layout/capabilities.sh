#!/bin/sh
# The second step, for the tree after the first: sh layout/capabilities.sh moves everything, and
# leaves two commits. It needs a tree without changes, and .venv with ruff.
set -e
P="django_durable_tasks tests benchmarks example_project docs"
IN=django_durable_tasks
tidy() {
    .venv/bin/ruff check --fix -q $P --select F401,I || true
    .venv/bin/ruff format -q $P
}

# 1. What several capabilities share goes below the models.
.venv/bin/python layout/move_names.py . layout/splits.json
sed -i '0,/^from django_durable_tasks.exceptions import/s//from django_durable_tasks.engine.tenants.quotas import tenant_quotas\n&/' \
    $IN/engine/recurring/schedules.py
.venv/bin/python - <<'PYTHON'
import re
from pathlib import Path

PACKAGE = Path("django_durable_tasks")


def edit(path, *pairs):
    file = PACKAGE / path
    text = file.read_text()
    for old, new in pairs:
        text, number = re.subn(old, new, text, count=1, flags=re.DOTALL)
        assert number, (path, old)
    file.write_text(text)


edit(
    "rules/targets/queue_message.py",
    (r'TENANT = "\{tenant\}"\n""".*?"""\n', ""),
    ("from django_durable_tasks.exceptions", r"from django_durable_tasks.conf import TENANT\n\g<0>"),
)
for path in ("celery/publishing/routing.py", "checks/configuration.py"):
    edit(path, (r"from django_durable_tasks.rules.targets.queue_message import TENANT", "from django_durable_tasks.conf import TENANT"))
edit(
    "__init__.py",
    ('"Schedule": "[a-z_.]+"', '"Schedule": "django_durable_tasks.rules.tasks.options"'),
    ('"SpecialDay": "[a-z_.]+"', '"SpecialDay": "django_durable_tasks.choices"'),
)
PYTHON
rm $IN/rules/target_types.py
tidy
git add -A -- $P
git commit -qm "Package: Move what several capabilities share to places below the models

By a program. Enumerations of columns are in choices.py, the names of tasks
of this package in task_names.py, masking and readers of option values in
modules of their own. What tasks and dependencies used of workflows, and
what limits used of schedules and explanations, is in their packages now."

# 2. Modules of one capability go to one package.
.venv/bin/python layout/capabilities.py . /tmp/plan2.json
.venv/bin/python layout/cycles.py . /tmp/plan2.json
.venv/bin/python layout/merge_modules.py . /tmp/plan2.json > /tmp/merge_report.txt
git mv $IN/engine/transitions/__init__.py $IN/states/transitions.py
git mv $IN/engine/db/sql $IN/store/sql
git mv $IN/due_index/lua $IN/scheduler/lua
git mv $IN/management/durable/__init__.py $IN/command/__init__.py
for folder in rules engine due_index notifier management/durable celery/execution \
    celery/publishing celery/transports; do
    git rm -rqf $IN/$folder
    rm -rf $IN/$folder
done
package() { mkdir -p $IN/$1; printf '"""%s"""\n' "$2" > $IN/$1/__init__.py; }
package store "What differs between databases: connections, SQL, the clock, retries and error codes."
package states "The state machine as data, and the only writers of Task.status."
package outbox "Events of notification settings, recorded in the transaction in which they occur."
package limits "Concurrency and rate limits, back-pressure, and overlapping runs."
package dependencies "Edges, joins and references between tasks, their resolution, and the replay of graphs."
package targets "What the core knows of HTTP callbacks: addresses, requests, answers and endpoints."
package tasks "Tasks from the call to the ending: options, enqueue, claim, attempts, operator actions."
package tenants "API keys, quotas, request rates, idempotent requests and bulk operations of tenants."
package schedules "Schedules: timetables, calendars, misfires, the ledger and the creation of their tasks."
package schedules/timetables "Timetables: pure values with the methods next, previous and count."
package cluster "Nodes, the lease of the leader, queues, and the state of the installation."
package callbacks "Durable tasks that send HTTP requests and messages for other programs."
package notifications "Notification settings, the delivery of their messages, alerts, and the watchdog."
package metrics "Counts per minute, their exposition for Prometheus, and spans of OpenTelemetry."
package verify 'The checks and repairs of ``durable verify``.'
git add -A -- $P setup.cfg pyproject.toml README.md CONTRIBUTING.md Makefile tox.ini
FILES=$(git ls-files | grep -E '\.(py|md|toml|cfg|ini|html|txt|sql|lua|yml)$|Makefile' | grep -v 'CHANGELOG\|^layout')
sed -i -E 's#django_durable_tasks\.engine\.transitions#django_durable_tasks.states.transitions#g; s#from django_durable_tasks\.engine import transitions#from django_durable_tasks.states import transitions#g; s#engine/db/sql#store/sql#g; s#due_index/lua#scheduler/lua#g; s#management/durable/#command/#g' $FILES
sed -i 's/getLogger("django_durable_tasks.metrics.tracing")/getLogger("django_durable_tasks.tracing")/' $IN/metrics/tracing.py
tidy
# The imports register tasks; their comment was lost, so that ruff removed them.
.venv/bin/python - <<'PYTHON'
from pathlib import Path

file = Path("django_durable_tasks/apps.py")
text = file.read_text()
for old, new in (
    (
        "        from django_durable_tasks import checks\n",
        "        from django_durable_tasks import (\n            checks,\n"
        "            internal_tasks,  # noqa: F401 - registers its tasks in every process, as the two below\n"
        "        )\n        from django_durable_tasks.callbacks import tasks as callback_tasks  # noqa: F401\n",
    ),
    (
        "        from django_durable_tasks.store.connections import",
        "        from django_durable_tasks.notifications import task as notification_task  # noqa: F401\n"
        "        from django_durable_tasks.store.connections import",
    ),
):
    assert old in text, old
    text = text.replace(old, new, 1)
file.write_text(text)
PYTHON
git add -A -- $P setup.cfg pyproject.toml README.md CONTRIBUTING.md Makefile tox.ini
git commit -qm "Package: Move modules to packages by capability, without changing a function

By a program (layout/capabilities.py is its plan, in the second parent).
rules/X and engine/X are one package X."
