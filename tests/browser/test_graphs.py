"""An operator in a real browser views a graph, previews and performs operations, adds dependencies,
opens gates.
"""

from __future__ import annotations

import pytest
from django.urls import reverse

from django_durable_tasks import Workflow
from django_durable_tasks.models import Task, TaskDependency, WorkflowRun
from tests.browser.conftest import Visit
from tests.database.dependencies.worker_and_leader import (
    begin,
    fail,
    of,
    resolve_all,
    statuses,
    succeed,
)
from tests.factories import a_task
from tests.project.tasks import echo, noop

pytestmark = pytest.mark.timeout(300)

APP = "/admin/django_durable_tasks/"


def a_nightly_run() -> WorkflowRun:
    """Start a workflow that is half done: one task failed, one runs, one waits for approval, and a
    sub-workflow waits.
    """
    inner = Workflow("reports")
    inner.add(noop, step="render")
    inner.add(noop, step="mail")
    wf = Workflow("nightly", on_failure=echo)
    first = wf.add(noop, step="extract")
    rates, bookings = (
        wf.add(noop, after=first, step="rates"),
        wf.add(noop, after=first, step="bookings"),
    )
    load = wf.add(noop, after={rates: "MUST_SUCCEED", bookings: "MUST_FINISH"}, step="load")
    wf.add(noop, after=load, step="close-books", approval="the controller signs")
    wf.add_workflow(inner, after=load, step="reports")
    wf.add(noop, after={rates: "MUST_FAIL"}, step="repair")
    run = wf.start(key="nightly-2026-11-20")
    succeed(of(run, "extract"))
    resolve_all()
    begin(of(run, "rates"))
    fail(of(run, "bookings"))
    resolve_all()
    return run


def _page(row: Task | WorkflowRun) -> str:
    return reverse(f"admin:django_durable_tasks_{row._meta.model_name}_change", args=[row.pk])


def test_an_operator_views_a_graph_previews_a_cancel_and_performs_it(visit: Visit) -> None:
    run = a_nightly_run()
    visit.log_in()
    visit.go(f"{APP}workflowrun/")
    visit.shows("2 of 7 ended: 1 SUCCESS, 1 FAILED")
    visit.follow("nightly")
    visit.shows("Workflow and sub-workflows")
    assert visit.find(f".durable-drawing svg a[href='{_page(of(run, 'load'))}']").is_displayed()
    assert visit.find(".durable-drawing svg").size["width"] > 500
    visit.press("Cancel the workflow")
    visit.shows("This changes 7 rows")
    assert "stop requested" in visit.text()
    assert statuses(of(run, "load")) == ["BLOCKED"]
    visit.write("reason", "wrong tariff")
    visit.press("Yes: Cancel the workflow (7)")
    visit.shows("Done. These are the 7 rows that changed.")
    assert statuses(of(run, "load"), of(run, "rates")) == ["CANCELLED", "RUNNING"]
    visit.press("Back")
    visit.shows("cancellation was requested")
    visit.follow("load")
    visit.shows("CANCELLED by ann: wrong tariff")


def test_a_node_of_the_diagram_links_to_its_task(visit: Visit) -> None:
    run = a_nightly_run()
    visit.log_in()
    visit.go(_page(run))
    visit.find(f".durable-drawing svg a[href='{_page(of(run, 'load'))}']").click()
    visit.shows("step load")
    assert "Upstream tasks" in visit.text()


def test_an_operator_who_would_close_a_cycle_sees_its_path(visit: Visit) -> None:
    run = a_nightly_run()
    visit.log_in()
    visit.go(_page(of(run, "load")))
    visit.press("Add a dependency")
    visit.shows("A dependency that would close a cycle is refused.")
    visit.write("upstream", str(of(run, "close-books").pk))
    visit.press("Show the changes")
    visit.shows("The tasks would wait for each other: ")
    assert "load" in visit.text()
    assert "close-books" in visit.text()
    edges = TaskDependency.objects.count()
    other = a_task(name="billing.rates")
    visit.write("upstream", str(other.pk))
    visit.press("Show the changes")
    visit.shows("Nothing is changed yet.")
    assert TaskDependency.objects.count() == edges
    visit.press("Add the dependency")
    visit.shows("Now load waits for billing.rates (MUST_SUCCEED). 1 row changed: 1 stays BLOCKED.")
    assert TaskDependency.objects.filter(task=of(run, "load").pk, depends_on=other.pk).exists()
    visit.find(
        f"a[href*='/taskdependency/{TaskDependency.objects.latest('pk').pk}/remove/']"
    ).click()
    visit.shows("no longer waits for billing.rates")
    visit.press("Show the changes")
    visit.press("Yes: Remove the dependency (1)")
    visit.shows("Done. This is the row that changed.")
    assert TaskDependency.objects.count() == edges


def test_an_operator_force_runs_selected_tasks(visit: Visit) -> None:
    run = a_nightly_run()
    load = of(run, "load")
    visit.log_in()
    visit.go(_page(run))
    visit.find(f"input[name='_selected_action'][value='{load.pk}']").click()
    visit.press("Force-run")
    visit.shows("This changes")
    assert statuses(load) == ["BLOCKED"]
    visit.write("reason", "rates are known")
    visit.press("Yes: Force-run")
    visit.shows("Done.")
    assert statuses(load) != ["BLOCKED"]


def test_an_operator_retries_failed_tasks(visit: Visit) -> None:
    run = a_nightly_run()
    visit.log_in()
    visit.go(_page(run))
    visit.press("Replay the workflow")
    visit.shows(
        "Tasks that failed, expired or were cancelled run again, and tasks that were skipped because"
        " of them."
    )
    visit.find(".durable-tabs form:nth-of-type(3) button").click()
    visit.shows("All ended tasks run again")
    visit.find(".durable-tabs form:nth-of-type(1) button").click()
    visit.press("Yes: Replay the workflow")
    visit.shows("Done.")
    assert statuses(of(run, "bookings")) != ["FAILED"]
