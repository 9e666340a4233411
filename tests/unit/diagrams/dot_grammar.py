"""A parser of the part of Graphviz' DOT language that the diagrams use. Anything else is an error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""\s*(?:(?P<string>"(?:[^"\\\n]|\\.)*")|(?P<word>[A-Za-z_][A-Za-z0-9_]*)|(?P<sign>->|[{}\[\]=,;]))""",
    re.ASCII,
)


@dataclass
class Dot:
    """The parsed diagram: nodes and edges with their attributes, and the cluster depth of each
    node.
    """

    nodes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    clusters: list[str] = field(default_factory=list)


def read(text: str) -> Dot:
    """Parse a digraph. Raises ValueError if it is none."""
    reader = _Reader(_tokens(text))
    reader.expect("digraph")
    reader.take()
    reader.block()
    if reader.tokens:
        raise ValueError(f"after the graph: {reader.tokens[0]}")
    return reader.found


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"no token: {text[at : at + 40]!r}")
        tokens.append(token[0].strip())
        at = token.end()
    return tokens


class _Reader:
    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.found = Dot()

    def take(self) -> str:
        return self.tokens.pop(0)

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise ValueError(f"{token!r} is missing before {self.tokens[:3]}")

    def block(self) -> None:
        self.expect("{")
        while self.tokens[0] != "}":
            self.statement()
        self.expect("}")

    def statement(self) -> None:
        first = self.take()
        if first == "subgraph":
            self.found.clusters.append(self.take())
            return self.block()
        if self.tokens[0] == "->":
            self.take()
            self.found.edges.append((first, self.take(), self.attributes()))
        else:
            attributes = self.attributes()
            if first not in {"graph", "node", "edge"}:
                self.found.nodes[first] = attributes
        return self.expect(";")

    def attributes(self) -> dict[str, str]:
        found = {}
        self.expect("[")
        while True:
            name = self.take()
            self.expect("=")
            found[name] = self.take()
            if self.take() == "]":
                return found
