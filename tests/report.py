"""The end of a test run: failures, unstable tests, skips, what did not run, and the table of pairs."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.runs import BROKERS, DATABASES, ENVIRONMENTS, SERVERS, Run


@dataclass(slots=True)
class Result:
    """How one run ended. ``missing`` holds the servers without which it did not run, with reasons.

    ``left_out``: it did not begin, because its time limit had passed. ``instead_of``: the whole run,
    if for the same reason only its brief selection ran. ``failures``: node ids of
    pytest. ``repeatable``: nothing else made it fail. ``unstable``: those that failed and passed on
    repetition.
    """

    run: Run
    failed: bool = False
    seconds: float = 0.0
    missing: dict[str, str] = field(default_factory=dict)
    left_out: bool = False
    instead_of: Run | None = None
    passes: int = 0
    failures: list[str] = field(default_factory=list)
    repeatable: bool = False
    skips: list[tuple[str, str]] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)

    @property
    def number_failed(self) -> int:
        """Return the number of its failures. A run without a report is one."""
        return len(self.failures) or int(self.failed)

    def read(self, report: Path, cache: Path) -> None:
        """Add the contents of pytest's JUnit file, and of the cache of which `--lf` takes failures."""
        lastfailed = cache / "v" / "cache" / "lastfailed"
        self.failures = list(json.loads(lastfailed.read_text())) if lastfailed.exists() else []
        if not report.exists():
            return
        for case in ET.parse(report).iter("testcase"):
            if (skip := case.find("skipped")) is not None:
                name = f"{case.get('classname')}.{case.get('name')}"
                self.skips.append((name, skip.get("message") or "no reason given"))
            elif case.find("failure") is None and case.find("error") is None:
                self.passes += 1

    def repeat(self, second: "Result") -> None:
        """Take over the results of the repeated tests. All stay failed unless each passed or
        failed.
        """
        passed = [name for name in self.failures if name not in second.failures]
        if second.passes == len(passed):
            self.unstable, self.failures = passed, second.failures
            self.passes += second.passes
            self.failed = second.failed


def servers_that_did_not_run(results: Sequence[Result]) -> list[str]:
    """Return the servers on which no test ran."""
    used = {
        name
        for result in results
        if result.passes or result.failures
        for name in result.run.servers
    }
    return [name for name in SERVERS if name not in used]


def closing(results: Sequence[Result], rest: Sequence[Run] = ()) -> Iterator[str]:
    """Yield the lines that end a test run. ``rest``: the runs that were not selected."""
    for result in results:
        title = result.run.title
        if result.failed:
            yield "\n    ".join([f"FAILED {title}", *result.failures])
        for name in result.unstable:
            yield f"UNSTABLE, failed once and passed once more: {name} ({title})"
        by_reason: dict[str, list[str]] = {}
        for name, reason in result.skips:
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            which = names[0] if len(names) == 1 else f"{len(names)} tests such as {names[0]}"
            yield f"SKIPPED {which} ({title}): {reason}"
    for result in results:
        for name, reason in result.missing.items():
            yield f"NOT RUN for want of {name} ({reason}): {result.run.title}"
        if result.left_out:
            yield (
                f"LEFT OUT, the time was over: {result.run.title}; run it by `{result.run.by_hand}`"
            )
        if result.instead_of:
            yield (
                f"SHORTENED, the time was over: {result.run.title};"
                f" run all of it by `{result.instead_of.by_hand}`"
            )
    if rest:
        yield 'NOT IN THE DEFAULT SELECTION; `make test ARGS="--all"` runs all, and each line one:'
        yield from dict.fromkeys(f"    {run.by_hand}" for run in rest)
    yield from _table(results)
    yield (
        f"{sum(result.passes for result in results)} passed,"
        f" {sum(result.number_failed for result in results)} failed,"
        f" {sum(len(result.skips) for result in results)} skipped"
    )


def _table(results: Sequence[Result]) -> Iterator[str]:
    """Yield a table of databases and brokers, with a row for each environment of other versions.

    The first column is for runs without a broker.
    """
    columns: list[str | None] = [None, *BROKERS]
    rows = dict.fromkeys(result.run.row for result in results if result.run.row)
    if rows:
        heads = [name or "no broker" for name in columns]
        yield ("\n" + "".join(f"{head:<26}" for head in ("database × broker", *heads))).rstrip(" ")
    for row in sorted(rows, key=[*DATABASES, *ENVIRONMENTS].index):
        here = [result for result in results if result.run.row == row]
        cells = [
            _cell([result for result in here if result.run.broker == name]) for name in columns
        ]
        yield "".join(f"{cell:<26}" for cell in (row, *cells)).rstrip()


def _cell(results: Sequence[Result]) -> str:
    if not results:
        return "–"
    if all(result.missing for result in results):
        return "NOT RUN"
    if all(result.left_out for result in results):
        return "LEFT OUT"
    passed = sum(result.passes for result in results)
    failed = sum(result.number_failed for result in results)
    smoke = ", smoke" if all(result.run.marks == "smoke" for result in results) else ""
    return (f"FAILED {failed} of {passed + failed}" if failed else f"passed {passed}") + smoke
