"""A chain whose every step needs the result of the one before: a pointer to follow and a running sum to keep.

A link reads ``[abcd>efgh+3]``; the last node of a chain reads ``[efgh>stop]``. Asked ``! abcd``, the answer walks the
chain and carries the sum modulo ten: ``abcd>efgh+3=3 efgh>ijkl+9=2 ijkl>stop``.
"""

from __future__ import annotations

import random
from itertools import pairwise

from longdecode.evals.generators.lookup import BYTES, Wording, record_count, wording_of
from longdecode.evals.generators.prose import Episode, distinct, hide


def chain(rng: random.Random, steps: int, total_chars: int, wording: Wording = BYTES) -> Episode:
    """Make one chain to walk among others of the same length, in at most ``total_chars`` characters.

    ``items`` holds one entry a step, the last of which carries the final sum.

    Raises:
        ValueError: the chain does not fit.
    """
    key = wording.typical_key
    step = _step(wording, key, key, 3, 3)
    answer_chars = len(wording.answer([step] * steps + [wording.stop.format(key=key)]))
    room = total_chars - len(wording.question("!", [key])) - answer_chars
    chains = max(1, min(record_count(total_chars, wording), room // wording.link_chars) // (steps + 1))
    records, starts, links = weave(rng, chains, steps, wording)
    start = rng.choice(starts)
    items, end = walk(start, links, wording)
    prompt = hide(rng, records, room)
    answer = wording.answer((*items, wording.stop.format(key=end)))
    return Episode(prompt, wording.question("!", [start]), answer, items)


def weave(
    rng: random.Random, chains: int, steps: int, wording: Wording = BYTES
) -> tuple[list[str], list[str], dict[str, tuple[str, int]]]:
    """Return records of several disjoint chains, their first nodes, and the links ``node -> (next node, amount)``."""
    names = iter(distinct(wording.make_key, rng, chains * (steps + 1)))
    records: list[str] = []
    starts: list[str] = []
    links: dict[str, tuple[str, int]] = {}
    for _ in range(chains):
        nodes = [next(names) for _ in range(steps + 1)]
        starts.append(nodes[0])
        for node, successor in pairwise(nodes):
            links[node] = (successor, rng.randrange(10))
            records.append(wording.link.format(key=node, target=successor, amount=links[node][1]))
        records.append(wording.stop.format(key=nodes[-1]))
    return records, starts, links


def walk(start: str, links: dict[str, tuple[str, int]], wording: Wording = BYTES) -> tuple[tuple[str, ...], str]:
    """Return the steps from ``start`` to the end of its chain, and the end node."""
    items: list[str] = []
    node, total = start, 0
    while node in links:
        successor, amount = links[node]
        total = (total + amount) % 10
        items.append(_step(wording, node, successor, amount, total))
        node = successor
    return tuple(items), node


def marks(items: tuple[str, ...], completion: str) -> tuple[bool, ...]:
    """Mark which steps, by place, the first line of a completion gives exactly."""
    given = wording_of(items).given(completion)
    return tuple(i < len(given) and given[i] == item for i, item in enumerate(items))


def _step(wording: Wording, key: str, target: str, amount: int, total: int) -> str:
    link = wording.link.format(key=key, target=target, amount=amount)
    return wording.step_item.format(link=link, key=key, target=target, amount=amount, total=total)
