"""The tables and charts of the last full ``make bench``, from its JSON file."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from docs.charts import Bar, bar_chart, shown

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "bench.json"
PAGE = ROOT / "docs" / "explanation" / "benchmarks.md"
CHARTS = PAGE.parent / "benchmarks"
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"
NONE = "No full run is recorded yet: `make bench` records one, and `python -m docs.figures` writes it here."
_OURS = "django-durable-tasks"

Figure = Mapping[str, Any]


def recorded(path: Path = RESULTS) -> Mapping[str, Any] | None:
    """Return the last full run; None if no run is recorded."""
    if not path.exists():
        return None
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def block(run: Mapping[str, Any] | None) -> str:
    """Return the block of figures of the page in Markdown."""
    if run is None:
        return NONE
    parts = [_about(run)]
    for name, figures in _by_benchmark(run):
        parts += [
            f"### {name}",
            f"![{name}](benchmarks/{name}.svg)",
            _table(figures),
        ]
    return "\n\n".join(parts)


def charts(run: Mapping[str, Any]) -> dict[str, str]:
    """Return the charts as SVG, by file name."""
    found = {}
    for name, figures in _by_benchmark(run):
        by_lag = all("lag_p99_ms" in figure["facts"] for figure in figures)
        by_time = name in ("failover", "claim", "queues")
        unit = "ms late, p99" if by_lag else "seconds" if by_time else "per second"
        bars = [
            Bar(
                f"{figure['peer']}, {figure['what']}"
                + (f", {figure['broker']}" if figure["broker"] else ""),
                figure["facts"]["lag_p99_ms"]
                if by_lag
                else figure["seconds" if by_time else "per_second"],
                figure["peer"] == _OURS,
            )
            for figure in figures
        ]
        found[f"{name}.svg"] = bar_chart(name, unit, bars)
    return found


def summary(run: Mapping[str, Any] | None) -> list[str]:
    """Return the paragraphs and tables for the README: rates of the benchmarks with peers, and how
    late tasks start.
    """
    if run is None:
        return []
    found = dict(_by_benchmark(run))
    rates = [figure for name in _RATES for figure in found.get(name, ())]
    about = textwrap.fill(
        f"{_about(run)} Compare within a benchmark, not with other pages. Bare Celery stores"
        " nothing in a database and loses the messages of a killed worker or a flushed broker."
        " [All figures and their meaning](docs/explanation/benchmarks.md).",
        120,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [
        about,
        table(["benchmark", "program", "broker", "per second"], map(_rate, rates)),
        "How late tasks start that were scheduled seconds before, in milliseconds:",
        table(["due", "program", "p50", "p99"], map(_lag, found.get("lag", ()))),
    ]


_RATES = ("enqueue", "run", "recurring", "graph", "api")


def _rate(figure: Figure) -> tuple[str, ...]:
    what = f"{figure['benchmark']}: {figure['what']}"
    return what, _program(figure), figure["broker"] or "", shown(figure["per_second"])


def _lag(figure: Figure) -> tuple[str, ...]:
    facts = figure["facts"]
    late = (shown(facts["lag_p50_ms"]), shown(facts["lag_p99_ms"]))
    return figure["what"].removeprefix("due at "), _program(figure), *late


def _program(figure: Figure) -> str:
    return "**this package**" if figure["peer"] == _OURS else str(figure["peer"])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(row)} |" for row in ([*head], *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(head), *lines[1:]])


def _about(run: Mapping[str, Any]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in run["machine"].items())
    missing = "".join(f" Not measured: {name}." for name in run["missing"])
    return (
        f"`make bench` on {run['taken'][:10]} ({machine}; load average before it"
        f" {run['load'][0]}).{missing}"
    )


def _by_benchmark(run: Mapping[str, Any]) -> Iterator[tuple[str, list[Figure]]]:
    for name, figures in groupby(run["figures"], key=lambda figure: str(figure["benchmark"])):
        yield name, list(figures)


def _table(figures: Sequence[Figure]) -> str:
    lines = [
        "| what | peer | broker | n | per second | times ours | |",
        "|---|---|---|---|---|---|---|",
    ]
    for figure in figures:
        ratio = figure["ratio_to_ours"]
        facts = ", ".join(
            f"{name.replace('_', ' ')} {shown(value)}" for name, value in figure["facts"].items()
        )
        lines.append(
            f"| {figure['what']} | {figure['peer']} | {figure['broker'] or ''} | {figure['n']:,} |"
            f" {shown(figure['per_second'])} | {'' if ratio is None else f'{ratio:.2f}'} | {facts} |"
        )
    return "\n".join(lines)


def updated(page: str, run: Mapping[str, Any] | None) -> str:
    """Return the page with the figures between its marks; raises ValueError if a mark is missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"The page needs the marks {BEGIN} and {END}.")
    return f"{before}{BEGIN}\n{block(run)}\n{END}{after}"


def write() -> None:
    """Write the page and its charts."""
    run = recorded()
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8"), run), encoding="utf-8")
    for name, image in ({} if run is None else charts(run)).items():
        CHARTS.mkdir(exist_ok=True)
        (CHARTS / name).write_text(image, encoding="utf-8")
