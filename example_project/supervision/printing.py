"""The report of the demo as text, and whether it is good."""

from collections.abc import Iterator

from supervision.demonstration import Demonstration
from supervision.fires import Fires
from supervision.graphs import Graphs
from supervision.report import Report

SHORTENED = {
    "NODE_TIMEOUT": 5,
    "NODE_HEARTBEAT": 1,
    "LEADER_LEASE": 4,
    "LEASE": 10,
    "HEARTBEAT": 3,
    "REPUBLISH_AFTER": 5,
}
DEFAULTS = (
    "NODE_TIMEOUT 60 (20 on a server), LEADER_LEASE 20 (4 on a server), LEASE 60,"
    " REPUBLISH_AFTER 15"
)


def figures(report: Report, demonstration: Demonstration) -> Iterator[tuple[str, str]]:
    """Yield each figure with its name."""
    status = report.statuses
    yield "tasks created", f"{report.created}"
    yield "attempts started", f"{report.started}"
    yield "succeeded", f"{status['SUCCESS']}"
    yield "retried", f"{report.retried}"
    yield "expired", f"{status['EXPIRED']} (dunning mails held up for too long)"
    yield "dead-lettered", f"{report.dead_letters}"
    yield "replayed", f"{report.replayed}"
    yield "fenced", f"{report.fenced} (endings of runs that had lost their row)"
    yield "lost", f"{len(report.lost)}"
    yield "doubled", f"{len(report.doubled)}"
    yield (
        "rolled back",
        f"{len(demonstration.workload.rolled_back)}, of which {report.rolled_back} are there",
    )
    yield (
        "runs lost with the killed worker",
        f"{report.runs_lost}, of which {report.rerun} were run again",
    )
    yield (
        "start lag",
        (
            f"p50 {_time(report.lag(0.5))}, p99 {_time(report.lag(0.99))}, max"
            f" {_time(report.lag(1.0))}"
        ),
    )
    yield (
        "take-over by the other scheduler",
        "not seen" if demonstration.takeover is None else f"{demonstration.takeover:.1f} s",
    )
    yield "cards charged", f"{report.charges}"
    yield (
        "mails sent",
        (
            f"{report.mails.total()}, of which {report.mails.total() - len(report.mails)} were sent"
            " again"
        ),
    )


def fire_figures(fires: Fires) -> Iterator[tuple[str, str]]:
    """Yield the figures of the recurring jobs."""
    by_fate = ", ".join(f"{number} {fate}" for fate, number in sorted(fires.fates.items()))
    yield "recurring jobs", f"{fires.jobs}"
    yield (
        "recurring fires expected",
        f"{fires.expected}, of which {fires.leaderless} without a leader",
    )
    yield "recurring fires seen", f"{fires.fates.total()}: {by_fate}"
    yield "recurring fires missing", f"{len(fires.missing)}"
    yield "recurring fires doubled", f"{len(fires.doubled)}"


def graph_figures(graphs: Graphs) -> Iterator[tuple[str, str]]:
    """Yield the figures of the workflows."""
    yield (
        "workflows started",
        f"{graphs.started}; {graphs.skipped} fires found one open and were left out",
    )
    yield "workflows succeeded", f"{graphs.succeeded}"
    yield "nodes of workflows", f"{graphs.nodes}"
    yield "released early", f"{len(graphs.early)}"


def problems(
    report: Report, fires: Fires, graphs: Graphs, demonstration: Demonstration
) -> list[str]:
    """Return all problems; the demo fails unless the list is empty."""
    found = [
        *(f"lost: {one}" for one in report.lost),
        *(f"doubled: {one}" for one in report.doubled),
    ]
    found += [
        *(f"missing: {one}" for one in fires.missing),
        *(f"doubled: {one}" for one in fires.doubled),
    ]
    found += [*(f"released early: {one}" for one in graphs.early), *graphs.wrong]
    found += [*demonstration.platform.problems, *demonstration.visits.problems()]
    if report.rolled_back:
        found.append(f"{report.rolled_back} tasks exist whose transaction was rolled back")
    if report.lags and report.lags[0] < 0:
        found.append(f"a task started {-report.lags[0]:.3f} s before its time")
    if len(demonstration.killed) < 2 or demonstration.takeover is None:
        found.append("the kills did not happen as planned")
    if not demonstration.site_served:
        found.append("the site did not answer")
    if not graphs.started or graphs.succeeded < graphs.started:
        found.append(f"{graphs.started} workflows were started, and {graphs.succeeded} succeeded")
    if not fires.leaderless:
        found.append("no job was due without a leader")
    if not report.replayed:
        found.append("no dead letter was replayed")
    return found


def lines(
    report: Report, fires: Fires, graphs: Graphs, demonstration: Demonstration
) -> Iterator[str]:
    """Yield the report line by line."""
    yield "Read back from the database"
    yield ""
    for name, figure in (
        *figures(report, demonstration),
        *fire_figures(fires),
        *graph_figures(graphs),
    ):
        yield f"  {name:<34}{figure}"
    yield ""
    yield from (f"  killed with SIGKILL: {one}" for one in demonstration.killed)
    yield ""
    yield (
        "  The start lag is from run_at to the first start, also of tasks whose message died with"
        " the worker, and of"
    )
    yield (
        "  recurring jobs that were due without a leader. Expected are the fires of the timetables"
        " alone."
    )
    yield (
        "  Shortened for the demo (seconds):"
        f" {', '.join(f'{key} {value}' for key, value in SHORTENED.items())}."
    )
    yield f"  By default: {DEFAULTS}."


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
