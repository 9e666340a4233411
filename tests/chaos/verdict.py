"""All invariants over one history, and their violations by the name of the invariant."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.chaos.invariants.idle import (
    a_backlog_needs_one_message_a_task,
    no_batch_ends_with_an_error,
    no_worker_is_idle_beside_due_tasks,
    returns_are_successes,
)
from tests.chaos.invariants.interfaces import (
    batched_tasks_succeed_once,
    callbacks_arrive,
    selected_events_are_sent,
)
from tests.chaos.invariants.metrics import metrics_equal_a_recount
from tests.chaos.invariants.order import children_wait_for_their_parents, fires_match_their_windows
from tests.chaos.invariants.paths import (
    all_is_quiet,
    dead_letters_match,
    paths_are_legal,
    terms_do_not_overlap,
)
from tests.chaos.invariants.runs import (
    attempts_are_counted,
    effects_happen_once,
    endings_are_single,
    no_ghost_runs,
    nothing_is_lost,
    overlaps_are_told,
)
from tests.chaos.records import Change, History, Log, Mark

INVARIANTS: dict[str, Callable[[History], Iterator[str]]] = {
    "H1": nothing_is_lost,
    "H2": no_ghost_runs,
    "H3": attempts_are_counted,
    "H4": endings_are_single,
    "H5": overlaps_are_told,
    "H6": effects_happen_once,
    "H7": fires_match_their_windows,
    "H8": children_wait_for_their_parents,
    "H9": dead_letters_match,
    "H10": paths_are_legal,
    "H11": terms_do_not_overlap,
    "H12": all_is_quiet,
    "H13": callbacks_arrive,
    "H14": selected_events_are_sent,
    "H15": metrics_equal_a_recount,
    "H16": batched_tasks_succeed_once,
    "H17": returns_are_successes,
    "H18": no_worker_is_idle_beside_due_tasks,
    "H19": no_batch_ends_with_an_error,
    "H20": a_backlog_needs_one_message_a_task,
}


def violations(history: History) -> dict[str, list[str]]:
    """Return what each invariant found. An empty list means that it holds."""
    return {name: list(check(history)) for name, check in INVARIANTS.items()}


def meaning(name: str) -> str:
    """Return the first paragraph of an invariant's description."""
    return " ".join((INVARIANTS[name].__doc__ or "").partition("\n\n")[0].split()).partition(": ")[
        2
    ]


def histories_of(history: History, violations: list[str], most: int = 20) -> dict[str, list[str]]:
    """Return all records of the first tasks that violations name, to find the cause."""
    tasks = list(
        dict.fromkeys(word for text in violations for word in text.split() if word in history.rows)
    )[:most]
    everything: list[Change | Log | Mark] = [*history.changes, *history.logs, *history.marks]
    return {
        task: [str(history.rows[task]), *(str(one) for one in everything if one.task == task)]
        for task in tasks
    }
