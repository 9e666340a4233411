"""Which scope each name of a module belongs to."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


@dataclass(eq=False)
class Scope:
    """A function, class or comprehension; None stands for the module."""

    node: ast.AST
    kind: str
    bound: set[str] = field(default_factory=set)
    uses_global: set[str] = field(default_factory=set)
    uses_nonlocal: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)


@dataclass
class Use:
    """One occurrence of a name, and the scopes around it, from the outermost."""

    node: ast.AST
    name: str
    scopes: tuple[Scope, ...]

    def owner(self) -> Scope | None:
        """Return the scope that binds the name, or None for the module or a builtin."""
        for depth, scope in enumerate(reversed(self.scopes)):
            if scope.kind == "class" and depth:
                continue
            if self.name in scope.uses_global:
                return None
            if self.name in scope.bound:
                return scope
        return None

    def hides(self, name: str) -> Scope | None:
        """Return the scope that would catch another name at this place."""
        return Use(self.node, name, self.scopes).owner()


class Names(ast.NodeVisitor):
    """Collects all uses of names of one module."""

    def __init__(self, tree: ast.Module) -> None:
        self.uses: list[Use] = []
        self.scope_of: dict[int, tuple[Scope, ...]] = {}
        self._stack: tuple[Scope, ...] = ()
        self.visit(tree)

    def visit(self, node: ast.AST) -> None:
        self.scope_of[id(node)] = self._stack
        super().visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        self.uses.append(Use(node, node.id, self._stack))

    def visit_Global(self, node: ast.Global) -> None:
        for name in node.names:
            self.uses.append(Use(node, name, self._stack))

    def _function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for one in node.decorator_list:
            self.visit(one)
        self._arguments_outside(node.args)
        if node.returns is not None:
            self.visit(node.returns)
        self._within(node, "function", node.body)

    visit_FunctionDef = _function
    visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._arguments_outside(node.args)
        self._within(node, "function", [node.body])

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for one in [
            *node.decorator_list,
            *node.bases,
            *[k.value for k in node.keywords],
        ]:
            self.visit(one)
        self._within(node, "class", node.body)

    def _comprehension(self, node: Comprehension) -> None:
        self.visit(node.generators[0].iter)
        scope = Scope(node, "comprehension")
        for one in node.generators:
            scope.bound |= _targets(one.target)
        outer, self._stack = self._stack, (*self._stack, scope)
        for number, one in enumerate(node.generators):
            self.visit(one.target)
            if number:
                self.visit(one.iter)
            for condition in one.ifs:
                self.visit(condition)
        if isinstance(node, ast.DictComp):
            self.visit(node.key)
            self.visit(node.value)
        else:
            self.visit(node.elt)
        self._stack = outer

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _arguments_outside(self, arguments: ast.arguments) -> None:
        for default in [*arguments.defaults, *filter(None, arguments.kw_defaults)]:
            self.visit(default)
        for one in _all_arguments(arguments):
            if one.annotation is not None:
                self.visit(one.annotation)

    def _within(self, node: ast.AST, kind: str, body: list[ast.AST] | list[ast.stmt]) -> None:
        scope = Scope(node, kind)
        if isinstance(node, Function):
            scope.parameters = {one.arg for one in _all_arguments(node.args)}
            scope.bound |= scope.parameters
        binder = _Binder(scope)
        for one in body:
            binder.visit(one)
        scope.bound -= scope.uses_global | scope.uses_nonlocal
        outer, self._stack = self._stack, (*self._stack, scope)
        for one in body:
            self.visit(one)
        self._stack = outer


def _all_arguments(arguments: ast.arguments) -> list[ast.arg]:
    found = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [*found, *filter(None, (arguments.vararg, arguments.kwarg))]


def _targets(node: ast.AST) -> set[str]:
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }


class _Binder(ast.NodeVisitor):
    """Collects what one scope binds, without what inner scopes bind."""

    def __init__(self, scope: Scope) -> None:
        self._bound = scope.bound
        self._scope = scope

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._bound.add(node.id)

    def _definition(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._bound.add(node.name)
        for one in node.decorator_list:
            self.visit(one)

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _definition

    def visit_Lambda(self, node: ast.Lambda) -> None:
        return

    def _comprehension(self, node: Comprehension) -> None:
        for one in ast.walk(node):  # an assignment expression binds in the function around it
            if isinstance(one, ast.NamedExpr):
                self._bound.add(one.target.id)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self._bound.add(alias.asname or alias.name.split(".")[0])

    visit_Import = visit_ImportFrom = _import

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.name:
            self._bound.add(node.name)
        self.generic_visit(node)

    def visit_MatchAs(self, node: ast.MatchAs) -> None:
        if node.name:
            self._bound.add(node.name)
        self.generic_visit(node)

    def visit_MatchStar(self, node: ast.MatchStar) -> None:
        if node.name:
            self._bound.add(node.name)

    def visit_MatchMapping(self, node: ast.MatchMapping) -> None:
        if node.rest:
            self._bound.add(node.rest)
        self.generic_visit(node)

    def visit_Global(self, node: ast.Global) -> None:
        self._scope.uses_global |= set(node.names)

    def visit_Nonlocal(self, node: ast.Nonlocal) -> None:
        self._scope.uses_nonlocal |= set(node.names)


def top_level_names(tree: ast.Module) -> set[str]:
    """Return what a module binds at its top level, imports included."""
    scope = Scope(tree, "module")
    binder = _Binder(scope)
    for node in tree.body:
        binder.visit(node)
    return scope.bound
