"""Reads pytest's reports and prints the end of a run: skips with reasons, the table of pairs, the
closing line.
"""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.backends import BROKERS, DATABASES
from tests.environments import OTHERS
from tests.progress import about
from tests.runs import ROOT, SMOKE, Run
from tests.servers import Server


@dataclass(slots=True)
class Result:
    """How one run ended. `missing` names the servers without which it did not run.

    ``left_out``: it did not begin, because its time limit had passed. ``unstable``: tests that
    failed, and passed on repetition.
    """

    run: Run
    failed: bool = False
    seconds: float = 0.0
    missing: list[str] = field(default_factory=list)
    left_out: bool = False
    passes: int = 0
    failures: list[str] = field(default_factory=list)
    skips: list[tuple[str, str]] = field(default_factory=list)
    unstable: list[str] = field(default_factory=list)

    @property
    def ran(self) -> bool:
        """Return whether at least one of its tests ran."""
        return bool(self.passes or self.failures)

    def read(self, report: Path) -> None:
        """Add the contents of pytest's JUnit file."""
        if not report.exists():
            return
        for case in ET.parse(report).iter("testcase"):
            name = f"{case.get('classname')}.{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                self.failures.append(name)
            elif (skip := case.find("skipped")) is not None:
                self.skips.append((name, skip.get("message") or "no reason given"))
            else:
                self.passes += 1

    def repeat(self, second: "Result") -> None:
        """Add the results of the repeated tests. All stay failed unless each passed or failed."""
        passed = [name for name in self.failures if name not in second.failures]
        if second.passes != len(passed):
            return
        self.unstable, self.failures = passed, second.failures
        self.passes += second.passes
        self.failed = second.failed


def node_id(name: str) -> str:
    """Return the pytest node of a test case that the JUnit file names:
    tests.unit.test_a.test_b[c.d].
    """
    dotted, bracket, parameters = name.partition("[")
    *modules, function = dotted.split(".")
    for number in range(len(modules), 0, -1):
        file = Path(*modules[:number]).with_suffix(".py")
        if (ROOT / file).is_file():
            return "::".join([file.as_posix(), *modules[number:], function]) + bracket + parameters
    return name


def closing(
    results: Sequence[Result], servers: dict[str, Server], rest: Sequence[Run] = ()
) -> Iterator[str]:
    """Yield the lines that end a test run. ``rest`` are the runs of the matrix that were not
    selected.
    """
    yield from _failures(results)
    yield from _unstable(results)
    yield from _skips(results)
    yield from _missing(results, servers)
    yield from _left_out(results)
    yield from _not_selected(rest)
    if any(result.run.database for result in results):
        yield from _table([result for result in results if not result.run.environment])
        yield ""
    for name in OTHERS:
        if others := [result for result in results if result.run.environment == name]:
            yield f"with the versions of constraints/{name}.txt: {_cell(others)}"
            yield ""
    passed, failed, skipped = (
        sum(result.passes for result in results),
        sum(len(result.failures) or result.failed for result in results),
        sum(len(result.skips) for result in results),
    )
    yield f"{passed} passed, {failed} failed, {skipped} skipped"


def lasted(result: Result) -> str:
    """Return the actual and the expected duration of a run, so that `tests.durations` can be
    corrected.
    """
    minutes, seconds = divmod(round(result.seconds), 60)
    return f"{minutes} min {seconds:02} s, expected {about(result.run.seconds)}"


def servers_that_did_not_run(results: Sequence[Result], names: Sequence[str]) -> list[str]:
    """Return the servers on which no test ran."""
    used = {name for result in results if result.ran for name in result.run.servers}
    return [name for name in names if name not in used]


def _failures(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.failed:
            yield f"FAILED {result.run.title}"
        for name in result.failures:
            yield f"    {name}"


def _unstable(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        for name in result.unstable:
            yield f"UNSTABLE, failed once and passed once more: {name} ({result.run.title})"


def _skips(results: Sequence[Result]) -> Iterator[str]:
    """Yield a line for each skip, or one for all skips of a run that have the same reason."""
    for result in results:
        by_reason: dict[str, list[str]] = {}
        for name, reason in result.skips:
            by_reason.setdefault(reason, []).append(name)
        for reason, names in by_reason.items():
            which = names[0] if len(names) == 1 else f"{len(names)} tests such as {names[0]}"
            yield f"SKIPPED {which} ({result.run.title}): {reason}"


def _missing(results: Sequence[Result], servers: dict[str, Server]) -> Iterator[str]:
    for server in servers.values():
        if server.url is None:
            yield f"NOT RUN for want of {server.name}: {server.origin}"
            yield from (
                f"    {result.run.title}" for result in results if server.name in result.missing
            )


def _left_out(results: Sequence[Result]) -> Iterator[str]:
    for result in results:
        if result.left_out:
            yield (
                f"LEFT OUT, the time was over: {result.run.title}; run it by `{result.run.by_hand}`"
            )


def _not_selected(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the lines with the runs outside of the default selection, and their commands."""
    if runs:
        yield 'NOT IN THE DEFAULT SELECTION; `make test ARGS="--all"` runs all, and each line one:'
        yield from dict.fromkeys(f"    {run.by_hand}" for run in runs)


def _table(results: Sequence[Result]) -> Iterator[str]:
    """Return a table of databases and brokers. The first column is for runs without a broker."""
    yield ""
    columns: list[str | None] = [None, *BROKERS]
    yield f"{'database × broker':<20}" + "".join(f"{name or 'no broker':<24}" for name in columns)
    for database in DATABASES:
        cells = [
            _cell(
                [
                    result
                    for result in results
                    if (result.run.database, result.run.broker) == (database, broker)
                ]
            )
            for broker in columns
        ]
        yield f"{database:<20}" + "".join(f"{cell:<24}" for cell in cells).rstrip()


def _cell(results: Sequence[Result]) -> str:
    if not results:
        return "–"
    if all(result.missing for result in results):
        return "NOT RUN"
    if all(result.left_out for result in results):
        return "LEFT OUT"
    passed = sum(result.passes for result in results)
    failed = sum(len(result.failures) or result.failed for result in results)
    smoke = ", smoke" if all(result.run.marks == SMOKE for result in results) else ""
    return (f"FAILED {failed} of {passed + failed}" if failed else f"passed {passed}") + smoke
