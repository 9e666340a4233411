"""``durable graph``: the diagram of a workflow run, or of the tasks connected with a task."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

from django_durable_tasks.diagrams import FORMATS, Diagram, draw
from django_durable_tasks.engine.dependencies.edges import runs
from django_durable_tasks.engine.workflows import graph_data
from django_durable_tasks.management.durable.output import Output
from django_durable_tasks.management.durable.selectors import count, task_id, tasks
from django_durable_tasks.management.durable.subcommand import OK, Options, Subcommand, refuse

_ID = "0193b0e0-0000-7000-8000-000000000000"


def arguments(parser: ArgumentParser) -> None:
    """Declare the task or run, the format and the output file."""
    parser.add_argument(
        "id", metavar="ID", type=task_id, help="the id of a workflow run, or of a task"
    )
    parser.add_argument(
        "--output", metavar="FILE", type=Path, help="write the diagram to this file, not to stdout"
    )
    parser.add_argument(
        "--limit",
        type=count,
        default=graph_data.NEAR,
        help=(
            "of a task: how many connected tasks at most, the nearest first (default:"
            f" {graph_data.NEAR})"
        ),
    )


def run(options: Options, out: Output) -> int:
    """Write the diagram."""
    diagram = _diagram(options)
    drawn = draw(diagram, options["format"])
    if options["output"] is None:
        out.stdout.write(drawn)
        return OK
    try:
        options["output"].write_text(drawn, encoding="utf-8")
    except OSError as error:
        refuse(f"--output {options['output']} cannot be written: {error.strerror}.")
    out.note(f"{options['output']}: {len(diagram.nodes)} tasks, {len(diagram.edges)} dependencies")
    return OK


def _diagram(options: Options) -> Diagram:
    task = tasks().filter(pk=options["id"]).first()
    if task is not None:
        return graph_data.around(task, options["limit"])
    found = runs().filter(pk=options["id"]).first()
    if found is None:
        refuse(
            f"There is neither a workflow run nor a task {options['id']}: `durable list workflows`"
            " shows the runs."
        )
    return graph_data.of_run(found)


GRAPH = Subcommand(
    name="graph",
    summary=(
        "draw a workflow run, or what is connected with a task, as text, Mermaid, SVG or JSON"
    ),
    examples=(
        f"graph {_ID}",
        f"graph {_ID} --format svg --output run.svg",
        f"graph {_ID} --format mermaid --limit 50",
        f"graph {_ID} --format json",
    ),
    arguments=arguments,
    run=run,
    formats=tuple(FORMATS),
)
