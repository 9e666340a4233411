"""The changed files of the working tree, according to git."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.runs import ROOT

MAIN = "main"


class CannotCompare(Exception):
    """Git cannot compare, for example outside of a repository or before the second commit. The
    message is its output.
    """


@dataclass(frozen=True, slots=True)
class Changes:
    """The files that differ from a commit, including deleted and untracked ones."""

    since: str
    paths: tuple[str, ...]


def changes(root: Path = ROOT) -> Changes:
    """Return the differences from the branch point, including uncommitted ones. Raises
    CannotCompare.

    The branch point is the merge base with ``main`` or ``origin/main``, whichever is nearer. On
    ``main`` it is ``origin/main``, and without such a branch the commit before the last.
    """
    branch = _git(root, "rev-parse", "--abbrev-ref", "HEAD").strip()
    since = _branch_point(root, branch) or "HEAD~1"
    differing = _git(root, "diff", "--name-only", "--no-renames", "-z", since, "--")
    untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    paths = dict.fromkeys(name for name in (differing + untracked).split("\0") if name)
    return Changes(since, tuple(paths))


def _branch_point(root: Path, branch: str) -> str | None:
    """Return the newest commit that HEAD and the main branch share, or None if there is no other
    main branch.
    """
    bases = dict[str, int]()
    for other in (f"origin/{MAIN}", MAIN):
        if other == branch or not _exists(root, other):
            continue
        base = _git(root, "merge-base", "HEAD", other).strip()
        bases[base] = int(_git(root, "rev-list", "--count", f"{base}..HEAD"))
    return min(bases, key=lambda base: bases[base])[:12] if bases else None


def _exists(root: Path, reference: str) -> bool:
    command = ["git", "rev-parse", "--verify", "--quiet", f"{reference}^{{commit}}"]
    return (
        subprocess.run(command, cwd=root, capture_output=True, timeout=60, check=False).returncode
        == 0
    )


def _git(root: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, timeout=60, check=False
        )
    except OSError as problem:
        raise CannotCompare(str(problem)) from problem
    if answer.returncode:
        raise CannotCompare(
            answer.stderr.strip() or f"git {arguments[0]} ended with {answer.returncode}"
        )
    return answer.stdout
