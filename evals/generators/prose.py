"""Plain generated English: the filler in which records hide, and the word stock of the narratives."""

from __future__ import annotations

import random
from collections.abc import Callable

ADJECTIVES = (
    "brass broken bright bitter cold crooked dark dusty faded gentle golden green heavy hidden hollow little lonely"
    " long narrow painted pale patient plain quiet rough rusty silver slow small smooth soft spare strange tall"
    " thin torn warm white wide wild wooden"
).split()
NOUNS = (
    "barn basket bell bench blanket boat bottle bridge bucket candle cart chair cloud coat corner cradle drum fence"
    " field fiddle flag garden gate hammer harbour hat hill jar kettle key ladder lamp lantern letter map market meadow"
    " mill mirror needle net orchard paddle path pond purse quilt ribbon river road saddle sail shutter spoon stable"
    " stone stove table tower trunk violin wagon wall well wheel whistle window yard"
).split()
TRADES = (
    "baker barber binder brewer carter clerk cobbler cook cooper dyer farmer ferryman fiddler fisher gardener glazier"
    " grocer guard hatter joiner mason miller nurse painter piper porter potter printer roofer sailor shepherd smith"
    " tailor tanner teacher tinker trader weaver"
).split()
_VERBS = (
    "stood rested waited gleamed shook leaned hung turned lay creaked fell slept rolled rocked slipped dried faded"
).split()
_PLACES = "beside behind under above near against beyond across below over".split()
_OPENERS = (
    "At noon",
    "By evening",
    "In the morning",
    "After the rain",
    "Before long",
    "All that week",
    "Late in spring",
    "Once more",
    "Every winter",
    "Far away",
)
_ONSETS = "b d f g h k l m n p r s t v z br dr gr kl pr tr st sh th".split()
_VOWELS = "a e i o u ai ou".split()
_ENDINGS = "ton ford wick holm mere dale bury stead combe moor".split()

Filler = Callable[[random.Random, int], str]
"""Makes exactly the given number of bytes of text, starting anywhere and ending at a space or full stop."""


def sentence(rng: random.Random) -> str:
    """One sentence that states nothing worth remembering, with its trailing space."""
    pick = rng.choice
    core = f"the {pick(ADJECTIVES)} {pick(NOUNS)} {pick(_VERBS)} {pick(_PLACES)} the {pick(NOUNS)}"
    if rng.random() < 0.5:
        return f"{pick(_OPENERS)} {core}. "
    return f"{core[0].upper()}{core[1:]}. "


def filler(rng: random.Random, length: int) -> str:
    """Exactly ``length`` bytes of filler; the first sentence is cut at its front so that the end is whole."""
    parts: list[str] = []
    size = 0
    while size < length:
        parts.append(sentence(rng))
        size += len(parts[-1])
    return "".join(parts)[size - length :]


def proper_name(rng: random.Random) -> str:
    """An invented name of two or three syllables, capitalised."""
    syllables = (rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.choice((2, 2, 3))))
    return "".join(syllables).capitalize() + rng.choice("nrlsm")


def place_name(rng: random.Random) -> str:
    """An invented town, capitalised."""
    return (rng.choice(_ONSETS) + rng.choice(_VOWELS)).capitalize() + rng.choice("nrlsm") + rng.choice(_ENDINGS)


def distinct(make: Callable[[random.Random], str], rng: random.Random, count: int) -> list[str]:
    """``count`` different draws of ``make``, in the order drawn."""
    seen: dict[str, None] = {}
    while len(seen) < count:
        seen.setdefault(make(rng))
    return list(seen)


def hide(rng: random.Random, records: list[str], room: int, fill: Filler = filler) -> str:
    """Scatter ``records`` over filler, in random order, to ``room`` bytes in all.

    Every record stands in brackets between two pieces of filler of random length.

    Raises:
        ValueError: the records alone do not fit ``room``.
    """
    marked = [f"[{record}] " for record in records]
    rng.shuffle(marked)
    spare = room - sum(map(len, marked))
    if spare < 0:
        raise ValueError(f"{len(records)} records need {room - spare} bytes; {room} are available")
    cuts = sorted(rng.randint(0, spare) for _ in marked)
    text = fill(rng, spare)
    pieces: list[str] = []
    last = 0
    for cut, record in zip(cuts, marked, strict=True):
        edge = text.find(" ", cut) + 1 or spare
        edge = max(edge, last)
        pieces += (text[last:edge], record)
        last = edge
    pieces.append(text[last:])
    return "".join(pieces)
