"""Find expressions in user-facing texts that the documentation of Django or Celery would not use."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.architecture.sources import (
    PACKAGE,
    ROOT,
    docstrings,
    name_of,
    nodes,
    parsed,
    python_files,
)

# Expression (matched as whole words, in any case): what to write instead.
BANNED = {
    r"told|tells?|telling|untold": "recorded, notified, resolved or shown",
    r"rings?|rung|rang|ringing|doorbells?|bells?": "message, publish, republish",
    r"(?:was|were|is|are|be|being) born|born (?:of|in|queued|pending|from)|births?": "created",
    r"bury|buries|buried": "declared dead",
    r"lets? (?:\w+ )?go(?: of)?|letting go": "release",
    r"(?:fell|falls?|went|goes|is|are) silent": "missed its heartbeats",
    r"who(?:m)?ever|(?:nobody|somebody|anybody|everybody)(?:'s)?": "the user, process or operator",
    r"so many|so much|so long|so often": "the name of the parameter, or the number",
    r"hears?|heard|hearing": "receives",
    r"(?:that|which|who|nothing|task|process|scheduler|worker|leader|node|database|engine|row)"
    r" knows?": "has, finds, declares",
    r"(?:its|his|their|the|an operator's) say|says so|said so": "the decision or the condition",
    r"worthless": "expired",
    r"reigns?|in office|the office|takes office": "term, leadership",
    r"(?:held|parked) for nobody": "stuck-on-overlap, stuck-on-limit",
    r"(?:has|have|had|is|are|was) rested": "waited",
    r"other hand": "the ORM form",
    r"but for": "except",
    r"none where|where none": "None if",
    r"deeds?": "operation",
    r"in a hurry|hurry|hurries|hurried": "polls at once",
    r"(?:waiting|parked|each|a|its|the|one) line of (?:a|each|the|its) (?:scope|limit)": "waitlist",
    r"lines? up|lined up|stands? in line": "waits",
    r"house|rooms?|floors?|doors?": "package, layer, capacity, interface",
    r"as things are": "the cause",
    r"hand(?:s|ed|ing)? (?:\w+ )?back": "return to PENDING",
    r"for ever": "indefinitely",
    r"spoilt": "corrupted",
}
# Sentences that keep a banned expression, by a part of the sentence; each with its reason.
ALLOWED: dict[str, str] = {}

_PATTERNS = [
    (re.compile(rf"(?<![\w/.-])(?:{text})(?![\w/-])", re.IGNORECASE), use)
    for text, use in BANNED.items()
]
_CODE = re.compile(
    r"```.*?```|`[^`\n]*`|\]\([^)\s]*\)|<[^<>]*>|\w+://\S+|\{\{.*?\}\}|\{#.*?#\}"
    r"|\{%(?! *translate).*?%\}",
    re.DOTALL,
)
_FENCE = re.compile(r"^(```+).*?^\1", re.DOTALL | re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n(?=[-*|#])|(?<=>)|(?=<)|%\}|\{%")


class Finding(NamedTuple):
    """A banned expression: the line of its sentence, the expression, its replacement."""

    line: int
    expression: str
    use: str
    sentence: str

    def __str__(self) -> str:
        """Return one line for the report of the test."""
        return f"{self.line}: {self.expression!r} (write: {self.use}) in: {self.sentence}"


def banned_in(text: str, first_line: int = 1) -> list[Finding]:
    """Find banned expressions in prose; code in backticks, links, tags and addresses is skipped."""
    prose = _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), text)
    found = []
    for pattern, use in _PATTERNS:
        for match in pattern.finditer(prose):
            sentence = _sentence(text, match.start())
            if not any(part in sentence for part in ALLOWED):
                line = first_line + prose.count("\n", 0, match.start())
                found.append(Finding(line, match.group(), use, sentence))
    return sorted(found)


def banned_in_python(source: str) -> list[str]:
    """Find banned expressions in the string literals of Python source that form a sentence."""
    return [str(found) for line, text in _literals(source) for found in banned_in(text, line)]


def banned_in_page(source: str) -> list[str]:
    """Find banned expressions in a page of Markdown, or a template, outside its code blocks."""
    blank = _FENCE.sub(lambda block: "\n" * block.group().count("\n"), source)
    return [str(found) for found in banned_in(blank)]


def pages() -> list[Path]:
    """Return every page that users read, and the templates of the admin."""
    docs = [page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts]
    named = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")]
    others = [ROOT / "example_project/README.md", ROOT / "benchmarks/README.md"]
    templates = (ROOT / PACKAGE / "templates").rglob("*.html")
    return sorted([*docs, *named, *others, *templates])


def modules() -> list[Path]:
    """Return the modules whose string literals users read."""
    return python_files(PACKAGE)


def _literals(source: str) -> Iterator[tuple[int, str]]:
    tree = parsed(source)
    inner: set[int] = set()
    attribute_texts = {id(node.value) for node in nodes(source) if isinstance(node, ast.Expr)}
    hidden = (docstrings(tree) | attribute_texts) - _shown_docstrings(tree)
    for node in nodes(source):
        if isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            yield node.lineno, "".join(_part(part) for part in node.values)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in hidden | inner
            and " " in node.value.strip()
        ):
            yield node.lineno, node.value


def _shown_docstrings(tree: ast.Module) -> set[int]:
    """Return the docstrings that are printed: those of the errors, in the reference of errors."""
    kinds = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    errors = [
        kind for kind in kinds if any(ast.unparse(base).endswith("Error") for base in kind.bases)
    ]
    return {id(kind.body[0].value) for kind in errors if isinstance(kind.body[0], ast.Expr)}


def _part(part: ast.expr) -> str:
    return str(part.value) if isinstance(part, ast.Constant) else "…"


def _sentence(text: str, position: int) -> str:
    start, end = 0, len(text)
    for stop in _SENTENCE_END.finditer(text):
        if stop.end() <= position:
            start = stop.end()
        elif stop.start() > position:
            end = stop.start()
            break
    return " ".join(text[start:end].split())


def findings_in(files: list[Path]) -> list[str]:
    """Return every finding in these files, each with its file and line."""
    return [
        f"{name_of(file)}:{found}"
        for file in files
        for found in (banned_in_python if file.suffix == ".py" else banned_in_page)(
            file.read_text(encoding="utf-8")
        )
    ]
