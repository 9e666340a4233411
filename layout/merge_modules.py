"""Merge the modules of a plan, and rewrite every reference to them in the repository.

    python layout/merge_modules.py ROOT plan.json > report.txt

The report lists what a person has to look at: new names, names that a merge hides, modules that are
used as values, and patches of tests that reach more code than before.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import re
import sys
import textwrap
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from scopes import Names, Scope, Use, _Binder
from sources import PACKAGE, Module, is_type_checking, module_at, modules_of, tracked

Key = tuple[str, ...]
BUILTINS = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__"}
PATCHES = {"setattr", "delattr", "getattr", "object", "hasattr"}
JOINED = {"OPERATIONS", "CHECKS"}


@dataclass
class Binding:
    """A name that an import binds."""

    local: str
    module: str
    name: str | None  # None: the module itself, by `import module`
    typing_only: bool
    node: ast.Import | ast.ImportFrom
    aliased: bool


@dataclass
class File:
    """A file with what its names mean."""

    module: Module
    names: Names
    defs: dict[str, ast.stmt] = field(default_factory=dict)
    bindings: dict[str, Binding] = field(default_factory=dict)
    inner: dict[tuple[int, str], Binding] = field(default_factory=dict)
    parents: dict[int, ast.AST] = field(default_factory=dict)


class Edits:
    """Replacements in one source text."""

    def __init__(self, source: str) -> None:
        self.source = source
        lines = source.splitlines(keepends=True)
        self._starts = [0]
        for line in lines:
            self._starts.append(self._starts[-1] + len(line))
        self._lines = lines
        self.changes: dict[tuple[int, int], str] = {}

    def at(self, line: int, byte: int) -> int:
        text = self._lines[line - 1] if line <= len(self._lines) else ""
        return self._starts[line - 1] + len(text.encode()[:byte].decode())

    def span(self, node: ast.AST) -> tuple[int, int]:
        start = self.at(node.lineno, node.col_offset)
        end = self.at(node.end_lineno, node.end_col_offset)
        # Before Python 3.12 the places of names within f-strings are not exact.
        if isinstance(node, ast.Name) and self.source[start:end] != node.id:
            raise ValueError(f"{node.id} is not at line {node.lineno}: use Python 3.12 or newer")
        if isinstance(node, ast.Attribute) and not self.source[start:end].endswith(node.attr):
            raise ValueError(f"{node.attr} is not at line {node.lineno}: use Python 3.12 or newer")
        return start, end

    def lines(self, first: int, last: int) -> tuple[int, int]:
        return self._starts[first - 1], self._starts[min(last, len(self._lines))]

    def replace(self, start: int, end: int, text: str) -> None:
        if self.source[start:end] != text:
            self.changes[start, end] = text

    def result(self) -> str:
        parts: list[str] = []
        position = 0
        for (start, end), text in sorted(
            self.changes.items(), key=lambda one: (one[0][0], -one[0][1])
        ):
            if start < position:
                if end <= position:
                    continue  # within a larger replacement
                raise ValueError(f"overlapping edits at {self.source[start:end]!r}")
            parts += [self.source[position:start], text]
            position = end
        return "".join([*parts, self.source[position:]])


def stem(module: str) -> str:
    return module.rpartition(".")[2]


def parent(module: str) -> str:
    return module.rpartition(".")[0]


def read(module: Module) -> File:
    """Find the definitions and imports of a file."""
    file = File(module, Names(module.tree))
    for node in ast.walk(module.tree):
        for child in ast.iter_child_nodes(node):
            file.parents[id(child)] = node
    top: set[int] = set()
    for node, kind in module.imports():
        top_level = kind != "inner"
        stack = file.names.scope_of.get(id(node), ())
        if top_level or not stack:
            top.add(id(node))
        for binding in bindings_of(node, kind == "typing"):
            if top_level or not stack:
                known = file.bindings.get(binding.local)
                if known is None or known.typing_only:
                    file.bindings[binding.local] = binding
            else:
                file.inner[id(stack[-1]), binding.local] = binding
    for node in module.tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom) or is_type_checking(node):
            continue
        scope = Scope(node, "module")
        _Binder(scope).visit(node)
        for name in scope.bound:
            if name not in file.bindings and name != "__all__":
                file.defs.setdefault(name, node)
    return file


def bindings_of(node: ast.Import | ast.ImportFrom, typing_only: bool) -> Iterator[Binding]:
    """Yield what one statement binds."""
    for alias in node.names:
        aliased = alias.asname is not None
        if isinstance(node, ast.Import):
            local = alias.asname or alias.name.partition(".")[0]
            yield Binding(local, alias.name, None, typing_only, node, aliased)
        else:
            module = "." * node.level + (node.module or "")
            yield Binding(
                alias.asname or alias.name,
                module,
                alias.name,
                typing_only,
                node,
                aliased,
            )


class Merge:
    """The whole rewriting."""

    def __init__(self, root: Path, plan: dict) -> None:
        self.root = root
        self.moves: dict[str, str] = plan["moves"]
        self.order: dict[str, list[str]] = plan["order"]
        self.given: dict[str, dict[str, str]] = plan["renames"]
        self.subjects: dict[str, str] = plan["subjects"]
        self.files = {name: read(module) for name, module in modules_of(root).items()}
        self.renamed: dict[str, dict[str, str]] = defaultdict(dict)
        self.dropped: dict[str, set[str]] = defaultdict(set)
        self.local_of: dict[tuple[str, str], str] = {}
        self.report: dict[str, list[str]] = defaultdict(list)
        for new in self.order:  # a package that becomes a module brings what its __init__ imports
            if new in self.files and self.files[new].module.is_package and new not in self.moves:
                self.moves[new] = new
        self.folders = [
            new.removeprefix(f"{PACKAGE}.").replace(".", "/")
            for new in self.order
            if new in self.files and self.files[new].module.is_package
        ]
        self.joined: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.asnames = self._asnames()

    def note(self, kind: str, text: str) -> None:
        if text not in self.report[kind]:
            self.report[kind].append(text)

    # What names mean

    def _asnames(self) -> dict[tuple[str, str], set[str]]:
        found: dict[tuple[str, str], set[str]] = defaultdict(set)
        for file in self.files.values():
            for binding in file.bindings.values():
                if binding.name is not None and binding.module in self.files:
                    found[binding.module, binding.name].add(binding.local)
        return found

    def new(self, module: str) -> str:
        return self.moves.get(module, module)

    def meaning(self, module: str, name: str) -> Key:
        """Return what ``from module import name`` imports, in old names."""
        if module in self.files:
            file = self.files[module]
            if name in file.defs:
                return ("name", module, name)
            if f"{module}.{name}" in self.files:
                return ("mod", f"{module}.{name}")
            if (
                name in file.bindings
                and module in self.moves
                and (file.module.is_package or name not in declared(file.module.tree))
            ):
                return self.of_binding(file.bindings[name])
            return ("name", module, name)
        if f"{module}.{name}" in self.files:
            return ("mod", f"{module}.{name}")
        return ("ext", module, name)

    def of_binding(self, binding: Binding) -> Key:
        """Return what a binding means, in old names."""
        if binding.name is None:
            if binding.aliased and binding.module in self.files:
                return ("mod", binding.module)
            return ("import", binding.module, binding.local if binding.aliased else "")
        return self.meaning(binding.module, binding.name)

    def renewed(self, key: Key) -> Key:
        """Return a meaning in new names."""
        if key[0] == "mod":
            return ("mod", self.new(key[1]))
        if key[0] == "name":
            return ("name", self.new(key[1]), self.renamed[key[1]].get(key[2], key[2]))
        return key

    # New names of definitions that collide

    def choose_names(self) -> None:
        """Give the definitions of each merged file names that are unique in it."""
        for member, names in self.given.items():
            if member in self.files and member not in self.moves:
                self.renamed[member].update(names)
        for new, members in self.order.items():
            owners: dict[str, list[str]] = defaultdict(list)
            for member in members:
                for name, wanted in self.given.get(member, {}).items():
                    if name not in self.files[member].defs:
                        self.note("renames of the plan that match nothing", f"{member}.{name}")
                    self.renamed[member][name] = wanted
                for name in self.files[member].defs:
                    final = self.renamed[member].get(name, name)
                    if member in owners[final]:
                        raise SystemExit(f"{member}: two definitions named {final}")
                    owners[final].append(member)
            for name, found in owners.items():
                if len(found) > 1 and name in JOINED:
                    for member in found:
                        single = re.sub("S$", "", re.sub("IES$", "Y", stem(member).upper()))
                        self.renamed[member][name] = f"{single}_{name}"
                        self.joined[new, name].append(f"*{single}_{name}")
                elif len(found) > 1:
                    self._separate(new, name, found)
            used: dict[str, str] = {}
            for member in members:
                for name in self.files[member].defs:
                    final = self.renamed[member].get(name, name)
                    if name in self.dropped[member]:
                        continue
                    if final in used:
                        self.note(
                            "names that still collide",
                            f"{new}: {final} ({used[final]}, {member})",
                        )
                    used[final] = member

    def _separate(self, new: str, name: str, members: list[str]) -> None:
        first = members[0]
        same = [
            member
            for member in members[1:]
            if name in self.files[member].defs
            and name in self.files[first].defs
            and self._equal(first, member, name)
        ]
        for member in same:
            self.dropped[member].add(name)
        others = [member for member in members if member not in same]
        if len(others) == 1:
            return
        for member in others:
            if stem(member) == stem(new) or name in self.given.get(member, {}).values():
                continue
            self.renamed[member][name] = self._name_by_subject(member, name)
            where = member.removeprefix(f"{PACKAGE}.")
            self.note(
                "new names",
                f"{new.removeprefix(f'{PACKAGE}.')}: {where}.{name} -> {self.renamed[member][name]}",
            )

    def _equal(self, one: str, other: str, name: str) -> bool:
        left, right = self.files[one], self.files[other]
        if ast.dump(left.defs[name]) != ast.dump(right.defs[name]):
            return False
        value = getattr(left.defs[name], "value", None)
        if isinstance(value, ast.Call) and "getLogger" not in ast.dump(value.func):
            if ast.unparse(value.func) != "TypeVar":
                return False  # two objects, each with a state of its own
        if isinstance(value, ast.Constant) and not isinstance(value.value, str):
            return False  # two numbers that are equal by chance
        inside = {node.id for node in ast.walk(left.defs[name]) if isinstance(node, ast.Name)} - {
            name
        }
        for used in inside:
            mine, theirs = left.bindings.get(used), right.bindings.get(used)
            if (mine is None) != (theirs is None) or (used in left.defs) != (used in right.defs):
                return False
            if used in left.defs and not self._equal(one, other, used):
                return False
            if mine and theirs and self.of_binding(mine) != self.of_binding(theirs):
                return False
        return True

    def _name_by_subject(self, member: str, name: str) -> str:
        asnames = self.asnames.get((member, name), set())
        if len(asnames) == 1 and (hint := next(iter(asnames))) != name:
            return hint
        subject = stem(member)
        bare = name.lstrip("_")
        prefix = name[: len(name) - len(bare)]
        if bare.isupper():
            return f"{prefix}{subject.upper()}_{bare}"
        if bare[:1].isupper():
            return f"{prefix}{''.join(part.title() for part in subject.split('_'))}{bare}"
        return (
            f"{prefix}{bare}_{subject}"
            if bare.split("_")[0] in VERBS
            else f"{prefix}{subject}_{bare}"
        )

    # Rewriting

    def attribute(self, file: File, node: ast.Name, key: Key) -> tuple[ast.AST, Key, str | None]:
        """Follow attributes of a module as far as they are modules.

        Return the outermost node, what it means, and the attribute of a module whose meaning is
        what that module imports.
        """
        at: ast.AST = node
        while key[0] == "mod":
            outer = file.parents.get(id(at))
            if not isinstance(outer, ast.Attribute) or outer.value is not at:
                return at, key, None
            module = key[1]
            inner = self.files[module]
            if outer.attr not in inner.defs and f"{module}.{outer.attr}" in self.files:
                key = ("mod", f"{module}.{outer.attr}")
            elif outer.attr in inner.bindings and not (
                inner.module.is_package and module not in self.moves
            ):
                return outer, key, outer.attr
            else:
                return outer, ("name", module, outer.attr), None
            at = outer
        return at, key, None

    def rewrite_group(
        self, new: str, members: list[str], files: dict[str, File], merged: bool
    ) -> None:
        """Choose the names of one new file, and collect the edits of its members."""
        taken: dict[str, Key] = {}
        defs: dict[str, str] = {}
        for member in members:
            for name in files[member].defs:
                if name not in self.dropped[member]:
                    defs[self.renamed[member].get(name, name)] = member
        needs: dict[Key, list[tuple[Use, str]]] = defaultdict(list)  # the uses, the wished name
        runtime: set[Key] = set()
        references: list[tuple[str, ast.AST, Key, str, Use]] = []
        builtin_uses: dict[str, str] = {}
        edits = {member: Edits(files[member].module.source) for member in members}
        own: list[tuple[str, Use, str]] = []
        quoted: list[tuple[str, ast.Constant, str, Key]] = []
        for member in members:
            file = files[member]
            for use in file.names.uses:
                scope = use.owner()
                if scope is not None:
                    binding = file.inner.get((id(scope), use.name))
                    if binding is not None:
                        self._inner_use(new, file, use, scope, binding, edits[member])
                    continue
                if use.name in file.defs:
                    own.append((member, use, self.renamed[member].get(use.name, use.name)))
                    continue
                binding = file.bindings.get(use.name)
                if binding is None:
                    builtin_uses.setdefault(use.name, member)
                    continue
                old = self.of_binding(binding)
                node, key, through = self.attribute(file, use.node, old)
                if through is not None:
                    self._through(
                        new,
                        member,
                        file,
                        use,
                        node,
                        key,
                        through,
                        edits[member],
                        needs,
                        references,
                        runtime,
                    )
                    continue
                final = self.renewed(key)
                via_module = old[0] == "mod" and key[0] == "name"
                if via_module and stem(final[1]) != stem(key[1]) and member.startswith(PACKAGE):
                    self.note(
                        "names that were read through a module that is gone",
                        ".".join(key[1:]).removeprefix(f"{PACKAGE}.")
                        + f" -> {stem(final[1])}.{final[2]}",
                    )
                if final[0] == "name" and final[1] == new and merged:
                    references.append((member, node, final, "own", use))
                    continue
                if final == ("mod", new) and merged:
                    self.note(
                        "modules used as values of their own file",
                        f"{member}:{node.lineno} {use.name}",
                    )
                    continue
                if via_module:
                    needed: Key = ("mod", final[1])
                    wish = self._wish(binding, old, needed)
                    needs[needed].append((use, wish))
                    references.append((member, node, final, "attribute", use))
                else:
                    needed = final
                    wish = self._wish(binding, old, needed)
                    needs[needed].append((use, wish))
                    references.append((member, node, final, "name", use))
                    if final[0] == "mod" and node is use.node:
                        self._value(member, file, node)
                if not binding.typing_only:
                    runtime.add(needed)
            for text, where in quoted_types(file.module.tree):
                for name in re.findall(r"[A-Za-z_]\w*", text):
                    if name in file.bindings:
                        binding = file.bindings[name]
                        old = self.of_binding(binding)
                        final = self.renewed(old)
                        if merged and final[:2] == ("name", new):
                            continue
                        needs[final].append((Use(where, name, ()), self._wish(binding, old, final)))
                        if not binding.typing_only:
                            runtime.add(final)
                        quoted.append((member, where, name, final))
                    elif name in self.renamed[member]:
                        self.note(
                            "quoted types with another name",
                            f"{member}:{where.lineno} {text}",
                        )
            if not merged:
                for binding in file.bindings.values():
                    old = self.of_binding(binding)
                    key = self.renewed(old)
                    needs.setdefault(key, [])
                    if not needs[key]:
                        needs[key].append(
                            (Use(binding.node, "", ()), self._wish(binding, old, key))
                        )
                    if not binding.typing_only:
                        runtime.add(key)
        # Names of imports
        chosen: dict[Key, str] = {}
        kept = self._exported(files, members) if not merged else set()
        both = {LAZY_TEXT, NOW_TEXT} <= set(needs) and merged
        for key in sorted(needs, key=lambda key: (key[0] not in {"ext", "import"}, key)):
            wishes = list(dict.fromkeys(wish for _, wish in needs[key]))
            candidates = [*wishes]
            if both and key in {LAZY_TEXT, NOW_TEXT}:
                candidates = ["_" if key == LAZY_TEXT else "gettext"]
            if not merged:
                locals_of = [
                    binding.local
                    for binding in files[members[0]].bindings.values()
                    if self.renewed(self.of_binding(binding)) == key
                ]
                exported = [name for name in locals_of if name in kept]
                candidates = [*exported, *candidates, *locals_of]
            if key[0] == "mod":
                candidates += [
                    f"{stem(parent(key[1]))}_{stem(key[1])}",
                    f"{stem(key[1])}_module",
                ]
            elif key[0] != "import":
                candidates += [
                    f"{stem(key[1])}_{key[2]}",
                    f"{key[2]}_of_{stem(key[1])}",
                ]
            candidates += [use.name for use, _ in needs[key] if use.name]
            for candidate in candidates:
                if candidate in defs or candidate in taken:
                    continue
                if candidate in builtin_uses and candidate in BUILTINS:
                    continue
                if any(use.scopes and use.hides(candidate) for use, _ in needs[key]):
                    continue
                break
            else:
                candidate = candidates[0]
                self.note("imports without a free name", f"{new}: {key}")
            if candidate != candidates[0]:
                self.note("imports under another name", f"{new}: {key[1:]} as {candidate}")
            chosen[key] = candidate
            taken[candidate] = key
        # Edits
        hidden: dict[tuple[str, int], tuple[Scope, str]] = {}
        for member, use, final in own:
            edit = edits[member]
            if final != use.name:
                if (scope := use.hides(final)) is not None:
                    hidden[member, id(scope)] = (scope, final)
                self._edit_name(edit, use, final)
        for member, node, final, how, use in references:
            edit = edits[member]
            if how == "own":
                text = final[2]
                if (scope := use.hides(text)) is not None:
                    hidden[member, id(scope)] = (scope, text)
            elif how == "attribute":
                text = f"{chosen['mod', final[1]]}.{final[2]}"
            else:
                text = chosen[final]
            if isinstance(use.node, ast.Global):
                self.note("global statements that name an import", f"{member}: {use.name}")
                continue
            edit.replace(*edit.span(node), text)
        for member, where, name, final in quoted:
            if chosen[final] != name:
                start, end = edits[member].span(where)
                before = edits[member].changes.get((start, end), edits[member].source[start:end])
                edits[member].replace(start, end, re.sub(rf"\b{name}\b", chosen[final], before))
        for (member, _), (scope, name) in hidden.items():
            self._rename_local(files[member], edits[member], scope, name, member)
        for name, member in builtin_uses.items():
            if name in BUILTINS and name in defs and defs[name] != member:
                self.note(
                    "builtins that a definition hides",
                    f"{new}: {name} of {defs[name]} in {member}",
                )
            elif name not in BUILTINS and name != "reveal_type":
                if name != "__all__":
                    self.note("names without a meaning", f"{member}: {name}")
        for member in members:
            self._rename_definitions(files[member], edits[member], member)
            self._strings(files[member], edits[member], chosen, new, merged)
            for local, binding in files[member].bindings.items():
                key = self.renewed(self.of_binding(binding))
                if key[0] == "name" and key[1] == new and merged:
                    self.local_of[member, local] = key[2]
                elif key in chosen:
                    self.local_of[member, local] = chosen[key]
        if merged:
            self._write_merged(new, members, files, edits, chosen, runtime)
        else:
            self._write_in_place(new, files[members[0]], edits[members[0]], chosen)

    def _wish(self, binding: Binding, old: Key, needed: Key) -> str:
        if needed[0] == "mod":
            plain = old[0] == "mod" and (
                binding.local == stem(old[1]) or stem(old[1]) != stem(needed[1])
            )
            return stem(needed[1]) if plain or old[0] != "mod" else binding.local
        if needed[0] == "name":
            return needed[2] if binding.local == binding.name else binding.local
        return binding.local

    def _exported(self, files: dict[str, File], members: list[str]) -> set[str]:
        if names := declared(files[members[0]].module.tree):
            return names
        if files[members[0]].module.is_package:
            return set(files[members[0]].bindings)
        return set()

    def _value(self, member: str, file: File, node: ast.AST) -> None:
        outer = file.parents.get(id(node))
        if isinstance(outer, ast.Call) and node in outer.args[:1] and len(outer.args) > 1:
            function = outer.func
            name = (
                function.attr
                if isinstance(function, ast.Attribute)
                else getattr(function, "id", "")
            )
            if name in PATCHES:
                return
        if isinstance(outer, ast.Tuple):
            return
        self.note(
            "modules used as values",
            f"{member}:{node.lineno} {ast.unparse(outer)[:80] if outer else ''}",
        )

    def _through(
        self,
        new: str,
        member: str,
        file: File,
        use: Use,
        node: ast.Attribute,
        key: Key,
        attr: str,
        edit: Edits,
        needs: dict,
        references: list,
        runtime: set,
    ) -> None:
        """A name that a module imported is read or patched through this module."""
        module = key[1]
        binding = self.files[module].bindings[attr]
        origin = self.of_binding(binding)
        target = self.new(module)
        needed: Key = ("mod", target)
        wish = self._wish(file.bindings[use.name], self.of_binding(file.bindings[use.name]), needed)
        local = self.local_of.get((module, attr))
        if target == new and new in self.order:
            final = self.renewed(origin)
            if final[0] == "name" and final[1] == new:
                references.append((member, node, final, "own", use))
            else:
                self.note(
                    "names read through their own file",
                    f"{member}:{node.lineno} {ast.unparse(node)}",
                )
            return
        needs[needed].append((use, wish))
        runtime.add(needed)
        if origin[0] == "mod" and local is None:  # the module that it read is in the same file now
            outer, inner_key, again = (
                self.attribute(file, use.node, origin) if False else (node, origin, None)
            )
            following = file.parents.get(id(node))
            if (
                isinstance(following, ast.Attribute)
                and following.value is node
                and self.new(origin[1]) == target
            ):
                name = self.renamed[origin[1]].get(following.attr, following.attr)
                references.append((member, following, ("name", target, name), "attribute", use))
                self.note(
                    "patches that reach more",
                    f"{member}:{node.lineno} {ast.unparse(following)} -> {target}.{name}",
                )
                return
            self.note(
                "for a person: a module that is part of the same file now",
                f"{member}:{node.lineno} {ast.unparse(node)}",
            )
            return
        following = file.parents.get(id(node))
        if origin[0] == "mod" and isinstance(following, ast.Attribute) and following.value is node:
            name = self.renamed[origin[1]].get(following.attr, following.attr)
            references.append(
                (
                    member,
                    following,
                    ("name", target, f"{local}.{name}"),
                    "attribute",
                    use,
                )
            )
        else:
            references.append((member, node, ("name", target, local or attr), "attribute", use))
        if isinstance(node.ctx, ast.Store) and module in self.moves:
            self.note(
                "patches that reach more",
                f"{member}:{node.lineno} {ast.unparse(node)} = …",
            )

    def inner_local(self, file: File, scope: Scope, binding: Binding) -> str:
        """Return the name under which a function imports a module from now on."""
        old = self.of_binding(binding)
        key = self.renewed(old)
        wish = stem(key[1])
        if old[0] != "mod" or binding.local != stem(old[1]) or wish == binding.local:
            return binding.local
        same = {
            local
            for (owner, local), other in file.inner.items()
            if owner == id(scope) and self.renewed(self.of_binding(other)) == key
        }
        for use in file.names.uses:
            if use.name == wish and scope in use.scopes and wish not in same:
                return binding.local
        return binding.local if wish in scope.bound - same else wish

    def _inner_use(
        self,
        new: str,
        file: File,
        use: Use,
        scope: Scope,
        binding: Binding,
        edit: Edits,
    ) -> None:
        key = self.of_binding(binding)
        if key[0] != "mod":
            return
        edit.replace(*edit.span(use.node), self.inner_local(file, scope, binding))
        node, found, through = self.attribute(file, use.node, key)
        if through is not None:
            local = self.local_of.get((found[1], through), through)
            if local != through or self.new(found[1]) != found[1]:
                edit.replace(
                    edit.at(node.end_lineno, node.end_col_offset) - len(node.attr),
                    edit.span(node)[1],
                    local,
                )
                self.note(
                    "patches that reach more",
                    f"{file.module.name}:{node.lineno} {ast.unparse(node)}",
                )
        elif found[0] == "name" and isinstance(node, ast.Attribute):
            name = self.renamed[found[1]].get(found[2], found[2])
            edit.replace(edit.span(node)[1] - len(node.attr), edit.span(node)[1], name)

    def _edit_name(self, edit: Edits, use: Use, text: str) -> None:
        start, end = edit.span(use.node)
        if isinstance(use.node, ast.Global):
            before = edit.changes.get((start, end), edit.source[start:end])
            edit.replace(start, end, re.sub(rf"\b{use.name}\b", text, before))
        else:
            edit.replace(start, end, text)

    def _rename_local(self, file: File, edit: Edits, scope: Scope, name: str, member: str) -> None:
        where = f"{member}:{getattr(scope.node, 'lineno', '?')} {name}"
        wanted = self.given.get(member, {}).get(f"local {name}", "")
        if not wanted:
            wanted = f"{name}_found" if name in scope.bound else name
            self.note("locals that hide a name (give a name in the plan)", where)
        else:
            self.note("locals renamed", f"{where} -> {wanted}")
        if name in scope.parameters:
            self.note("parameters that hide a name: their callers may name them", where)
            for one in ast.walk(scope.node.args):
                if isinstance(one, ast.arg) and one.arg == name:
                    start = edit.at(one.lineno, one.col_offset)
                    edit.replace(start, start + len(name), wanted)
        for use in file.names.uses:
            if use.name == name and use.owner() is scope:
                edit.replace(*edit.span(use.node), wanted)
        for node in ast.walk(scope.node):
            if isinstance(node, ast.ExceptHandler) and node.name == name:
                self.note(
                    "locals that hide a name (give a name in the plan)",
                    f"{where} except … as",
                )

    def _rename_definitions(self, file: File, edit: Edits, member: str) -> None:
        for name, node in file.defs.items():
            final = self.renamed[member].get(name, name)
            if final != name and isinstance(
                node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
            ):
                start, end = edit.span(node)
                match = re.compile(rf"\b(?:def|class)\s+({name})\b").search(edit.source, start, end)
                assert match, (member, name)
                edit.replace(match.start(1), match.end(1), final)

    # Strings, comments and texts

    def text(self, text: str, kept: str = "") -> str:
        """Rewrite dotted names and paths of modules in a text."""
        text = PATH.sub(self._path, DOTTED.sub(self._dotted, text))
        text = SHORT.sub(self._short, text)
        for folder in self.folders:
            text = re.sub(rf"(?<![\w/.]){folder}/(?![\w*])", f"{folder}.py", text)
        return text

    def _dotted(self, match: re.Match[str]) -> str:
        constant = "{PACKAGE}"
        if match[0].startswith(constant):
            full = DOTTED.sub(self._dotted, match[0].replace(constant, PACKAGE))
            return full.replace(PACKAGE, constant, 1)
        parts = match[0].split(".")
        for size in range(len(parts), 1, -1):
            old = ".".join(parts[:size])
            if old in self.moves or self.renamed.get(old):
                rest = parts[size:]
                if rest:
                    rest[0] = self.local_of.get(
                        (old, rest[0]), self.renamed[old].get(rest[0], rest[0])
                    )
                return ".".join([self.new(old), *rest])
        return match[0]

    def _short(self, match: re.Match[str]) -> str:
        full = DOTTED.sub(self._dotted, f"{PACKAGE}.{match[0]}")
        return full.removeprefix(f"{PACKAGE}.")

    def _path(self, match: re.Match[str]) -> str:
        prefix, path, attr = match[1] or "", match[2], match[3] or ""
        old = f"{PACKAGE}.{path.replace('/', '.')}"
        if old not in self.files or (not prefix and "/" not in path):
            return match[0]
        new = self.new(old).removeprefix(f"{PACKAGE}.").replace(".", "/")
        if attr:
            attr = ":" + self.renamed[old].get(attr[1:], attr[1:])
        return f"{prefix}{new}.py{attr}"

    def _strings(
        self, file: File, edit: Edits, chosen: dict[Key, str], new: str, merged: bool
    ) -> None:
        source = file.module.source
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type not in {tokenize.STRING, tokenize.COMMENT} or "_SALT" in token.line:
                continue
            text = self.text(token.string)
            if text != token.string:
                start = edit._starts[token.start[0] - 1] + token.start[1]
                end = edit._starts[token.end[0] - 1] + token.end[1]
                edit.replace(start, end, text)
        for node in ast.walk(file.module.tree):
            if isinstance(node, ast.Call) and len(node.args) > 1:
                self._patch(file, edit, node)

    def _patch(self, file: File, edit: Edits, node: ast.Call) -> None:
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        first, second = node.args[:2]
        if (
            name not in PATCHES
            or not isinstance(second, ast.Constant)
            or not isinstance(second.value, str)
        ):
            return
        module = self._module_of(file, first)
        if module is None:
            return
        attr = second.value
        final = self.renamed[module].get(attr)
        if (
            final is None
            and attr not in self.files[module].defs
            and attr in self.files[module].bindings
        ):
            final = self.local_of.get((module, attr))
            if module in self.moves:
                self.note(
                    "patches that reach more",
                    f"{file.module.name}:{node.lineno} {ast.unparse(first)}.{attr} -> {self.new(module)}.{final}",
                )
        if final and final != attr:
            edit.replace(*edit.span(second), f'"{final}"')

    def _module_of(self, file: File, node: ast.expr) -> str | None:
        if isinstance(node, ast.Name):
            for use in file.names.uses:
                if use.node is node:
                    scope = use.owner()
                    binding = (
                        file.bindings.get(node.id)
                        if scope is None
                        else file.inner.get((id(scope), node.id))
                    )
                    key = self.of_binding(binding) if binding else ("",)
                    return key[1] if key[0] == "mod" else None
        if isinstance(node, ast.Attribute):
            outer = self._module_of(file, node.value)
            if outer is not None:
                key = self.meaning(outer, node.attr)
                if key[0] == "name" and node.attr in self.files[outer].bindings:
                    key = self.of_binding(self.files[outer].bindings[node.attr])
                return key[1] if key[0] == "mod" else None
        return None

    # Import statements

    def statement(self, key: Key, local: str) -> tuple[str, str]:
        """Return the module and the clause of an import; the module is empty for ``import x``."""
        if key[0] == "import":
            return "", f"import {key[1]} as {key[2]}" if key[2] else f"import {key[1]}"
        if key[0] == "mod":
            module, name = parent(key[1]), stem(key[1])
        else:
            module, name = key[1], key[2]
        return module, name if name == local else f"{name} as {local}"

    def _import_lines(self, keys: list[tuple[Key, str]]) -> list[str]:
        lines: list[str] = []
        grouped: dict[str, list[str]] = defaultdict(list)
        for key, local in keys:
            module, clause = self.statement(key, local)
            if module:
                grouped[module].append(clause)
            else:
                lines.append(clause)
        return [
            *lines,
            *(
                f"from {module} import {', '.join(sorted(set(names)))}"
                for module, names in sorted(grouped.items())
            ),
        ]

    def _write_in_place(self, new: str, file: File, edit: Edits, chosen: dict[Key, str]) -> None:
        emitted: set[Key] = set()
        for node, kind in file.module.imports():
            keys: list[tuple[Key, str]] = []
            changed = False
            stack = file.names.scope_of.get(id(node), ())
            for binding in bindings_of(node, kind == "typing"):
                old = self.of_binding(binding)
                key = self.renewed(old)
                if kind != "inner" or not stack:
                    local = chosen.get(key, binding.local)
                else:
                    local = self.inner_local(file, stack[-1], binding)
                keys.append((key, local))
                if key[0] in {"mod", "name"}:
                    changed |= self.statement(key, local) != self.statement(old, binding.local) or (
                        key in emitted and kind != "inner"
                    )
            if not changed:
                emitted |= {key for key, _ in keys}
                continue
            if kind != "inner":
                keys = [(key, local) for key, local in keys if key not in emitted]
                emitted |= {key for key, _ in keys}
            start, end = edit.span(node)
            indent = " " * node.col_offset
            lines = self._import_lines(keys)
            comments = re.findall(r"#.*", edit.source[start:end])
            if comments and len(lines) == 1 and " import " in lines[0]:
                head, _, names = lines[0].partition(" import ")
                inside = "".join(f"{indent}    {name},\n" for name in names.split(", "))
                lines = [f"{head} import (  {'; '.join(comments)}\n{inside}{indent})"]
            elif comments:
                self.note(
                    "comments within rewritten imports",
                    f"{file.module.name}:{node.lineno}",
                )
            if lines:
                edit.replace(start, end, f"\n{indent}".join(lines))
            else:
                edit.replace(*edit.lines(node.lineno, node.end_lineno), "")
        self._unique_modules(file, edit, chosen)
        text = edit.result()
        if text != file.module.source:
            file.module.path.write_text(text, encoding="utf-8")

    def _unique_modules(self, file: File, edit: Edits, chosen: dict[Key, str]) -> None:
        """Name each module once in a tuple of modules."""
        for node in ast.walk(file.module.tree):
            if isinstance(node, ast.Tuple | ast.List) and node.elts:
                names = [one.id for one in node.elts if isinstance(one, ast.Name)]
                bindings = [file.bindings.get(name) for name in names]
                if len(names) != len(node.elts) or not all(bindings):
                    continue
                keys = [self.renewed(self.of_binding(one)) for one in bindings if one]
                if all(key[0] == "mod" for key in keys) and len(set(keys)) < len(keys):
                    inner = ", ".join(dict.fromkeys(chosen[key] for key in keys))
                    edit.replace(
                        *edit.span(node),
                        f"({inner},)" if isinstance(node, ast.Tuple) else f"[{inner}]",
                    )

    def _inner_imports(self, new: str, file: File, edit: Edits) -> None:
        """Rewrite the imports within functions of a member; they keep their local names."""
        for node, kind in file.module.imports():
            if kind != "inner":
                continue
            keys = []
            changed = False
            for binding in bindings_of(node, False):
                old = self.of_binding(binding)
                key = self.renewed(old)
                stack = file.names.scope_of.get(id(node), ())
                keys.append((key, self.inner_local(file, stack[-1], binding)))
                changed |= key != old
                if new in key[1:2]:
                    self.note(
                        "imports of a file within itself",
                        f"{file.module.name}:{node.lineno}",
                    )
            if changed:
                indent = " " * node.col_offset
                lines = self._import_lines(keys)
                edit.replace(*edit.span(node), f"\n{indent}".join(lines))

    def _sorted(self, members: list[str]) -> list[str]:
        """Order members so that each follows those that it imports at the module level."""
        needs: dict[str, set[str]] = {member: set() for member in members}
        for member in members:
            for binding in self.files[member].bindings.values():
                if not binding.typing_only:
                    key = self.of_binding(binding)
                    if key[0] in {"mod", "name"} and key[1] in needs and key[1] != member:
                        needs[member].add(key[1])
        left, done = list(members), []
        while left:
            ready = next((one for one in left if not needs[one] & set(left)), None)
            if ready is None:
                self.note("members that import each other", " ".join(left))
                ready = left[0]
            left.remove(ready)
            done.append(ready)
        return done

    def _write_merged(
        self,
        new: str,
        members: list[str],
        files: dict[str, File],
        edits: dict[str, Edits],
        chosen: dict[Key, str],
        runtime: set[Key],
    ) -> None:
        primary = next((one for one in members if stem(one) == stem(new)), None)
        if len(members) == 1:  # a module that is moved only keeps its docstring
            primary = members[0]
        subject = self.subjects.get(new)
        parts: list[str] = []
        for member in self._sorted(members):
            file, edit = files[member], edits[member]
            self._inner_imports(new, file, edit)
            self._unique_modules(file, edit, chosen)
            for node in file.module.tree.body:
                first, last = node.lineno, node.end_lineno
                decorators = getattr(node, "decorator_list", [])
                if decorators:
                    first = decorators[0].lineno
                if self._goes(node, member, file):
                    edit.replace(*edit.lines(first, last), "")
                    line = edit.source.splitlines()[first - 1 : last]
                    if any("#" in one for one in line) and isinstance(
                        node, ast.Import | ast.ImportFrom
                    ):
                        self.note(
                            "comments of imports that were dropped",
                            f"{member}:{first} {line[0]}",
                        )
            body = edit.result().strip("\n")
            docstring = self.text(ast.get_docstring(file.module.tree, clean=True) or "")
            if not body.strip():
                continue
            only = member == primary and subject is None
            header = "" if only or not docstring else comment_of(docstring, body, subject or "")
            parts.append(f"{header}{body}")
        if subject is None and primary is None:
            self.note("files without a subject", new)
        text = subject or self.text(
            ast.get_docstring(files[primary or members[0]].module.tree) or ""
        )
        lines = [docstring_of(text), "", "from __future__ import annotations", ""]
        typing_keys = [key for key in chosen if key not in runtime]
        lines += self._import_lines(
            [
                (key, local)
                for key, local in chosen.items()
                if key in runtime and key != ("ext", "__future__", "annotations")
            ]
        )
        if typing_keys:
            lines.append("from typing import TYPE_CHECKING")
            lines += ["", "if TYPE_CHECKING:"]
            lines += [
                f"    {line}"
                for line in self._import_lines([(key, chosen[key]) for key in typing_keys])
            ]
        exported = sorted(
            chosen[key]
            for member in members
            for name in declared(files[member].module.tree)
            if name in files[member].bindings
            and (key := self.renewed(self.of_binding(files[member].bindings[name]))) in chosen
        )
        if exported:
            lines += ["", f"__all__ = {exported!r}"]
        for (file_name, name), values in self.joined.items():
            if file_name != new:
                continue
            parts.append(f"{name} = ({', '.join(values)},)")
        source = "\n".join(lines) + "\n\n\n" + "\n\n\n".join(parts) + "\n"
        for member in [*members, new]:
            if member in self.files:
                self.files[member].module.path.unlink(missing_ok=True)
        path = self.root / (new.replace(".", "/") + ".py")
        folder = path.with_suffix("")
        if (folder / "__init__.py").exists():
            (folder / "__init__.py").unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source, encoding="utf-8")
        if folder.is_dir() and not [
            one for one in folder.rglob("*") if one.is_file() and one.suffix != ".pyc"
        ]:
            import shutil

            shutil.rmtree(folder)
        elif folder.is_dir():
            self.note("folders beside a module of the same name", str(folder))

    def _goes(self, node: ast.stmt, member: str, file: File) -> bool:
        """Return whether a statement of a member is left out of the merged file."""
        if isinstance(node, ast.Import | ast.ImportFrom) or is_type_checking(node):
            return True
        if (
            node is file.module.tree.body[0]
            and isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
        ):
            return True
        if isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                if target.id == "__all__" or target.id in self.dropped[member]:
                    return True
        return getattr(node, "name", None) in self.dropped[member]

    # All files

    def run(self) -> None:
        self.choose_names()
        merged = set(self.order)
        members = {one for ones in self.order.values() for one in ones} | (set(self.moves) & merged)
        product = [
            name for name in self.files if name not in members and ".migrations." not in name
        ]
        # Everything that is read is read before the first file is written.
        others: dict[str, File] = {}
        texts: list[str] = []
        for path in tracked(self.root):
            if path.startswith((f"{PACKAGE}/", "layout/")) and not path.endswith((".html", ".md")):
                if "/migrations/" in path:
                    texts.append(path)
                continue
            if path.endswith(".py"):
                others[path] = read(module_at(self.root, path))
            elif (
                path.endswith((".md", ".toml", ".cfg", ".ini", ".txt", ".html", ".yml", ".json"))
                or path == "Makefile"
            ):
                texts.append(path)
        for new, ones in self.order.items():
            self.rewrite_group(new, ones, {one: self.files[one] for one in ones}, merged=True)
        for name in product:
            self.rewrite_group(name, [name], {name: self.files[name]}, merged=False)
        for file in others.values():
            name = file.module.name
            self.rewrite_group(name, [name], {name: file}, merged=False)
        for path in texts:
            text = (self.root / path).read_text(encoding="utf-8")
            if path.endswith(("recorded.json", "bench.json", "CHANGELOG.md")):
                continue
            new_text = self.text(text)
            if path.endswith(".md"):  # two files of a list can have become one
                new_text = re.sub(r"(`[\w/.]+\.py`)((?:, | and )\1)+", r"\1", new_text)
            if new_text != text:
                (self.root / path).write_text(new_text, encoding="utf-8")


LAZY_TEXT = ("ext", "django.utils.translation", "gettext_lazy")
NOW_TEXT = ("ext", "django.utils.translation", "gettext")
VERBS = frozenset(
    [
        "read",
        "write",
        "check",
        "find",
        "build",
        "make",
        "get",
        "set",
        "add",
        "remove",
        "create",
        "delete",
        "update",
        "count",
        "insert",
        "send",
        "open",
        "close",
        "lock",
        "parse",
        "show",
        "apply",
        "record",
        "end",
        "start",
        "is",
        "has",
        "can",
        "of",
        "to",
        "from",
        "as",
        "with",
        "select",
        "load",
        "run",
    ]
)
DOTTED = re.compile(rf"(?:\b{PACKAGE}|\{{PACKAGE\}})(?:\.[A-Za-z_]\w*)+")
SHORT = re.compile(r"(?<=`)[a-z_]+(?:\.\w+)+(?=[`(])")  # a dotted name without the package
PATH = re.compile(
    rf"(?<![\w/.])({PACKAGE}/|\{{PACKAGE\}}/)?((?:[a-z_0-9]+/)*[a-z_0-9]+)\.py\b(:\w+)?"
)


def declared(tree: ast.Module) -> set[str]:
    """Return the names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id == "__all__":
                return set(ast.literal_eval(node.value))
    return set()


