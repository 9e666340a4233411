"""Move definitions from one module to another, and rewrite every reference to them.

    python layout/move_names.py ROOT splits.json > report.txt

The entries of the list in the file: ``source``, ``target``, ``names``, and ``doc``, the docstring
of a target that does not exist. ``ruff check --fix`` removes the imports that nothing uses then.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

from merge_modules import PATCHES, Edits
from sources import PACKAGE, tracked


def stem(module: str) -> str:
    return module.rpartition(".")[2]


def parent(module: str) -> str:
    return module.rpartition(".")[0]


def path_of(root: Path, module: str) -> Path:
    path = root / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [
            one.id
            for target in node.targets
            for one in ([target] if isinstance(target, ast.Name) else getattr(target, "elts", []))
            if isinstance(one, ast.Name)
        ]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    return []


def used(nodes: list[ast.AST]) -> set[str]:
    found = set()
    for node in nodes:
        for one in ast.walk(node):
            if isinstance(one, ast.Name):
                found.add(one.id)
            elif isinstance(one, ast.Constant) and isinstance(one.value, str):
                if one.value.isidentifier():
                    found.add(one.value)
    return found


def report(kind: str, text: str) -> None:
    print(f"{kind}: {text}")


def insert_imports(source: str, lines: list[str]) -> str:
    """Add import statements after the last import at the top level."""
    tree = ast.parse(source)
    last = 0
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            last = node.end_lineno
    if not last and tree.body:
        last = tree.body[0].end_lineno if ast.get_docstring(tree) is not None else 0
    rows = source.splitlines(keepends=True)
    return "".join([*rows[:last], *[f"{line}\n" for line in lines], *rows[last:]])


def split(root: Path, source: str, target: str, names: list[str], doc: str) -> None:
    """Move the definitions, and rewrite what refers to them."""
    file = path_of(root, source)
    text = file.read_text()
    tree = ast.parse(text)
    wanted = set(names)
    rows = text.splitlines(keepends=True)
    moved: list[tuple[ast.stmt, str]] = []
    kept: list[ast.AST] = []
    drop: set[int] = set()
    for number, node in enumerate(tree.body):
        if not wanted & set(defined(node)):
            kept.append(node)
            continue
        if set(defined(node)) - wanted:
            report("moved with them", f"{source}: {set(defined(node)) - wanted}")
        decorators = getattr(node, "decorator_list", [])
        first = min([node.lineno, *[one.lineno for one in decorators]])
        last = node.end_lineno
        following = tree.body[number + 1] if number + 1 < len(tree.body) else None
        if (
            isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
            and isinstance(following.value.value, str)
        ):
            last = following.end_lineno
            if following in kept:
                kept.remove(following)
        while first > 1 and rows[first - 2].startswith("#"):
            first -= 1
        moved.append((node, "".join(rows[first - 1 : last])))
        drop |= set(range(first, last + 1))
    missing = wanted - {name for node, _ in moved for name in defined(node)}
    if missing:
        raise SystemExit(f"{source} does not define {missing}")
    here = {name for node in kept for name in defined(node)}
    needs = used([node for node, _ in moved]) & here
    if needs:
        report("needs names of its old module", f"{source} -> {target}: {sorted(needs)}")
    imports = [
        ast.get_source_segment(text, node)
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and not (isinstance(node, ast.ImportFrom) and node.module in {target, "__future__"})
    ]
    pieces: list[str] = []
    previous: ast.stmt | None = None
    for node, piece in moved:
        simple = isinstance(node, ast.Assign | ast.AnnAssign)
        close = simple and isinstance(previous, ast.Assign | ast.AnnAssign)
        pieces.append(("" if close else "\n\n") + piece)
        previous = node
    home = path_of(root, target)
    if home.exists():
        new = home.read_text()
    else:
        new = f'"""{doc}"""\n\nfrom __future__ import annotations\n'
    new = insert_imports(new, imports).rstrip("\n") + "\n" + "".join(pieces)
    remaining = "".join(row for number, row in enumerate(rows, 1) if number not in drop)
    still = used(kept) & wanted
    if still:
        clauses = ", ".join(sorted(still))
        remaining = insert_imports(remaining, [f"from {target} import {clauses}"])
    file.write_text(remaining)
    home.parent.mkdir(parents=True, exist_ok=True)
    home.write_text(new)
    for path in sorted({*tracked(root), str(home.relative_to(root))}):
        if path.startswith("layout/") or path.endswith(("recorded.json", "CHANGELOG.md")):
            continue
        if path.endswith(".py") and path != str(file.relative_to(root)):
            rewrite(root / path, source, target, wanted, path == str(home.relative_to(root)))
        if path.endswith((".py", ".md", ".toml", ".cfg", ".html", ".txt")):
            rewrite_texts(root / path, source, target, wanted)


def rewrite_texts(path: Path, source: str, target: str, names: set[str]) -> None:
    """Rewrite dotted names and paths in strings and documents."""
    text = old = path.read_text(encoding="utf-8")
    either = "|".join(sorted(names, key=len, reverse=True))
    short, new = source.removeprefix(f"{PACKAGE}."), target.removeprefix(f"{PACKAGE}.")
    text = re.sub(rf"\b{re.escape(source)}\.({either})\b", rf"{target}.\1", text)
    text = re.sub(rf"`{re.escape(short)}\.({either})\b", rf"`{new}.\1", text)
    text = re.sub(
        rf"{re.escape(short.replace('.', '/'))}\.py:({either})\b",
        rf"{new.replace('.', '/')}.py:\1",
        text,
    )
    if text != old:
        path.write_text(text, encoding="utf-8")


def rewrite(path: Path, source: str, target: str, names: set[str], is_target: bool) -> None:
    """Rewrite the imports of a file, and the attributes of the module that it imports."""
    text = path.read_text(encoding="utf-8")
    if stem(source) not in text:
        return
    tree = ast.parse(text)
    edit = Edits(text)
    modules: dict[str, ast.AST] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == source and not node.level:
            gone = [alias for alias in node.names if alias.name in names]
            if not gone:
                continue
            stay = [alias for alias in node.names if alias.name not in names]
            indent = " " * node.col_offset
            lines = []
            for module, aliases in ((source, stay), (target, gone)):
                if aliases and not (is_target and module == target):
                    clauses = ", ".join(ast.unparse(alias) for alias in aliases)
                    lines.append(f"from {module} import {clauses}")
            if is_target and any(alias.asname for alias in gone):
                report("an alias within the target", f"{path}:{node.lineno}")
            if lines:
                edit.replace(*edit.span(node), f"\n{indent}".join(lines))
            else:
                edit.replace(*edit.lines(node.lineno, node.end_lineno), "")
        elif isinstance(node, ast.ImportFrom) and node.module == parent(source):
            for alias in node.names:
                if alias.name == stem(source):
                    modules[alias.asname or alias.name] = node
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == source and alias.asname:
                    modules[alias.asname] = node
    bound = {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}
    bound |= {one.arg for one in ast.walk(tree) if isinstance(one, ast.arg)}
    bound |= {
        alias.asname or alias.name.split(".")[0]
        for one in ast.walk(tree)
        if isinstance(one, ast.Import | ast.ImportFrom)
        and not (isinstance(one, ast.ImportFrom) and one.module == parent(target))
        for alias in one.names
    }
    local = stem(target)
    if local in bound:
        local = f"{stem(parent(target))}_{local}" if "." in parent(target) else f"{local}_module"
    wanted = False
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id in modules
            and node.attr in names
        ):
            edit.replace(*edit.span(node), node.attr if is_target else f"{local}.{node.attr}")
            wanted = True
        if isinstance(node, ast.Call) and len(node.args) > 1:
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            first, second = node.args[:2]
            if (
                name in PATCHES
                and isinstance(first, ast.Name)
                and first.id in modules
                and isinstance(second, ast.Constant)
                and second.value in names
            ):
                report("a patch", f"{path}:{node.lineno} {ast.unparse(node)[:90]}")
        if isinstance(node, ast.Tuple) and len(node.elts) > 1:
            first, second = node.elts[:2]
            if (
                isinstance(first, ast.Name)
                and first.id in modules
                and isinstance(second, ast.Constant)
                and second.value in names
            ):
                report("a patch in a tuple", f"{path}:{node.lineno} {ast.unparse(node)[:90]}")
    new = edit.result()
    if wanted and not is_target:
        clause = stem(target) if local == stem(target) else f"{stem(target)} as {local}"
        inner = [node for node in modules.values() if node.col_offset]
        line = f"from {parent(target)} import {clause}"
        if inner:
            report("imports within functions", f"{path}:{inner[0].lineno} {line}")
        new = insert_imports(new, [line])
        if local != stem(target):
            report("under another name", f"{path} {line}")
    if new != text:
        path.write_text(new, encoding="utf-8")


def main(root: Path, splits: Path) -> None:
    for one in json.loads(splits.read_text()):
        split(
            root,
            f"{PACKAGE}.{one['source']}",
            f"{PACKAGE}.{one['target']}",
            one["names"].split(),
            one.get("doc", ""),
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
