"""Each form of a function on the tables does what its ORM form does: it returns the same, and it
leaves the same rows. A further database passes these tests with the forms of the ORM, and then with
its own.

The rest of the database suite tests what the functions do.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import transaction

from django_durable_tasks import registry
from django_durable_tasks.audit import acting
from django_durable_tasks.choices import FireOutcome, Gate, Status
from django_durable_tasks.cluster import queues
from django_durable_tasks.contrib.api import access, idempotent_requests, quotas
from django_durable_tasks.contrib.api.idempotent_requests import RequestIdentity, StoredAnswer
from django_durable_tasks.contrib.api.quotas import RequestRate
from django_durable_tasks.contrib.callbacks import endpoints
from django_durable_tasks.contrib.callbacks.models import Endpoint
from django_durable_tasks.dependencies import edges, resolve
from django_durable_tasks.dependencies.rules import NewEdge
from django_durable_tasks.limits import admission, backpressure, waitlist
from django_durable_tasks.models import RecurringTask, Task
from django_durable_tasks.models.tasks import NEVER
from django_durable_tasks.scheduler import notifier
from django_durable_tasks.schedules import ledger, trigger, writes
from django_durable_tasks.schedules.ledger import LedgerEntry
from django_durable_tasks.schedules.writes import Move
from django_durable_tasks.states import batches as batch_transitions
from django_durable_tasks.states import claims, endings, inserts
from django_durable_tasks.states import runs as run_transitions
from django_durable_tasks.states.demand import QueueDemand
from django_durable_tasks.states.runs import ClaimedStart
from django_durable_tasks.store import clock
from django_durable_tasks.store.clock import database_now
from django_durable_tasks.store.connections import TimeLimits
from django_durable_tasks.store.dialects import VERBS, Verb
from django_durable_tasks.task_values import NewTask, RunLocation
from django_durable_tasks.tasks import batches, enqueue, operator_actions
from tests.database.recurring.schedules import a_schedule
from tests.factories import NOOP, QUEUE, a_paused_queue, a_run, a_task, a_tenant, many_tasks
from tests.project import tasks

pytestmark = pytest.mark.django_db

NODE = uuid.UUID(int=7)
PLACE = RunLocation(node=NODE, worker="worker@host", lease=600.0)
BATCHED = "tests.project.batched.add"
Act = Callable[[], Any]
Scenario = Callable[[], Act]
SCENARIOS: dict[str, list[Scenario]] = {}
LEFT_OUT: dict[Scenario, tuple[str, ...]] = {}
"""The tables whose rows are not compared, because they have random parts."""
BY_DESIGN = {
    "scheduler.notifier.database_notifies": "says which databases have notifications",
    "cluster.status._connections_allowed": "SQLite has no limit of connections",
    "workflows.operations._lock_timeout": "limits a wait, which only another connection can see",
    "contrib.api.idempotent_requests._uncommitted": "sees the row of another connection",
    "contrib.api.idempotent_requests._inserted_first": "chooses the order of two statements",
}
"""Why the forms of a function differ. Tests of its package cover it."""


def of(*names: str, left_out: tuple[str, ...] = ()) -> Callable[[Scenario], Scenario]:
    """Decorator: the function creates rows, and returns what is done with the forms of these
    functions. ``left_out``: models with random values.
    """

    def decorate(scenario: Scenario) -> Scenario:
        LEFT_OUT[scenario] = left_out
        for name in names:
            SCENARIOS.setdefault(name, []).append(scenario)
        return scenario

    return decorate


@contextmanager
def _only_orm(scenario: Scenario) -> Iterator[None]:
    """Switch off the own forms of the functions of a scenario."""
    verbs = [verb for verb in VERBS if scenario in SCENARIOS.get(verb.name, ())]
    forms = [dict(verb.forms) for verb in verbs]
    for verb in verbs:
        verb.forms.clear()
    try:
        yield
    finally:
        for verb, found in zip(verbs, forms, strict=True):
            verb.forms.update(found)


def _plain(value: Any, now: datetime) -> Any:
    """Return a value as equal results of different instants and drivers have it."""
    if isinstance(value, datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=now.tzinfo)
        return f"in {round((aware - now).total_seconds() / 60)} minutes"
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value), now)
    if isinstance(value, Task):
        fields = value._meta.concrete_fields
        return _plain({field.attname: getattr(value, field.attname) for field in fields}, now)
    if isinstance(value, Mapping):
        found = {str(key): _plain(each, now) for key, each in value.items()}
        return dict(sorted(found.items()))
    if isinstance(value, set | frozenset):
        return sorted(str(_plain(each, now)) for each in value)
    if isinstance(value, list | tuple):
        return [_plain(each, now) for each in value]
    return str(value)


def _rows(now: datetime) -> dict[str, list[str]]:
    """Return all rows of the package, without the numbers that the database gives them."""
    found = {}
    for model in apps.get_models():
        if model._meta.db_table.startswith("durable_tasks_"):
            names = [
                field.attname
                for field in model._meta.concrete_fields
                if not (field.primary_key and field.get_internal_type() == "BigAutoField")
            ]
            rows = model._base_manager.values(*names)
            found[model.__name__] = sorted(str(_plain(row, now)) for row in rows)
    return found


def _difference(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return what only one of the two has: the returned value, or rows by table."""
    found = {}
    for name, value in one.items():
        left, right = value, other[name]
        if left != right and isinstance(left, list) and isinstance(right, list):
            left = [row for row in value if row not in other[name]]
            right = [row for row in other[name] if row not in value]
        if left != right:
            found[name] = (left, right)
    return found


@pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb.name not in BY_DESIGN], ids=lambda verb: verb.name
)
def test_the_form_of_the_database_does_what_the_orm_form_does(verb: Verb[..., Any]) -> None:
    assert SCENARIOS.get(verb.name), "write a scenario for each function with several forms"
    for scenario in SCENARIOS[verb.name]:
        with transaction.atomic():
            act, now = scenario(), database_now()
            seen = []
            for context in (_only_orm(scenario), transaction.atomic()):
                with transaction.atomic(), context:
                    seen.append({"returned": _plain(act(), now), **_rows(now)})
                    transaction.set_rollback(True)
            difference = _difference(*seen)
            for name in LEFT_OUT[scenario]:
                difference.pop(name, None)
            assert difference == {}, scenario.__name__
            transaction.set_rollback(True)


def test_the_names_belong_to_functions_with_several_forms() -> None:
    assert {*SCENARIOS, *BY_DESIGN} == {verb.name for verb in VERBS}


def test_only_postgresql_sends_notifications(vendor: str) -> None:
    assert notifier.database_notifies() == (vendor == "postgresql")


# Creation ---------------------------------------------------------------------------------------


@of("store.clock.database_now")
def _the_clock() -> Act:
    return clock.database_now


def _new(number: int, **more: Any) -> NewTask:
    call = enqueue.Call(registry.get(tasks.echo.name), (number, "é\\"), {})
    return enqueue.new_task(call)._replace(**more)


def _various(number: int) -> list[NewTask]:
    later = {"run_at": database_now() + timedelta(hours=1), "expires_in": 600.0}
    new = [_new(one, limit_key=f"k{one}") for one in range(number)]
    new += [_new(one, weight=2, priority=3, expected_duration=4.5, **later) for one in range(2)]
    return [*new, *[_new(one).waiting_for(1, 1) for one in range(2)]]


@of("states.inserts._insert")
def _a_few_tasks() -> Act:
    new = _various(3)
    return lambda: inserts.create_many(new)


@of("store.postgresql.copy_time", "states.inserts._insert")
def _many_tasks() -> Act:
    new = _various(200)
    return lambda: inserts.create_many(new)


