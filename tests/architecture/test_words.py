"""No file contains a path of a developer's machine, and the README shows the two commands."""

import re
import subprocess
from pathlib import Path

from tests.architecture.sources import ROOT, expect_none

TEXT = {
    ".py",
    ".md",
    ".toml",
    ".cfg",
    ".ini",
    ".sql",
    ".html",
    ".css",
    ".js",
    ".txt",
    ".yml",
    ".json",
    ".sh",
    "",
}
PERSONAL = re.compile(r"(?<![\w.])/(?:root|home/\w+|Users/\w+)/")
TOOLS = re.compile(
    "|".join((r"\bsub-?" + "agents?", "chat" + "gpt", "clau" + "de", "before" + "-stop")),
    re.IGNORECASE,
)
COMMANDS = ("make demo", "make test")


def _ours() -> list[Path]:
    """Return the files in git, including uncommitted ones. Of an unpacked archive all Python files
    are read.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    answer = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    names = answer.stdout.splitlines() or [
        str(file.relative_to(ROOT)) for file in ROOT.rglob("*.py")
    ]
    files = [ROOT / name for name in names if not name.startswith(".venv/")]
    return [file for file in files if file.is_file() and file.suffix in TEXT]


def _words(text: str, here: Path) -> list[str]:
    """Find paths into a home directory or into `here`, and names of tools. A short `here` would
    match anywhere.
    """
    places = [re.escape(str(place)) for place in (here, here.parent) if len(place.parts) > 1]
    pattern = re.compile(
        "|".join([PERSONAL.pattern, *(rf"(?<![\w.]){place}/" for place in places)])
    )
    return [match.group() for finder in (pattern, TOOLS) for match in finder.finditer(text)]


def _missing_commands(readme: str) -> list[str]:
    first_screen = "\n".join(readme.splitlines()[:40])
    return [command for command in COMMANDS if command not in first_screen]


def test_no_file_contains_a_path_of_this_machine() -> None:
    expect_none(
        [
            f"{file.relative_to(ROOT)}: {word}"
            for file in _ours()
            for word in _words(file.read_text(encoding="utf-8", errors="replace"), ROOT)
        ]
    )


def test_the_readme_shows_the_two_commands_in_its_first_screen() -> None:
    expect_none(_missing_commands((ROOT / "README.md").read_text(encoding="utf-8")))


def test_a_path_a_tool_and_a_readme_without_commands_are_found() -> None:
    here = Path("/srv/builds/main")
    assert _words("see " + "/root" + "/notes", here)
    assert _words("see " + "/srv/builds" + "/other", here)
    assert _words("written by a sub" + "agent", here)
    assert not _words("https://example.org/home/work/ and docs/root/", here)
    assert _missing_commands("# A project\n\n    make test\n") == ["make demo"]
