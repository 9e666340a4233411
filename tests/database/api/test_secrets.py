"""A key without the scope ``secrets`` can neither redirect a stored secret nor guess it.

The stored arguments, the edits and the guesses are drawn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from django_durable_tasks import PerKey, registry
from django_durable_tasks.choices import Status
from django_durable_tasks.contrib.api.access import ApiScope
from django_durable_tasks.models import AuditEntry, RecurringTask, Task
from tests.database.api.client import SETTINGS, ApiClient, a_client
from tests.database.notifications.sending import SETTINGS as SENDING
from tests.database.notifications.sending import a_webhook
from tests.factories import a_task
from tests.repetitions import repetitions

pytestmark = pytest.mark.django_db
ECHO = "tests.project.tasks.echo"
SECRET, WRONG, MASK = "s3cr3t-737", "wr0ng-738", "********"
NO_SECRETS = tuple(scope for scope in ApiScope if scope is not ApiScope.SECRETS)
LATER = (timezone.now() + timedelta(days=1)).isoformat()
# Without shrinking: an example costs about ten requests, and the values are small.
drawn = settings(
    max_examples=repetitions(8),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture
def reader(acme: ApiClient) -> ApiClient:
    """Return the client of a key that may do everything but read secrets."""
    return a_client(acme.tenant, *NO_SECRETS)


def _holding(secret: Any) -> st.SearchStrategy[Any]:
    """Draw kwargs with the secret below a sensitive name, at any depth, beside other values."""
    leaf = st.sampled_from(["card", "cvv", "token", "api_key"]).map(lambda name: {name: secret})
    urls = st.just({"url": f"https://a.example/?q={secret}"})
    other = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2), max_size=2)
    nested = st.recursive(
        leaf | urls,
        lambda inner: st.one_of(
            st.builds(lambda item: {"d": item}, inner), st.builds(lambda item: {"e": [item]}, inner)
        ),
        max_leaves=3,
    )
    return st.builds(lambda one, more: {**more, **one}, nested, other)


EDITS = st.fixed_dictionaries(
    {},
    optional={
        "args": st.lists(st.sampled_from(["https://evil.example", 1]), max_size=2),
        "kwargs": st.sampled_from(["shown", "shown and more", "new"]),
    },
)


def _edit(given: dict[str, Any], shown: dict[str, Any]) -> dict[str, Any]:
    if "kwargs" not in given:
        return given
    kwargs = {
        "shown": shown["kwargs"],
        "shown and more": {**shown["kwargs"], "to": "https://evil.example"},
        "new": {"x": 1},
    }
    return {**given, "kwargs": kwargs[given["kwargs"]]}


def _made(acme: ApiClient, kind: str, kwargs: dict[str, Any]) -> tuple[str, Any]:
    """Create an object with these kwargs; return its path and a function that reads it."""
    config: dict[str, Any] = {"task": ECHO, "args": ["https://good.example"], "kwargs": kwargs}
    body = {"target_type": "CELERY_TASK", "target_config": config}
    if kind == "recurring":
        answer = acme.post("/recurring-tasks", {**body, "name": "pay", "cron": "0 4 * * *"})
        key = answer.json()["recurring_task_id"]
        return f"/recurring-tasks/{key}", lambda: RecurringTask.objects.get(pk=key)
    if kind == "replay":
        key = a_task(
            Status.FAILED, name=ECHO, args=config["args"], kwargs=kwargs, tenant=acme.tenant
        ).pk
    else:
        key = acme.post("/tasks", {**body, "run_at": LATER}).json()["task_id"]
    return f"/tasks/{key}", lambda: Task.objects.get(pk=key)


@pytest.mark.parametrize("kind", ["task", "recurring", "replay"])
@drawn
@given(kwargs=_holding(SECRET), edit=EDITS)
@example(kwargs={"token": SECRET}, edit={"args": ["https://evil.example"]})
def test_a_secret_that_is_kept_stays_with_its_recipient(
    acme: ApiClient, reader: ApiClient, kind: str, kwargs: dict[str, Any], edit: dict[str, Any]
) -> None:
    with transaction.atomic():
        path, read = _made(acme, kind, kwargs)
        before = read()
        shown = reader.get(path).json()["target_config"]
        assert SECRET not in json.dumps(shown)
        body = {"target_config": _edit(edit, shown)}
        if kind == "replay":
            answer = reader.post(f"{path}/replay", body)
        else:
            answer = reader.patch(path, body, If_Match="*")
        after = read()
        if SECRET in json.dumps(after.kwargs):
            assert (after.args, after.kwargs) == (before.args, before.kwargs)
        else:
            assert answer.status_code == 200
        transaction.set_rollback(True)


Probe = Callable[[ApiClient, str, dict[str, Any]], Any]


def _patched(query: str) -> Probe:
    def probe(reader: ApiClient, path: str, config: dict[str, Any]) -> Any:
        return reader.patch(path + query, {"target_config": config}, If_Match="*")

    return probe


def _replayed(reader: ApiClient, path: str, config: dict[str, Any]) -> Any:
    return reader.post(f"{path}/replay?dry_run=1", {"target_config": config})


def _created(reader: ApiClient, key: str, config: dict[str, Any], **headers: str) -> Any:
    body = {"target_type": "CELERY_TASK", "target_config": config, "idempotency_key": key}
    return reader.post("/tasks", {**body, "run_at": LATER}, **headers)


def _by_task_key(reader: ApiClient, _path: str, config: dict[str, Any]) -> Any:
    return _created(reader, "order-1", config)


def _by_request_key(reader: ApiClient, _path: str, config: dict[str, Any]) -> Any:
    body = {"target_type": "CELERY_TASK", "target_config": config, "run_at": LATER}
    return reader.post("/tasks", body, Idempotency_Key="order-1")


PROBES: dict[str, tuple[str, Probe]] = {
    "patch": ("task", _patched("")),
    "patch dry": ("task", _patched("?dry_run=1")),
    "recurring": ("recurring", _patched("")),
    "recurring dry": ("recurring", _patched("?dry_run=1")),
    "replay": ("replay", _replayed),
    "idempotency_key": ("task", _by_task_key),
    "Idempotency-Key": ("task", _by_request_key),
}
# What differs between two equal requests.
_OWN = re.compile(
    r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    rf"|[0-9a-f]{{12}}|{re.escape(SECRET)}|{re.escape(WRONG)}"
)


def _answer(
    acme: ApiClient, reader: ApiClient, kind: str, probe: Probe, kwargs: Any, guess: Any, edit: str
) -> list[str]:
    """Return all that the caller sees of one guess."""
    with transaction.atomic():
        path, _read = _made(acme, kind, kwargs)
        stored = {"task": ECHO, "args": ["https://good.example"], "kwargs": kwargs}
        given = {"target_type": "CELERY_TASK", "target_config": stored, "run_at": LATER}
        acme.post("/tasks", {**given, "idempotency_key": "order-1"})
        acme.post("/tasks", given, Idempotency_Key="order-1")
        shown = reader.get(path).json()["target_config"]
        config = {**shown, "kwargs": guess}
        if edit == "with a mask":
            config["kwargs"] = {**guess, "token2": MASK}
        AuditEntry.objects.unguarded().all().delete()
        answer = probe(reader, path, config)
        headers = {name: answer.headers.get(name) for name in ("ETag", "Idempotent-Replayed")}
        seen = [answer.status_code, headers, _comparable(answer.json())]
        seen += [_comparable(reader.get(path).json())] if kind != "replay" else []
        seen += [_comparable(reader.get("/audit").json()["data"])]
        transaction.set_rollback(True)
    return [_OWN.sub("", json.dumps(one, sort_keys=True)) for one in seen]


def _comparable(value: Any) -> Any:
    """Return the value without ids, which differ between two equal requests."""
    if isinstance(value, dict):
        return {k: _comparable(v) for k, v in value.items() if not k.endswith("id")}
    return [_comparable(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("probe", PROBES)
@drawn
@given(kwargs=_holding(SECRET), edit=st.sampled_from(["alone", "with a mask"]))
def test_a_right_guess_is_answered_like_a_wrong_one(
    acme: ApiClient, reader: ApiClient, probe: str, kwargs: dict[str, Any], edit: str
) -> None:
    if edit == "with a mask":
        kwargs = {**kwargs, "token2": SECRET}
    kind, ask = PROBES[probe]
    right = json.loads(json.dumps(kwargs))
    wrong = json.loads(json.dumps(kwargs).replace(SECRET, WRONG))
    answers = [_answer(acme, reader, kind, ask, kwargs, guess, edit) for guess in (right, wrong)]
    assert answers[0] == answers[1]


PLACES: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "url": lambda config, ref: {**config, "url": "https://evil.example/"},
    "part": lambda config, ref: {**config, "body": {**ref, "path": ["token"]}},
    "header": lambda config, ref: {**config, "headers": {"X-To": "evil"}},
    "moved": lambda config, ref: {**config, "body": {"to": ref}},
    "unchanged": lambda config, ref: config,
    "removed": lambda config, ref: {**config, "body": "none", "url": "https://evil.example/"},
}


@pytest.mark.parametrize("kind", ["patch", "replay"])
@drawn
@given(
    edit=st.sampled_from(sorted(PLACES)),
    outer=st.sampled_from(["alone", "nested", "below a sensitive name"]),
)
@example(edit="url", outer="alone")
@example(edit="part", outer="nested")
def test_a_reference_that_is_kept_stays_with_its_recipient(
    acme: ApiClient, reader: ApiClient, settings: Any, kind: str, edit: str, outer: str
) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, "API_TASKS": ["*"]}
    with transaction.atomic():
        body: Any = {"$result": "a"}
        if outer != "alone":
            body = {"x": [body]} if outer == "nested" else {"token": body}
        callback = {
            "target_type": "HTTP_CALLBACK",
            "target_config": {"url": "https://good.example/", "body": body},
        }
        first = {"step": "a", "target_config": {"task": ECHO, "args": [1]}}
        steps = [first, {"step": "b", "after": ["a"], **callback}]
        assert acme.post("/workflows", {"name": "flow", "steps": steps}).status_code == 201
        a, b = Task.objects.get(step="a"), Task.objects.get(step="b")
        path, before = f"/tasks/{b.pk}", b.kwargs
        shown = reader.get(path).json()["target_config"]
        sent = PLACES[edit](shown, {"$result": str(a.pk), "path": []})
        if kind == "replay":
            Task.objects.unguarded().filter(pk=b.pk).update(
                status=Status.FAILED, due_at=None, completed_at=timezone.now()
            )
            answer = reader.post(f"{path}/replay", {"target_config": sent})
        else:
            answer = reader.patch(path, {"target_config": sent}, If_Match="*")
        b.refresh_from_db()
        if edit in ("unchanged", "removed"):
            assert answer.status_code == 200, answer.content
        else:
            assert answer.status_code == 422, answer.content
        if "$result" in json.dumps(b.kwargs):
            assert b.kwargs == before
        transaction.set_rollback(True)


def _by_function(*values: Any, **named: Any) -> str:
    return f"{len(values)}-{json.dumps(named, sort_keys=True)[-150:]}"


# Keys that contain a secret: the template or function, and the arguments.
KEYS_OF_CALLS: dict[str, tuple[Any, list[Any], dict[str, Any]]] = {
    "{task}:{card}": ("{task}:{card}", [], {"card": SECRET}),
    "nested": ("{order[token]}", [], {"order": {"token": SECRET}}),
    "whole": ("{0}", [{"x": [{"api_key": SECRET}]}], {}),
    "text": ("{0}", [f"password={SECRET}"], {}),
    "function": (_by_function, [], {"cvv": SECRET}),
}


@pytest.mark.parametrize("path", ["/tasks", "/tasks/bulk", "/workflows", "/recurring-tasks"])
@drawn
@given(form=st.sampled_from(sorted(KEYS_OF_CALLS)), of=st.sampled_from(["unique", "limit"]))
@example(form="{task}:{card}", of="unique")
@example(form="nested", of="limit")
def test_no_answer_depends_on_a_key_that_contains_a_secret(
    acme: ApiClient, reader: ApiClient, path: str, form: str, of: str
) -> None:
    template, args, kwargs = KEYS_OF_CALLS[form]
    with pytest.MonkeyPatch.context() as patch, transaction.atomic():
        if of == "unique" or callable(template):
            _with_options(patch, unique=template)
        else:
            _with_options(patch, max_concurrency=PerKey(1, template))
        config = {"task": ECHO, "args": args, "kwargs": kwargs}
        assert acme.post("/tasks", {"target_config": config, "run_at": LATER}).status_code == 201
        answers = []
        for text in (SECRET, WRONG):
            guess = json.loads(json.dumps(config).replace(SECRET, text))
            answer = reader.post(path, _body_of(path, guess))
            answers.append(
                (answer.status_code, _OWN.sub("", json.dumps(_comparable(answer.json()))))
            )
        assert answers[0] == answers[1]
        assert answers[0][0] == 422 or "secret_key" in answers[0][1]
        # A key of arguments without secrets is compared as before.
        public = {"task": ECHO, "args": ["x"], "kwargs": {"order": {}, "x": 1}}
        _with_options(patch, unique="{task}:{0}", max_concurrency=PerKey(1, "{0}"))
        body = {"target_config": public, "run_at": LATER}
        assert [reader.post("/tasks", body).status_code for _ in range(2)] == [201, 200]
        transaction.set_rollback(True)


@drawn
@given(
    text=st.sampled_from([SECRET, WRONG]), path=st.sampled_from(["edit", "recurring", "overlap"])
)
@example(text=SECRET, path="edit")
def test_an_edit_cannot_set_a_key_that_contains_a_secret(
    acme: ApiClient, reader: ApiClient, text: str, path: str
) -> None:
    with pytest.MonkeyPatch.context() as patch, transaction.atomic():
        if path != "overlap":
            _with_options(patch, max_concurrency=PerKey(1, "{card}"))
        config = {"task": ECHO, "kwargs": {"card": SECRET}}
        if path == "edit":
            answer = acme.post("/tasks", {"target_config": config, "run_at": LATER})
            changed = f"/tasks/{answer.json()['task_id']}"
        else:
            body = {"target_config": config, "name": "pay", "cron": "0 4 * * *"}
            key = acme.post("/recurring-tasks", body).json()["recurring_task_id"]
            RecurringTask.objects.unguarded().update(overlap_key="{card}")
            changed = f"/recurring-tasks/{key}"
        shown = reader.get(changed).json()["target_config"]
        guess = {"target_config": {"task": ECHO, "kwargs": {"card": text}}}
        assert reader.patch(changed, guess, If_Match="*").status_code == 422
        same = reader.patch(changed, {"target_config": shown}, If_Match="*")
        assert same.status_code == 200, same.content
        transaction.set_rollback(True)


def _with_options(patch: pytest.MonkeyPatch, **options: Any) -> None:
    """Give the task of these tests other options."""
    echo = registry.get(ECHO)
    changed = replace(echo, options=replace(echo.options, **options))
    patch.setattr(registry, "_tasks", {**registry._tasks, ECHO: changed})


def _body_of(path: str, config: dict[str, Any]) -> dict[str, Any]:
    if path == "/workflows":
        return {"name": "flow", "steps": [{"step": "a", "target_config": config}]}
    if path == "/recurring-tasks":
        return {"name": "guess", "cron": "0 4 * * *", "target_config": config}
    body = {"target_config": config, "run_at": LATER}
    return {"items": [body]} if path == "/tasks/bulk" else body


def test_positional_secrets_of_a_recurring_task_are_masked(
    acme: ApiClient, reader: ApiClient
) -> None:
    config = {"task": ECHO, "args": [1]}
    body = {"target_type": "CELERY_TASK", "target_config": config}
    made = acme.post("/recurring-tasks", {**body, "name": "pay", "cron": "0 4 * * *"}).json()
    RecurringTask.objects.unguarded().update(task="gone", args=[SECRET])
    answer = reader.get(f"/recurring-tasks/{made['recurring_task_id']}")
    assert SECRET not in answer.content.decode()


@pytest.mark.parametrize("encrypted", [False, True])
def test_the_url_of_a_notification_setting_cannot_be_guessed(
    reader: ApiClient, settings: Any, encrypted: bool
) -> None:
    settings.DURABLE_TASKS = {**SETTINGS, **SENDING}
    if encrypted:
        settings.DURABLE_TASKS["ENCRYPTION_KEYS"] = ["one:" + "A" * 43 + "="]
    seen = []
    for guess in (SECRET, WRONG):
        with transaction.atomic():
            row = a_webhook(f"https://hooks.example/?key={SECRET}", tenant=reader.tenant)
            path = f"/notification-settings/{row.pk}"
            AuditEntry.objects.unguarded().all().delete()
            edit = {"delivery_config": {"url": f"https://hooks.example/?key={guess}"}}
            answer = reader.patch(path, edit, If_Match="*")
            entries = reader.get("/audit").json()["data"]
            seen.append((answer.status_code, [sorted(one["after"]) for one in entries]))
            transaction.set_rollback(True)
    assert seen[0] == seen[1]