@of("states.inserts._insert_unless_taken")
def _a_task_with_a_free_and_one_with_a_taken_key() -> Act:
    a_task(Status.RUNNING, key="taken")
    new = [_new(1, key="free"), _new(2, key="taken"), _new(3, expires_in=600.0)]
    return lambda: [inserts.create(one) for one in new]


@of("states.inserts._insert_free", "states.inserts._insert_unless_taken")
def _tasks_with_keys_of_which_one_was_taken_meanwhile() -> Act:
    a_task(Status.RUNNING, key="taken")
    new = [_new(1, key="free"), _new(2, key="taken"), _new(3, unique_key="free")]
    return lambda: len(inserts.create_free(new))


@of("states.inserts._insert_row", "states.inserts._insert_unless_taken")
def _tasks_that_are_read_back() -> Act:
    a_task(Status.QUEUED, unique_key="taken")
    new = [_new(1, unique_key="free"), _new(2, unique_key="taken"), _new(3, wait=600.0)]
    return lambda: [inserts.create_row(one) for one in new]


@of("states.inserts.can_create_with_answer")
def _a_task_and_an_answer_inside_a_transaction() -> Act:
    return inserts.can_create_with_answer


@of("dependencies.edges._insert")
def _edges_and_gates() -> Act:
    child, *parents = many_tasks(4, Status.BLOCKED)
    new = [NewEdge(child.pk, one.pk, placed_by="ann", comment="é") for one in parents]
    new += [NewEdge(child.pk, gate=Gate.HOLD.value), NewEdge(parents[0].pk, parents[1].pk)]
    return lambda: edges.insert_edges(new)


@of("dependencies.edges._insert", "store.postgresql.copy_time")
def _many_edges() -> Act:
    child, *parents = many_tasks(250, Status.BLOCKED)
    new = [NewEdge(child.pk, one.pk, on_upstream_failure="RUN") for one in parents]
    return lambda: edges.insert_edges(new)


# Claims and runs --------------------------------------------------------------------------------


def _due(number: int, **fields: Any) -> list[Task]:
    """Create PENDING tasks whose due times differ, the first one due first."""
    return [a_task(due=-600 + 60.0 * one, **fields) for one in range(number)]


@of("states.claims.claim")
def _claims_of_two_queues() -> Act:
    _due(3, priority=5)
    _due(3)
    _due(2, queue="other", waiting_for_limit="x")
    a_task(due=600)
    a_task(Status.QUEUED)
    now, demands = database_now(), [QueueDemand(QUEUE, 4), QueueDemand("other", 9, least=0)]
    return lambda: sorted(claims.claim(demands, now, 5, NODE, 600.0))


@of("states.claims.claim")
def _claims_of_tenants_and_shards() -> Act:
    tenant = a_tenant()
    _due(3, tenant=tenant)
    _due(3)
    now, demands = database_now(), [QueueDemand(QUEUE, 2, tenant_id=tenant.pk)]
    return lambda: [
        sorted(claims.claim(demands, now, 5, NODE, 600.0)),
        sorted(claims.claim([QueueDemand(QUEUE, 9)], now, 9, NODE, 600.0, range(512))),
    ]


@of("states.claims.due_tenants")
def _tenants_with_due_tasks() -> Act:
    tenants = [a_tenant() for _ in range(3)]
    for tenant in tenants:
        a_task(tenant=tenant)
    a_task()
    now, demands = database_now(), [QueueDemand(QUEUE, 1), QueueDemand("empty", 1)]
    return lambda: [
        claims.due_tenants(demands, now, {}, 2),
        claims.due_tenants(demands, now, {QUEUE: tenants[0].pk}, 9),
    ]


@of("states.claims.claim_these")
def _claims_of_these_tasks() -> Act:
    rows = [*_due(2), a_task(due=600), a_task(in_batch=True), a_task(Status.RUNNING)]
    waits = a_task(due_at=NEVER, waiting_for_limit="x")
    return lambda: [
        sorted(claims.claim_these([row.pk for row in rows], NODE, 600.0)),
        sorted(claims.claim_these([waits.pk], NODE, 600.0, waiting=True)),
    ]