def quoted_types(tree: ast.Module) -> Iterator[tuple[str, ast.Constant]]:
    """Yield the types that are strings: the first argument of ``cast``, and parts of annotations."""
    for node in ast.walk(tree):
        places: list[ast.AST | None] = []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "cast"
        ):
            places = list(node.args[:1])
        elif isinstance(node, ast.arg | ast.AnnAssign):
            places = [node.annotation]
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            places = [node.returns]
        elif isinstance(node, ast.ClassDef):
            places = [
                one
                for base in node.bases
                if isinstance(base, ast.Subscript)
                for one in [base.slice]
            ]
        for place in filter(None, places):
            for one in ast.walk(place):
                if (
                    isinstance(one, ast.Constant)
                    and isinstance(one.value, str)
                    and one.value.isidentifier()
                ):
                    yield one.value, one


def source_of(edit: Edits, node: ast.AST) -> str:
    start, end = edit.lines(node.lineno, node.end_lineno)
    return edit.source[start:end]


def docstring_of(text: str) -> str:
    lines = wrapped(text, 94)
    return f'"""{lines[0]}"""' if len(lines) == 1 else '"""' + "\n".join(lines) + '\n"""'


def wrapped(text: str, width: int) -> list[str]:
    """Wrap the paragraphs of a text; lists, code and numbered lines stay."""
    result: list[str] = []
    for number, paragraph in enumerate(text.strip().split("\n\n")):
        if number:
            result.append("")
        lines = paragraph.splitlines()
        if any(re.match(r"(\s|[-*+] |\d+\. |[|])", line) for line in lines):
            for line in lines:
                indent = re.match(r"\s*(?:[-*+] |\d+\. )?", line)
                result += (
                    textwrap.wrap(
                        line.rstrip(),
                        width,
                        subsequent_indent=" " * len(indent[0]) if indent else "",
                        break_long_words=False,
                        break_on_hyphens=False,
                        drop_whitespace=True,
                    )
                    if len(line) > width
                    else [line.rstrip()]
                )
        else:
            result += textwrap.wrap(
                " ".join(lines), width, break_long_words=False, break_on_hyphens=False
            )
    return result


def comment_of(docstring: str, body: str, subject: str) -> str:
    """Return a module's docstring as a comment above its part, unless the part says the same."""
    head, _, rest = docstring.partition("\n\n")
    if subject and len(words(head) & words(subject)) >= 0.75 * len(words(head)):
        if not rest:
            return ""
        docstring = rest
    first = ast.parse(body).body if body else []
    heads = [
        ast.get_docstring(node) or ""
        for node in first
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
    ]
    if "\n\n" not in docstring and heads:
        mine = words(docstring)
        if any(len(mine & words(head)) >= 0.7 * len(mine) for head in heads):
            return ""
    lines = wrapped(docstring, 97)
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + "\n\n"


def words(text: str) -> set[str]:
    return {re.sub(r"s$", "", word) for word in re.findall(r"[a-z]{3,}", text.lower())}


def main(root: Path, plan: Path) -> None:
    merge = Merge(root, json.loads(plan.read_text()))
    merge.run()
    for kind, lines in merge.report.items():
        print(f"\n{kind} ({len(lines)})")
        for line in lines:
            print("  ", line)


if __name__ == "__main__":
    sys.setrecursionlimit(10_000)
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
