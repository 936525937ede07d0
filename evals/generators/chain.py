"""A chain whose every step needs the result of the one before: a pointer to follow and a running sum to keep.

A link reads ``[abcd>efgh+3]``; the last node of a chain reads ``[efgh>stop]``. Asked ``! abcd``, the answer walks the
chain and carries the sum modulo ten: ``abcd>efgh+3=3 efgh>ijkl+9=2 ijkl>stop``.
"""

from __future__ import annotations

import random
from itertools import pairwise

from longdecode.evals.generators.episode import Episode
from longdecode.evals.generators.lookup import key, record_count
from longdecode.evals.generators.prose import Filler, distinct, filler, hide

_LINK_BYTES = len("[abcd>efgh+3] ")


def chain(rng: random.Random, steps: int, total_bytes: int, fill: Filler = filler) -> Episode:
    """One chain to walk among others of the same length, in exactly ``total_bytes`` bytes.

    ``items`` holds one entry a step, the last of which carries the final sum.
    """
    question_bytes = len("\n! abcd\n")
    answer_bytes = steps * len("abcd>efgh+3=3 ") + len("abcd>stop\n")
    room = total_bytes - question_bytes - answer_bytes
    chains = max(1, min(record_count(total_bytes), room // _LINK_BYTES) // (steps + 1))
    records, starts, links = weave(rng, chains, steps)
    start = rng.choice(starts)
    items, end = walk(start, links)
    prompt = hide(rng, records, room, fill)
    return Episode(prompt, f"\n! {start}\n", " ".join((*items, f"{end}>stop")) + "\n", items)


def weave(rng: random.Random, chains: int, steps: int) -> tuple[list[str], list[str], dict[str, tuple[str, int]]]:
    """Records of several disjoint chains, their first nodes, and the links ``node -> (next node, amount)``."""
    names = iter(distinct(key, rng, chains * (steps + 1)))
    records: list[str] = []
    starts: list[str] = []
    links: dict[str, tuple[str, int]] = {}
    for _ in range(chains):
        nodes = [next(names) for _ in range(steps + 1)]
        starts.append(nodes[0])
        for node, successor in pairwise(nodes):
            links[node] = (successor, rng.randrange(10))
            records.append(f"{node}>{successor}+{links[node][1]}")
        records.append(f"{nodes[-1]}>stop")
    return records, starts, links


def walk(start: str, links: dict[str, tuple[str, int]]) -> tuple[tuple[str, ...], str]:
    """The steps from ``start`` to the end of its chain, and the end node."""
    items: list[str] = []
    node, total = start, 0
    while node in links:
        successor, amount = links[node]
        total = (total + amount) % 10
        items.append(f"{node}>{successor}+{amount}={total}")
        node = successor
    return tuple(items), node


def marks(items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
    """Which steps, by place, the first line of a completion gives exactly."""
    given = completion.split("\n", 1)[0].split()
    return tuple(i < len(given) and given[i] == item for i, item in enumerate(items))