@of("states.guarded_update.first_locked")
def _the_first_rows_to_lock() -> Act:
    _due(4)
    return lambda: claims.locked_pending(Task.objects.order_by("-due_at"), 2)


@of("states.guarded_update._lock")
def _rows_to_lock_in_order() -> Act:
    rows = many_tasks(3)
    a_task(Status.RUNNING)
    return lambda: endings.expire(Task.objects.filter(pk__in=[row.pk for row in rows[:2]]), 9)


@of("states.runs._start")
def _starts() -> Act:
    a_paused_queue("paused")
    rows = [
        a_task(Status.QUEUED, args=[1], kwargs={"a": "é"}, limit_key="k", ready_at=database_now()),
        a_task(Status.QUEUED, expires_at=database_now() - timedelta(hours=1)),
        a_task(Status.QUEUED, queue="paused"),
        a_task(Status.QUEUED, cancel_requested_at=database_now()),
        a_task(Status.PENDING),
    ]
    run_id, elsewhere = uuid.uuid4(), RunLocation(node=NODE, worker="", lease=9, queues=("no",))
    return lambda: [
        run_transitions.start(rows[0].pk, 1, run_id, elsewhere),
        run_transitions.start(rows[0].pk, 1, run_id, PLACE, "another name"),
        *[run_transitions.start(row.pk, 1, run_id, PLACE) for row in rows],
        run_transitions.start(rows[0].pk, 1, run_id, PLACE),
        run_transitions.start(uuid.UUID(int=9), 1, run_id, PLACE),
    ]


def _claimed_starts() -> list[ClaimedStart]:
    a_paused_queue("paused")
    hour = timedelta(hours=1)
    rows = [
        a_task(Status.QUEUED, args=[1], kwargs={"a": "é"}, limit_key="k", ready_at=database_now()),
        a_task(Status.QUEUED, expires_at=database_now() + hour, progress={"part": 1}),
        a_task(Status.QUEUED, expires_at=database_now() - hour),
        a_task(Status.QUEUED, queue="paused"),
        a_task(Status.QUEUED, cancel_requested_at=database_now()),
        a_task(Status.PENDING),
        a_task(Status.RUNNING),
    ]
    starts = [ClaimedStart(row.pk, row.epoch, uuid.uuid4(), 600.0) for row in rows]
    stale = a_task(Status.QUEUED)
    return [*starts, ClaimedStart(stale.pk, stale.epoch - 1, uuid.uuid4(), 600.0)]


@of("states.runs.start_claimed")
def _starts_of_claimed_tasks() -> Act:
    starts = _claimed_starts()
    longer = [starts[0]._replace(lease=1200.0), *starts[1:]]

    def act() -> Any:
        found = [sorted(run_transitions.start_claimed(one, NODE)) for one in (longer, longer)]
        assert [len(runs) for runs in found] == [2, 0]
        return found

    return act


# The ORM form claims and starts in two steps, each of which raises the epoch. The statement does
# both in one, and counts no publication. The tokens of the runs are random.
_OF_STEPS = {"epoch", "run_id", "publish_count"}


@of("states.runs.take_alone", left_out=("Task",))
def _takes_of_due_tasks() -> Act:
    a_paused_queue("paused")
    _due(3, priority=5, progress={"part": 1})
    _due(2, name=BATCHED)
    _due(2, queue="other", waiting_for_limit="x", name=BATCHED)
    _due(2, queue="paused")
    a_task(overlap_key="one", priority=9)
    a_task(queue="other", expires_at=database_now() - timedelta(hours=1))
    a_task(due=600)
    a_task(in_batch=True)
    a_task(Status.QUEUED)
    columns = [field.attname for field in Task._meta.concrete_fields]
    states = Task.objects.order_by("pk").values(*[one for one in columns if one not in _OF_STEPS])
    demands = [QueueDemand(QUEUE, 5), QueueDemand("other", 9), QueueDemand("paused", 9)]
    now, leases = database_now(), {NOOP: 1200.0}

    def act() -> Any:
        taken = run_transitions.take_alone(demands, now, 8, NODE, 600.0, leases)
        assert (len(taken.started), len(taken.claimed)) == (3, 5)
        runs = sorted((run.task_id, priority, run) for run, priority in taken.started)
        started = [(run._replace(epoch=0, run_id=NODE), priority) for _, priority, run in runs]
        return [started, sorted(taken.claimed), list(states)]

    return act


