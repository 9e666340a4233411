"""Canvases that Celery runs with plain tasks and the package with their durable equivalents: name
and construction.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import chain, chord, group


@dataclass(frozen=True, slots=True)
class Maker:
    """Creates the signatures of one canvas, of plain or of durable tasks."""

    step: Any
    mapped: Any
    book: str

    def __call__(self, label: str, *args: Any, **kwargs: Any) -> Any:
        """Return a signature that takes the result of its predecessor."""
        return self.step.s(*args, label=label, book=self.book, **kwargs)

    def alone(self, label: str, *args: Any, **kwargs: Any) -> Any:
        """Return an immutable signature."""
        return self.step.si(*args, label=label, book=self.book, **kwargs)

    def failing(self, label: str, *args: Any) -> Any:
        """Return a signature of a task that fails."""
        return self.step.s(*args, label=label, book=self.book, fail=True)

    def items(self, number: int) -> list[tuple[str, int]]:
        """Return arguments of the mapped task."""
        return [(self.book, item) for item in range(number)]


def linked(part: Any, *links: Any) -> Any:
    """Return a part with these callbacks."""
    for link in links:
        part.link(link)
    return part


def guarded(part: Any, *errbacks: Any) -> Any:
    """Return a part with these errbacks."""
    for errback in errbacks:
        part.link_error(errback)
    return part


PASSING: dict[str, Callable[[Maker], Any]] = {
    "one task": lambda t: t("a", 1, x=2),
    "a chain of partials": lambda t: chain(t("a", 1), t("b", 2), t("c", 3, x=1)),
    "an immutable link of a chain": lambda t: chain(t("a", 1), t.alone("b", 2), t("c", 3)),
    "a chain of chains": lambda t: chain(
        chain(t("a"), t("b")), t("c"), chain(t("d"), chain(t("e"), t("f")))
    ),
    "a group": lambda t: group(t("a", 1), t("b", 2), t("c", 3)),
    "a group of groups": lambda t: group(t("a"), group(t("b"), group(t("c"), t("d"))), t("e")),
    "a group from a generator": lambda t: chain(t("a"), group(t("b", n) for n in range(4)), t("c")),
    "a group in a chain": lambda t: chain(
        t("a", 1), group(t("b", 2), t.alone("c"), t("d")), t("e", 5)
    ),
    "a group after a task": lambda t: t("a") | group(t("b"), t("c")),
    "a group before a task": lambda t: group(t("a"), t("b")) | t("c", 7),
    "a group after a group": lambda t: group(t("a"), t("b")) | group(t("c"), t("d")),
    "a chain of groups": lambda t: (
        group(t("a"), t("b")) | group(t("c"), t("d")) | t("e") | group(t("f"), t("g"))
    ),
    "three groups": lambda t: chain(
        group(t("a"), t("b")), group(t("c"), t("d")), group(t("e"), t("f")), t("g")
    ),
    "two wide groups": lambda t: chain(
        group(t("a", n) for n in range(11)), group(t("b", n) for n in range(11)), t("c")
    ),
    "a group of one by |": lambda t: group(t("a")) | t("b"),
    "a group of one in a chain": lambda t: chain(t("a"), group(t("b")), t("c")),
    "a group of chains": lambda t: (
        group(chain(t("a"), t("b")), chain(t("c"), t.alone("d"), t("e"))) | t("f")
    ),
    "an empty group in a chain": lambda t: chain(t("a"), group(), t("b")),
    "an empty chain in a group": lambda t: chain(t("a"), group(chain(), t("b"), t("c")), t("d")),
    "a chord": lambda t: chord([t("a", 1), t("b", 2)], t("c", 3)),
    "a chord with an immutable body": lambda t: chord([t("a"), t("b")], t.alone("c", 3)),
    "a chord with an empty header": lambda t: chain(t("a"), chord([], t("b"))),
    "a chord with arguments": lambda t: chord([t("a", 1), t("b"), t.alone("c")], t("d")).clone(
        (7,)
    ),
    "a chord in a chain": lambda t: chain(t("a"), chord([t("b"), t("c", 1)], t("d", 2)), t("e")),
    "a chord whose body is a chain": lambda t: chord(
        [t("a"), t("b")], chain(t("c"), t("d"), t("e"))
    ),
    "a chord whose body is a group": lambda t: (
        chord([t("a"), t("b")], group(t("c"), t("d"))) | t("e")
    ),
    "a chord of chords": lambda t: chord(
        [chord([t("a"), t("b")], t("c")), chord([t("d"), t("e")], t("f"))], t("g")
    ),
    "a chord whose body is a chord": lambda t: chord(
        [t("a"), t("b")], chord([t("c"), t("d")], t("e"))
    ),
    "chords in a chain": lambda t: chain(
        chord([t("a"), t("b")], t("c")), chord([t("d"), t("e")], t("f")), t("g")
    ),
    "chains in a header": lambda t: chord(
        [chain(t("a"), t("b")), t("c"), chain(t("d"), t("e"))], t("f")
    ),
    "groups in a header": lambda t: chord(
        [t("a"), group(t("b"), t("c"), group(t("d"), t("e"))), t("f")], t("g")
    ),
    "a header that ends in a group": lambda t: chord(
        [t("a"), chain(t("b"), group(t("c"), t("d"))), t("e")], t("f")
    ),
    "a header with a chord of groups": lambda t: chord(
        [t("a"), chord([t("b")], group(t("c"), t("d")))], t("e")
    ),
    "four deep": lambda t: chain(
        t("a"),
        chord(
            [
                chain(t("b"), chord([t("c"), group(t("d"), t("e"))], chain(t("f"), t("g")))),
                group(t("h"), t("i")),
            ],
            chain(t("j"), group(t("k"), chain(t("l"), t.alone("m"))), t("n")),
        ),
        t("o", 1),
    ),
    "a map": lambda t: chain(t("a"), t.mapped.map(t.items(3)), t("b")),
    "a starmap": lambda t: chain(t("a"), t.mapped.starmap(t.items(3)), t("b")),
    "an empty starmap": lambda t: chain(t("a"), t.mapped.starmap([]), t("b")),
    "a starmap in a header": lambda t: chord(
        [t("a"), t.mapped.starmap(t.items(3)), t("b")], t("c")
    ),
    "chunks": lambda t: t.mapped.chunks(t.items(5), 2),
    "chunks as a group": lambda t: chain(t("a"), t.mapped.chunks(t.items(5), 2).group(), t("b")),
    "a link": lambda t: chain(linked(t("a"), t("l", 1), t.alone("m")), t("b")),
    "a link of a chain": lambda t: linked(chain(t("a"), t("b")), t("l", 1)),
    "a link of a group": lambda t: linked(group(t("a", 1), t("b")), t("l", 1)),
    "a link of a chord": lambda t: linked(chord([t("a"), t("b")], t("c")), t("l", 1)),
    "a link that is a canvas": lambda t: linked(
        t("a"), chain(t("l"), group(t("m"), t("n")), t("o"))
    ),
    "a link of a link": lambda t: linked(t("a"), linked(t("l"), t("m"))),
    "a link by an option of a chord": lambda t: chord([t("a")], group(t("b"), t("c"))).set(
        link=[t("l", 1)]
    ),
    "a chain link on a group": lambda t: chain(
        t("a"), group(linked(t("b"), t("x")), t("c")), link=[t("l")]
    ),
    "a link of a chain that ends in a chord": lambda t: linked(
        chain(t("a"), chord([t("b"), t("c")], t("d"))), t("l")
    ),
    "a link of a chain that ends in a chord of groups": lambda t: linked(
        chain(t("a"), chord([t("b"), t("c")], group(t("d"), t("f")))), t("l")
    ),
    "a chain with options": lambda t: chain(
        t("a"), group(t("b"), t("c")), t("d"), link_error=[t("e")]
    ),
    "a link of a chain with options": lambda t: chain(
        t("a"), chain(t("b"), t("c")), group(t("d")), t("f"), link=[t("l")]
    ),
    "a chain as a header": lambda t: chord(chain(t("a"), t("b")), t("c")),
    "a task as a header": lambda t: chord(t("a"), t("c")),
    "a header from a generator": lambda t: chord((t("a", n) for n in range(3)), t("c")),
    "links of members": lambda t: group(
        linked(chain(t("a"), t("b")), t("l")), linked(chord([t("c")], t("d")), t("m"))
    ),
    "a link of an inner chain": lambda t: chain(
        t("a"), linked(chain(t("b"), t("c")), t("l")), t("d")
    ),
    "a link by an option of a group": lambda t: group(
        t("a"), chain(group(t("b"), t("c")), t("d")), link=[t("l")]
    ),
    "maps in a chain": lambda t: chain(
        t("a"), t.mapped.map([(t.book, 1)]), t.mapped.starmap(t.items(1)), t("b")
    ),
    "a link of a map": lambda t: linked(t.mapped.starmap(t.items(2)), t("l", 1)),
    "chunks as a link": lambda t: linked(t("a"), t.mapped.chunks(t.items(3), 2)),
    "chunks in a group": lambda t: group(t("a"), t.mapped.chunks(t.items(3), 2)),
    "a body that is a group of one": lambda t: chain(
        t("a"), chord([t("b")], group(t("c"))), t("d")
    ),
    "a group of a group of one": lambda t: chain(t("a"), group(group(t("b"))), t("d")),
    "chords and groups": lambda t: (
        group(t("a"), t("b")) | chord([t("c"), t("d")], t("e")) | group(t("f"), t("g")) | t("h")
    ),
    "a body that is an empty group": lambda t: chord([t("a"), t("b")], group()) | t("z"),
    "a group of chains of groups": lambda t: chain(
        t("a"), group(chain(group(t("b"), t("c")), group(t("d"), t("e"))), t("f")), t("g")
    ),
    "empty parts in a chain": lambda t: chain(group(), t("a"), chain(), t("b")),
    "an empty chain in a header": lambda t: chord([t("a"), chain()], t("z")),
    "a canvas that went through JSON": lambda t: json.loads(
        json.dumps(chain(t("a"), group(t("b"), t("c")), t("d").on_error(t("e"))))
    ),
}
"""Canvases that succeed."""

FAILING: dict[str, Callable[[Maker], Any]] = {
    "a chain stops": lambda t: chain(t("a"), t.failing("b"), t("c"), t("d")),
    "a chord without its body": lambda t: chord([t("a"), t.failing("b")], t("c")) | t("d"),
    "a link of what fails": lambda t: linked(t.failing("a"), t("l")),
    "an errback": lambda t: chain(t.failing("a").on_error(t("e", 1, x=2)), t("b").on_error(t("f"))),
    "an immutable errback": lambda t: t.failing("a").on_error(t.alone("e", 1)),
    "an errback that is not needed": lambda t: t("a").on_error(t("e")),
    "two errbacks": lambda t: guarded(t.failing("a"), t("e"), t("f"), t("e")),
    "an errback with a link": lambda t: t.failing("a").on_error(linked(t("e"), t("l"))),
    "an errback with an errback": lambda t: t.failing("a").on_error(
        t.failing("e").on_error(t("f"))
    ),
    "an errback of a chain": lambda t: chain(t("a"), t.failing("b"), t("c")).on_error(t("e")),
    "an errback of an inner chain": lambda t: chain(
        t("a"), chain(t.failing("b"), t("c")).on_error(t("e")), t("d")
    ),
    "an errback of a group": lambda t: guarded(
        group(t.failing("a"), t("b"), t.failing("c")), t("e")
    ),
    "an errback of a chain with a group": lambda t: chain(
        t("a"), group(t.failing("b"), t("c"))
    ).on_error(t("e")),
    "an errback by an option of a group": lambda t: group(
        t.failing("a").on_error(t("f")), t("b"), link_error=[t("e")]
    ),
    "an errback in a header": lambda t: chord([t("a"), t.failing("b").on_error(t("e"))], t("c")),
    "an errback of a body that fails": lambda t: chord(
        [t("a"), t("b")], t.failing("c").on_error(t("e"))
    ),
    "an errback of a body whose header fails": lambda t: chord(
        [t("a"), t.failing("b")], t("c").on_error(t("e"))
    ),
    "an errback of a body whose header fails twice": lambda t: chord(
        [t.failing("a"), t.failing("b")], t("c").on_error(t("e"))
    ),
    "an errback of a body whose header fails in a chain": lambda t: chord(
        [t("a"), chain(t("b"), t.failing("c"), t("d"))], t("f").on_error(t("e"))
    ),
    "an errback of a body whose chord was never reached": lambda t: chain(
        t.failing("a"), chord([t("b"), t("c")], t("d").on_error(t("e")))
    ),
    "an errback of a chord": lambda t: chord([t("a"), t.failing("b")], t("c")).on_error(t("e")),
    "an errback of a body that is a chain": lambda t: chord(
        [t.failing("a")], chain(t("b"), t("c")).on_error(t("e"))
    ),
    "an errback of a body that is a group": lambda t: chord(
        [t.failing("a")], group(t("b"), t("c"))
    ).on_error(t("e")),
    "an errback of a chain with a chord": lambda t: chain(
        t("a"), chord([t("b"), t.failing("c")], t("d")), t("f")
    ).on_error(t("e")),
    "an errback of a chord in a header": lambda t: chord(
        [chord([t("a"), t("b")], t.failing("c")).on_error(t("e")), t("d")], t("f").on_error(t("g"))
    ),
    "an errback of a map": lambda t: t.mapped.starmap(
        [*t.items(2), (t.book, "fail"), (t.book, 3)]
    ).on_error(t("e")),
    "an errback of a chord as a body": lambda t: chord(
        [t.failing("a")], chord([t("b"), t("c")], t("d").on_error(t("e")))
    ),
    "an errback of the first task of a body in a chain": lambda t: chain(
        t("o"), chord([t.failing("a")], chain(t("b").on_error(t("e")), t("c")))
    ),
    "an errback of a body whose header ends in a group": lambda t: chord(
        [chain(t("a"), group(t.failing("b"), t("c")))], t("z").on_error(t("e"))
    ),
    "an errback of a chain that ends in a chord of groups": lambda t: chain(
        t("a"), chord([t("b"), t("c")], group(t.failing("d"), t("f")))
    ).on_error(t("e")),
    "an errback of a chain with a chord of chords": lambda t: chain(
        t("o"), chord([chord([t("a")], t.failing("b")), t("c")], t("d"))
    ).on_error(t("e")),
    "an errback of a chain with a chord of chords that fails": lambda t: chain(
        t("o"), chord([chord([t("a")], t("b")), t("c")], t.failing("d"))
    ).on_error(t("e")),
    "an errback of the body of a body": lambda t: chord(
        [t("a"), t("b")], chord([t.failing("c")], t("d").on_error(t("e")))
    ),
    "an errback of a chain with options": lambda t: chain(
        t("a"), group(t("b"), t.failing("c")), t("d"), t("f"), link_error=[t("e")]
    ),
    "an errback of a body whose map fails": lambda t: chord(
        [t("a"), t.mapped.starmap([*t.items(2), (t.book, "fail")])], t("z").on_error(t("e"))
    ),
    "an errback of a body whose header is empty and never reached": lambda t: chain(
        t.failing("a"), chord([], t("z").on_error(t("e")))
    ),
    "an errback of a chain in a group with another": lambda t: group(
        chain(t("a"), t.failing("b"), link_error=[t("e")]), link_error=[t("f")]
    ),
    "an errback by an option of a chord": lambda t: chord(
        [t("a")], group(t.failing("b"), t("c")), link_error=[t("e")]
    ),
    "an errback by an option of a chord whose header fails": lambda t: chord(
        [t.failing("a")], group(t("b").on_error(t("f")), t("c")), link_error=[t("e")]
    ),
}
"""Canvases with a failure."""

FORGOTTEN: dict[str, Callable[[Maker], Any]] = {
    "the body of a header that fails in a header": lambda t: chord(
        [chord([t("a"), t.failing("b")], t("c")), t("d")], t("f").on_error(t("e"))
    ),
    "the body of a header whose chain holds a chord that fails": lambda t: chord(
        [chain(t("a"), chord([t.failing("b")], t("c"))), t("d")], t("f").on_error(t("e"))
    ),
    "the first task of a body that is a chain": lambda t: chord(
        [t.failing("a")], chain(t("b").on_error(t("e")), t("c"))
    ),
}
"""Canvases with a failure whose errback ``e`` of the body is never called by Celery 5.7."""
