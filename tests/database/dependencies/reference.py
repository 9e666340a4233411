"""A small reference of the graph, written from its description: no counters, everything is looked
up anew each time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

READY = "READY"
"""PENDING and QUEUED: the reference does not care which."""
ENDED = frozenset({"SUCCESS", "FAILED", "CANCELLED", "SKIPPED", "EXPIRED", "DELETED"})
AGAIN = frozenset({"FAILED", "CANCELLED", "SKIPPED", "EXPIRED"})
_ASKED = {"MUST_SUCCEED": {"SUCCESS"}, "MUST_FAIL": {"FAILED"}, "MUST_FINISH": ENDED}


@dataclass
class Edge:
    """What one task waits for: ``heard`` is how the upstream ended, as far as this edge was told;
    or FORCED.
    """

    kind: str
    policy: str
    heard: str | None = None

    @property
    def met(self) -> bool:
        """Whether it heard what it waits for."""
        return self.heard == "FORCED" or (
            self.heard is not None and (self.heard in _ASKED[self.kind] or self.policy == "RUN")
        )

    @property
    def holds(self) -> bool:
        """Whether it still holds its task: it heard nothing, or waits for something better."""
        return self.heard is None or (not self.met and self.policy == "WAIT")


@dataclass
class Node:
    """One task: ``join`` None means all edges; ``doomed``: it ended only because of an upstream."""

    status: str = "BLOCKED"
    join: int | None = None
    policy: str = "SKIP"
    edges: dict[str, Edge] = field(default_factory=dict)
    gates: set[str] = field(default_factory=set)
    doomed: bool = False
    asked: bool = False

    def lost(self, back: Iterable[str] = ()) -> bool:
        """Whether the join cannot be met any more, once these upstreams are back."""
        dead = [
            name
            for name, edge in self.edges.items()
            if name not in back and not edge.holds and not edge.met
        ]
        return len(self.edges) - len(dead) < (len(self.edges) if self.join is None else self.join)

    @property
    def needs(self) -> int:
        """How many edges and gates it still needs."""
        if self.join is None:
            return len(self.gates) + sum(edge.holds for edge in self.edges.values())
        return len(self.gates) + max(0, self.join - sum(edge.met for edge in self.edges.values()))

    def end(self, status: str, *, doomed: bool = False) -> None:
        """Come to an end."""
        self.status, self.doomed, self.asked = status, doomed, False

    def wait(self) -> None:
        """Wait for whatever it needs; it is ready where that is nothing."""
        self.status, self.doomed, self.asked = "BLOCKED" if self.needs else READY, False, False


class Graph:
    """All tasks by name, in the order of their birth."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}

    def waiting_for(self, name: str) -> dict[str, Edge]:
        """Return who waits for this one, by what edge, and would wait for what it adds; not who
        waits for a failure.
        """
        found = {key: self.nodes[key].edges[name] for key in self.below([name])}
        return {key: edge for key, edge in found.items() if edge.holds and edge.kind != "MUST_FAIL"}

    def below(self, names: Iterable[str]) -> dict[str, list[str]]:
        """Return who waits for these: their names, and for which."""
        found = {
            key: [name for name in names if name in node.edges] for key, node in self.nodes.items()
        }
        return {key: above for key, above in found.items() if above}

    def waits_for(self, low: str, high: str) -> bool:
        """Whether one waits for the other, directly or not."""
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

    def tell(self, names: Iterable[str]) -> None:
        """Those who wait for these hear how they ended, and go on, wait, or end too; what they
        become is not told.
        """
        ended = {
            name: self.nodes[name].status for name in names if self.nodes[name].status in ENDED
        }
        for key, above in self.below(ended).items():
            node, news = self.nodes[key], []
            for name in node.edges:  # in the order in which they were added
                if name in above and node.edges[name].holds:
                    node.edges[name].heard = ended[name]
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
        """These run again, and with them what ended for want of them, unless something else stands
        against it.
        """
        wanted = {name for name in names if self.nodes[name].status in AGAIN}
        back = self._coming_back(wanted, wanted)
        if wanted & back:
            self._bring(back)
        return back if wanted & back else set()

    def force_run(self, names: Iterable[str]) -> set[str]:
        """These run whatever their upstreams say."""
        forced = {name for name in names if self.nodes[name].status in ("BLOCKED", "SKIPPED")}
        skipped = {name for name in forced if self.nodes[name].status == "SKIPPED"}
        for name in forced:
            node = self.nodes[name]
            node.gates.clear()
            for edge in node.edges.values():
                edge.heard = edge.heard if edge.met else "FORCED"
            node.end(READY)
        self._bring(self._coming_back(skipped, set()) | skipped, skipped)
        return forced

    def complete(self, names: Iterable[str]) -> set[str]:
        """Somebody calls these done: what ended for want of them waits to hear of it."""
        done = {name for name in names if self.nodes[name].status != "SUCCESS"}
        for name in done:
            self.nodes[name].end("SUCCESS")
        self._bring(self._coming_back(done, set()) | done, done)
        return done

    def _coming_back(self, sources: set[str], unsure: set[str]) -> set[str]:
        """Return the sources and what ended for want of them; ``unsure``: sources that others may
        stand against.
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
                self.nodes[key].edges[name].heard = None
        for key in back - set(sources):
            self.nodes[key].wait()

    def link(self, name: str, upstreams: dict[str, Edge]) -> None:
        """One task waits for more upstreams: what they became is heard at once where it is what it
        waits for.
        """
        node = self._called_back(name)
        for key, edge in upstreams.items():
            status = self.nodes[key].status
            edge.heard = status if status in ENDED else None
            edge.heard = edge.heard if edge.met else None
            node.edges[key] = edge
        if node.needs:
            node.status = "BLOCKED"
        elif node.status == "BLOCKED":
            self._decide(node)

    def unlink(self, name: str, upstreams: Iterable[str]) -> None:
        """One task does not wait for these any more; it needs no more than what is left."""
        node = self.nodes[name]
        for key in upstreams:
            node.edges.pop(key, None)
        if node.join is not None and node.join >= len(node.edges):
            node.join = None
        self._decide(node)

    def hold(self, name: str, gate: str) -> None:
        """One task waits for a person."""
        self._called_back(name).gates.add(gate)
        self.nodes[name].status = "BLOCKED"

    def _called_back(self, name: str) -> Node:
        """What could not stand against a task that was let go stays waived when it has to wait for
        something new.
        """
        node = self.nodes[name]
        if node.status == READY and node.lost():
            for edge in node.edges.values():
                edge.heard = edge.heard if edge.met or edge.holds else "FORCED"
        return node

    def open(self, name: str, gate: str) -> None:
        """The person spoke."""
        self.nodes[name].gates.discard(gate)
        if self.nodes[name].status == "BLOCKED":
            self._decide(self.nodes[name])