def _running(number: int) -> list[Task]:
    return many_tasks(number, Status.RUNNING)


@of("states.runs.heartbeat")
def _heartbeats() -> Act:
    one, two = _running(2)
    Task.objects.unguarded().filter(pk=two.pk).update(cancel_requested_at=database_now())
    beats: Sequence[Any] = [
        (one.pk, one.epoch, one.run_id, 600.0),
        (two.pk, two.epoch, two.run_id, 1200.0),
        (one.pk, one.epoch + 1, uuid.uuid4(), 1800.0),
    ]
    return lambda: [run_transitions.heartbeat(beats[:2]), run_transitions.heartbeat(beats[2:])]


@of("states.runs._locked_if_free")
def _progress() -> Act:
    one, two = _running(2)
    given: Sequence[Any] = [(one.pk, one.epoch, one.run_id, "[1.5]"), (two.pk, 9, two.run_id, "2")]
    return lambda: run_transitions.write_progress(given)


@of("states.runs._succeed")
def _successes() -> Act:
    runs = [a_run(row) for row in _running(2)]
    fenced = runs[1]._replace(epoch=9)
    return lambda: [run_transitions.succeed(run, '{"a": [1]}', "w") for run in (runs[0], fenced)]


@of("states.batches.take_due")
def _starts_of_a_batch() -> Act:
    _due(3, in_batch=True, name=BATCHED)
    a_task(in_batch=True, name=BATCHED, expires_at=database_now() - timedelta(hours=1), due=-1)
    a_task(name=BATCHED)
    ids = [uuid.UUID(int=one) for one in range(1, 9)]
    return lambda: batch_transitions.take_due(QUEUE, BATCHED, ids, NODE, 600.0)


@of("states.batches._succeed_many")
def _successes_of_a_batch() -> Act:
    runs = [a_run(row) for row in _running(3)]
    ends = [
        batches.Success(run=runs[0], result='"é"', wait=0.0),
        batches.Success(run=runs[1], result=None, wait=600.0),
        batches.Success(run=runs[2]._replace(run_id=uuid.uuid4()), result="3", wait=0.0),
    ]
    return lambda: batch_transitions.succeed_many(ends, "w")


# Dependencies -----------------------------------------------------------------------------------


@of("states.dependencies.blocked_dependents", "states.dependencies.release_met")
def _endings_that_release() -> Act:
    upstream, other = a_task(Status.SUCCESS), a_task(Status.QUEUED)
    children = [a_task(Status.BLOCKED) for _ in range(3)]
    waits = a_task(Status.BLOCKED, unresolved_dependencies_count=2)
    new = [NewEdge(child.pk, upstream.pk) for child in (*children, waits)]
    edges.insert_edges([*new, NewEdge(waits.pk, other.pk)])
    edges.insert_events_again({upstream.pk: (upstream.epoch, upstream.status)})

    def act() -> Any:
        done = resolve.resolve_endings_of(upstream.pk)
        return done.events, len(done.messages)

    return act


# Limits and queues ------------------------------------------------------------------------------


def _backlog() -> None:
    tenant = a_tenant()
    a_paused_queue("paused")
    for status_ in (Status.PENDING, Status.QUEUED, Status.RUNNING):
        many_tasks(2, status_, limit_key="k", weight=3)
        many_tasks(1, status_, queue="other", tenant=tenant)
    _due(2, queue="other", priority=7)
    a_task(due=6000, queue="late")


