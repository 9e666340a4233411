"""A small reference of dependency resolution, written from its specification. It has no counters
and recomputes everything each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

READY = "READY"
"""PENDING and QUEUED: the reference does not distinguish them."""
ENDED = frozenset({"SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED", "DELETED"})
AGAIN = frozenset({"FAILED", "CANCELLED", "SKIPPED", "EXPIRED"})
_ASKED = {"MUST_SUCCEED": {"SUCCESS"}, "MUST_FAIL": {"FAILED"}, "MUST_FINISH": ENDED}


@dataclass
class Edge:
    """One dependency of a task. ``ending`` is how the upstream ended, as far as it was resolved for
    this edge, or FORCED.
    """

    kind: str
    policy: str
    ending: str | None = None

    @property
    def met(self) -> bool:
        """Return whether the resolved ending meets this dependency."""
        return self.ending == "FORCED" or (
            self.ending is not None and (self.ending in _ASKED[self.kind] or self.policy == "RUN")
        )

    @property
    def holds(self) -> bool:
        """Return whether it still blocks its task: it is unresolved, or waits for another ending."""
        return self.ending is None or (not self.met and self.policy == "WAIT")


@dataclass
class Node:
    """One task. ``join`` None means all edges. ``doomed``: it ended only because of an upstream."""

    status: str = "BLOCKED"
    join: int | None = None
    policy: str = "SKIP"
    edges: dict[str, Edge] = field(default_factory=dict)
    gates: set[str] = field(default_factory=set)
    doomed: bool = False
    asked: bool = False

    def lost(self, back: Iterable[str] = ()) -> bool:
        """Return whether the join can no longer be met, assuming that these upstreams run again."""
        dead = [
            name
            for name, edge in self.edges.items()
            if name not in back and not edge.holds and not edge.met
        ]
        return len(self.edges) - len(dead) < (len(self.edges) if self.join is None else self.join)

    @property
    def needs(self) -> int:
        """Return how many edges and gates it still needs."""
        if self.join is None:
            return len(self.gates) + sum(edge.holds for edge in self.edges.values())
        return len(self.gates) + max(0, self.join - sum(edge.met for edge in self.edges.values()))

    def end(self, status: str, *, doomed: bool = False) -> None:
        """Change to an ended status."""
        self.status, self.doomed, self.asked = status, doomed, False

    def wait(self) -> None:
        """Wait for the unmet dependencies. Without any, it is ready."""
        self.status, self.doomed, self.asked = "BLOCKED" if self.needs else READY, False, False


class Graph:
    """All tasks by name, in the order of their creation."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def waiting_for(self, name: str) -> dict[str, Edge]:
        """Return the tasks that wait for this one, with their edges. Edges that wait for a failure
        are left out.
        """
        found = {key: self.nodes[key].edges[name] for key in self.below([name])}
        return {key: edge for key, edge in found.items() if edge.holds and edge.kind != "MUST_FAIL"}

    def below(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return the tasks that wait for any of these: their names, and the upstreams they wait
        for.
        """
        found = {
            key: [name for name in names if name in node.edges] for key, node in self.nodes.items()
        }
        return {key: above for key, above in found.items() if above}

    def waits_for(self, low: str, high: str) -> bool:
        """Return whether one task depends on the other, directly or indirectly."""
        seen, rest = set(), [low]
        while rest:
            name = rest.pop()
            if name == high:
                return True
            if name not in seen and name in self.nodes:
                seen.add(name)
                rest += self.nodes[name].edges
        return False

    # What happens ---------------------------------------------------------------------------------

    def resolve(self, names: Iterable[str]) -> None:
        """Resolve the endings of these tasks. Tasks that wait for them become ready, keep waiting,
        or end. The endings of those are not resolved.
        """
        ended = {
            name: self.nodes[name].status for name in names if self.nodes[name].status in ENDED
        }
        for key, above in self.below(ended).items():
            node, news = self.nodes[key], []
            for name in node.edges:  # in the order in which they were added
                if name in above and node.edges[name].holds:
                    node.edges[name].ending = ended[name]
                    news.append(node.edges[name])
            if node.status == "BLOCKED":
                self._decide(node, news)

    def _decide(self, node: Node, news: Iterable[Edge] = ()) -> None:
        if node.lost():
            bad = [edge.policy for edge in news if not edge.met and not edge.holds] or [node.policy]
            node.end("FAILED" if bad[0] == "FAIL" else "SKIPPED", doomed=True)
        elif not node.needs:
            node.status = READY

    def replay(self, names: Iterable[str]) -> set[str]:
        """Run these tasks again, and with them the tasks that ended because of them, unless another
        upstream prevents it.
        """
        wanted = {name for name in names if self.nodes[name].status in AGAIN}
        back = self._coming_back(wanted, wanted)
        if wanted & back:
            self._bring(back)
        return back if wanted & back else set()

    def force_run(self, names: Iterable[str]) -> set[str]:
        """Run these tasks whatever their upstreams became."""
        forced = {name for name in names if self.nodes[name].status in ("BLOCKED", "SKIPPED")}
        skipped = {name for name in forced if self.nodes[name].status == "SKIPPED"}
        for name in forced:
            node = self.nodes[name]
            node.gates.clear()
            for edge in node.edges.values():
                edge.ending = edge.ending if edge.met else "FORCED"
            node.end(READY)
        self._bring(self._coming_back(skipped, set()) | skipped, skipped)
        return forced

    def complete(self, names: Iterable[str]) -> set[str]:
        """Force-complete these tasks. Tasks that ended because of them wait for the new ending."""
        done = {name for name in names if self.nodes[name].status != "SUCCESS"}
        for name in done:
            self.nodes[name].end("SUCCESS")
        self._bring(self._coming_back(done, set()) | done, done)
        return done

    def _coming_back(self, sources: set[str], unsure: set[str]) -> set[str]:
        """Return the sources and the tasks that ended because of them. ``unsure``: sources that
        other tasks may contradict.
        """
        reached = set(sources)
        while True:
            more = {key for key in self.below(reached) if self.nodes[key].doomed} - reached
            if not more:
                break
            reached |= more
        back = set(reached)
        while True:
            leaving = {key for key in back - (sources - unsure) if self.nodes[key].lost(back)}
            if not leaving:
                return self._hanging_on(sources & back, back)
            back -= leaving

    def _hanging_on(self, sources: set[str], back: set[str]) -> set[str]:
        found = set(sources)
        while more := {key for key in self.below(found) if key in back} - found:
            found |= more
        return found

    def _bring(self, back: set[str], sources: Iterable[str] = ()) -> None:
        for key, above in self.below(back).items():
            for name in above:
                self.nodes[key].edges[name].ending = None
        for key in back - set(sources):
            self.nodes[key].wait()

    def link(self, name: str, upstreams: dict[str, Edge]) -> None:
        """Add upstreams to a task. Endings of the upstreams are resolved at once if the edge asks
        for them.
        """
        node = self._called_back(name)
        for key, edge in upstreams.items():
            status = self.nodes[key].status
            edge.ending = status if status in ENDED else None
            edge.ending = edge.ending if edge.met else None
            node.edges[key] = edge
        if node.needs:
            node.status = "BLOCKED"
        elif node.status == "BLOCKED":
            self._decide(node)

    def unlink(self, name: str, upstreams: Iterable[str]) -> None:
        """Remove upstreams of a task. Its join needs at most the remaining ones."""
        node = self.nodes[name]
        for key in upstreams:
            node.edges.pop(key, None)
        if node.join is not None and node.join >= len(node.edges):
            node.join = None
        self._decide(node)

    def hold(self, name: str, gate: str) -> None:
        """Add a manual gate to a task."""
        self._called_back(name).gates.add(gate)
        self.nodes[name].status = "BLOCKED"

    def _called_back(self, name: str) -> Node:
        """Reset waived edges of a task that is blocked again."""
        node = self.nodes[name]
        if node.status == READY and node.lost():
            for edge in node.edges.values():
                edge.ending = edge.ending if edge.met or edge.holds else "FORCED"
        return node

    def open(self, name: str, gate: str) -> None:
        """Open a gate."""
        self.nodes[name].gates.discard(gate)
        if self.nodes[name].status == "BLOCKED":
            self._decide(self.nodes[name])
