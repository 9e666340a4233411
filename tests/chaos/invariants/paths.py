"""H9 to H12: dead letters, paths through the state machine, terms of leaders, and the state at the
end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

from django_durable_tasks.choices import Status
from django_durable_tasks.states.machine import TRANSITIONS
from tests.chaos.records import Change, History, Term

MOVES = frozenset(
    pair
    for move in TRANSITIONS.values()
    if move.sources
    for pair in product(move.sources, move.targets)
)
BIRTHS = TRANSITIONS["create"].targets
SLACK = 0.05  # seconds: a trigger reads its clock a little after the statement has read its own


def dead_letters_match(history: History) -> Iterator[str]:
    """H9: a FAILED task has one open dead letter and no attempts left, and no other task has one."""
    letters = Counter(history.open_letters)
    for row in history.rows.values():
        if letters[row.task] != int(row.status == Status.FAILED):
            yield f"{row.task} is {row.status} and has {letters[row.task]} open dead letters"
        spent = row.failures >= row.max_attempts or row.crashes >= row.max_crashes
        if row.status == Status.FAILED and row.reason in ("EXHAUSTED", "CRASHED") and not spent:
            yield f"{row.task} gave up after {row.failures} failures and {row.crashes} crashes"
    for task in letters.keys() - history.rows.keys():
        yield f"{task} does not exist and has an open dead letter"


def paths_are_legal(history: History) -> Iterator[str]:
    """H10: the changes of a task are a path of the state machine; its epoch rises by one per change
    of owner or edit, and not otherwise.
    """
    last: dict[str, tuple[str, int]] = {}
    for change in history.changes:
        is_edit = change.task in history.retried and _is_retry(change)
        wrong = _wrong_step(change, last.get(change.task))
        if wrong and not is_edit:
            yield f"{change.task} {wrong}"
        if change.new is not None:
            last[change.task] = (change.new, change.new_epoch)
    for row in history.rows.values():
        stood = last.get(row.task)
        if history.changes and (stood is None or stood[0] != row.status):
            yield f"{row.task} is {row.status}, and its history ends at {stood}"


def _is_retry(change: Change) -> bool:
    """Return whether a waiting task was made due now, which is an edit."""
    return change.old == change.new == Status.PENDING and change.new_epoch - change.old_epoch == 1


def _wrong_step(change: Change, known: tuple[str, int] | None) -> str:
    if change.new is None:
        return "was deleted"
    if change.old is None:
        legal = known is None and change.new in BIRTHS
        return "" if legal else f"was created {change.new}" + " a second time" * (known is not None)
    if known != (change.old, change.old_epoch):
        return f"left {change.old} in epoch {change.old_epoch}, but stood {known}"
    return _wrong_move(change.old, change.new, change.new_epoch - change.old_epoch)


def _wrong_move(old: str, new: str, raised: int) -> str:
    if old == new:
        return "" if raised == 0 else f"stayed {old} and its epoch rose by {raised}"
    if (old, new) not in MOVES:
        return f"went from {old} to {new}"
    return "" if raised == 1 else f"went from {old} to {new} and its epoch rose by {raised}"


def terms_do_not_overlap(history: History) -> Iterator[str]:
    """H11: a term begins only after the previous one has ended by the database's clock, and each
    term has one owner.
    """
    for office in sorted({term.office for term in history.terms}):
        yield from _overlaps([term for term in history.terms if term.office == office])
    held = {term.term for term in history.terms}
    for fire in history.fires:
        if fire.term is not None and held and fire.term not in held:
            yield f"{fire.schedule} was fired in term {fire.term}, which had no owner"


def _overlaps(terms: Sequence[Term]) -> Iterator[str]:
    holders: dict[int, str] = {}
    for before, term in pairwise([terms[0], *terms]):
        if holders.setdefault(term.term, term.holder) != term.holder:
            yield f"term {term.term} was held by {holders[term.term]} and by {term.holder}"
        if term.term < before.term:
            yield f"term {term.term} came after term {before.term}"
        elif term.term > before.term and term.at < before.until - SLACK:
            yield (
                f"term {term.term} began {before.until - term.at:.3f} s before term {before.term}"
                " was over"
            )


def all_is_quiet(history: History) -> Iterator[str]:
    """H12: no deadline is left over, no session is idle in a transaction, connections and queues are
    as before.
    """
    calm = history.calm
    found = {
        "alarms or leases are over": calm.overdue,
        "sessions sleep in a transaction": calm.asleep_in_transactions,
        "messages wait": calm.messages,
        "messages were never acknowledged": calm.unacknowledged,
    }
    for what, number in found.items():
        if number:
            yield f"{number} {what}"
    if calm.connections > calm.baseline:
        yield f"{calm.connections} connections are open, at most {calm.baseline} were expected"