@of("limits.backpressure._read")
def _heads_of_queues() -> Act:
    _backlog()
    now = database_now()
    return lambda: sorted(backpressure.read_heads(now))


@of("limits.backpressure.late")
def _late_queues() -> Act:
    _backlog()
    since = database_now() - timedelta(minutes=5)
    backpressure.snapshot()
    return lambda: backpressure.late([QUEUE, "other", "none"], since)


@of("limits.waitlist._lock_row")
def _the_lock_of_limits() -> Act:
    return waitlist.lock_limits


@of("limits.waitlist._groups")
def _usage() -> Act:
    _backlog()
    return lambda: [vars_of(waitlist.count_usage(running=running)) for running in (True, False)]


def vars_of(usage: waitlist.Usage) -> dict[str, Any]:
    """Return the numbers of a usage."""
    return {
        "under way": dict(usage.under_way),
        "queued": {queue: dict(found) for queue, found in usage.queued.items() if found},
        "tenants": {queue: dict(found) for queue, found in usage.of_tenants.items()},
        "paused": usage.paused,
    }


def _waiting(scope: str, number: int, **fields: Any) -> None:
    for one in range(number):
        at = database_now() + timedelta(minutes=one)
        a_task(due_at=NEVER, waiting_for_limit=scope, ready_at=at, **fields)


@of("limits.waitlist._read")
def _heads_of_waitlists() -> Act:
    _waiting("a", 3)
    _waiting("b", 2, priority=9)
    a_task(waiting_for_limit="a", ready_at=database_now())
    return lambda: sorted(waitlist.heads(["a", "b", "none"]))


@of("limits.waitlist.scopes_after")
def _scopes_with_waiting_tasks() -> Act:
    for scope in ("a", "b", "c"):
        _waiting(scope, 2)
    return lambda: [waitlist.scopes_after("", 2), waitlist.scopes_after("a", 9)]


@of("limits.admission.under_way_of")
def _tasks_under_way() -> Act:
    _backlog()
    return lambda: sorted(admission.under_way_of([QUEUE, "other"]))


@of("cluster.queues.waiting")
def _depths() -> Act:
    _backlog()
    now = database_now()
    backpressure.snapshot()
    return lambda: sorted(row for row in queues.waiting(now) if row[0] != "late")


@of("tasks.batches.batch_heads")
def _heads_of_batches() -> Act:
    _due(2, in_batch=True, priority=4)
    _due(1, in_batch=True, queue="other", name=BATCHED)
    a_task(in_batch=True, queue="later", due=600)
    now = database_now()
    return lambda: sorted(batches.batch_heads(now), key=lambda one: (one.queue, one.name))


@of("tasks.batches._reserve_pairs", "tasks.batches.message_received")
def _messages_of_batches() -> Act:
    pairs = [("a", BATCHED), ("b", BATCHED)]

    def act() -> Any:
        found = [sorted(batches.reserve_messages(pairs)), batches.reserve_messages(pairs)]
        batches.message_received("a", BATCHED, 1)
        batches.message_received("b", BATCHED, 0)
        return [*found, batches.reserve_messages(pairs, consumed=False)]

    return act


# Schedules --------------------------------------------------------------------------------------


@of("schedules.ledger._write")
def _entries_of_the_ledger() -> Act:
    row = a_schedule()
    at = database_now()
    entries = [
        LedgerEntry(
            recurring_task_id=row.pk,
            tenant_id=1,
            fire_time=at,
            outcome=FireOutcome.DISPATCHED,
            task_id=uuid.UUID(int=1),
            term=3,
        ),
        LedgerEntry(
            recurring_task_id=row.pk,
            tenant_id=1,
            fire_time=at + timedelta(hours=1),
            outcome=FireOutcome.DISPATCHED,
            request_id="r",
        ),
    ]
    other = [
        LedgerEntry(
            recurring_task_id=row.pk,
            tenant_id=1,
            fire_time=at,
            outcome=FireOutcome.DISPATCHED,
            task_id=uuid.UUID(int=2),
        )
    ]
    return lambda: [ledger.write(entries), ledger.write(other)]


@of("schedules.writes._advance")
def _moves_of_schedules() -> Act:
    rows, now = [a_schedule("one"), a_schedule("two")], database_now()
    later = now + timedelta(hours=1)
    moves = [
        Move(rows[0].pk, rows[0].revision, later, now, ran=2, last_run_at=now),
        Move(rows[1].pk, rows[1].revision, None, now),
    ]
    return lambda: writes.advance(moves)


@of("schedules.trigger._locked_due", left_out=("Task", "OccurrenceRecord"))
def _schedules_that_are_due() -> Act:
    now = database_now()
    for name in ("one", "two", "three"):
        a_schedule(name, start_time=now - timedelta(seconds=30))
    fired = RecurringTask.objects.order_by("name").values_list("runs_count", "last_run_at")
    return lambda: [trigger.fire_due(now, 2), list(fired)]


# Audit, tenants, optional apps ------------------------------------------------------------------


@of("audit.insert_entries")
def _an_audited_operation() -> Act:
    many_tasks(2)

    def act() -> Any:
        with acting(by="ann", reason="é"):
            return operator_actions.cancel(Task.objects.all()).total

    return act


@of("contrib.api.quotas._moved")
def _request_rates() -> Act:
    tenant, rate, now = a_tenant(), RequestRate(2, 60), database_now()
    return lambda: [quotas.admit_requests(tenant.pk, rate, now) for _ in range(3)]


@of("contrib.api.access._with_tenant")
def _a_key() -> Act:
    now = database_now()
    issued = access.create_key(a_tenant(), "program", ["read"], now=now)

    def act() -> Any:
        found = access.verified_key(issued.text, now)
        return found and (found.row.pk, found.row.scopes, found.row.tenant.slug)

    return act


@of(
    "contrib.api.idempotent_requests._inserted",
    "contrib.api.idempotent_requests._store",
    "audit.insert_entries",
)
def _a_repeated_request() -> Act:
    identity, now = RequestIdentity(1, "key", "POST /tasks", "digest"), database_now()

    def act() -> Any:
        return [
            idempotent_requests.once(
                identity,
                now,
                TimeLimits(),
                lambda: StoredAnswer(201, {"a": "é"}, {"Location": "/"}),
            )
            for _ in range(2)
        ]

    return act


@of("contrib.notifications.capture._insert")
def _events() -> Act:
    insert = next(verb for verb in VERBS if verb.name == "contrib.notifications.capture._insert")
    now = database_now()
    event = {"setting_id": 1, "type": "FAILURE", "subject": "é", "data": {"a": [1.5, None]}}
    rows = [event | {"created_at": now, "due_at": now + timedelta(hours=one)} for one in range(2)]
    return lambda: insert(rows)


def _endpoint(key: str, **fields: Any) -> None:
    endpoints_: Any = Endpoint.objects.unguarded()
    endpoints_.create(key=key, **fields)


@of("contrib.callbacks.endpoints._open_endpoint", left_out=("Task",))
def _open_breakers() -> Act:
    until = database_now() + timedelta(hours=1)
    _endpoint("open", open_until=until)
    _endpoint("closed")
    rows = [a_task(Status.QUEUED, limit_key=key) for key in ("open", "closed", None)]
    states = Task.objects.order_by("pk").values_list("pk", "status", "epoch")
    return lambda: [[endpoints.postpone(row.pk, row.epoch) for row in rows], list(states)]


@of("contrib.callbacks.endpoints._close")
def _answers_of_endpoints() -> Act:
    hour = timedelta(hours=1)
    _endpoint("failed", failures=3, openings=1, open_until=database_now() + hour)
    _endpoint("gone", gone_at=database_now() - 48 * hour)

    def act() -> None:
        for key in ("failed", "gone", "none"):
            endpoints.succeeded(key)

    return act
