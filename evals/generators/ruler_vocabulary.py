"""Plain English words for RULER's keys, which are an adjective and a noun joined by a hyphen."""

from __future__ import annotations

import random

ADJECTIVES = tuple(
    """able amber ample ancient arid autumn bare bitter blank bold brave brief bright brisk broad calm candid careful
    chilly civil clear clever coarse cosy crisp curious daily damp daring deep dense dim distant double dry dusty
    eager early earnest easy empty even fair faint famous fancy fast fierce firm flat fluid fond formal fresh
    gentle giant glad golden grand green grey hardy harsh hasty hidden hollow honest humble idle inner jolly keen
    kind large late lazy level light likely lively local lone loose loud loyal lucky mellow mild minor modest
    muddy narrow neat noble northern odd open outer pale patient plain polite prime proud pure quick quiet rapid
    rare ready regal rigid ripe robust rough round royal rural rusty scarce secret serene sharp shy silent silver
    simple sleek slim slow small smooth sober soft solar solid sour spare steady steep stern still stout strict
    sturdy subtle sunny supple sweet swift tall tame tender thin tidy tiny tough tranquil urban vague vast velvet
    vivid warm wary western wild windy wise witty wooden worthy young zealous""".split()
)
NOUNS = tuple(
    """acorn anchor anvil apple apron arch arrow attic badge bakery balcony banner barley barn barrel basin basket
    beacon bell bench berry blanket boat bottle bridge broom bucket button cabin cable camel candle canoe canvas
    carpet castle cavern cellar chair chalk chapel cherry chimney cider circle cliff clock cloud clover coast
    cobble compass copper coral corner cottage crane cricket crystal curtain daisy dam desk dome door drum dune
    eagle easel elbow elm engine falcon farm feather fence fern ferry fiddle field flask flute forest forge fossil
    fountain fox garden garlic gate geyser glacier glove goose granite grove hammer harbor harp hat hazel hedge
    helmet heron hill hinge honey hoop horn inn iron island ivory jacket jar jetty jewel kettle key kite knot
    ladder lagoon lamp lantern lark laurel ledge lemon lens lever linen lizard loaf locket lodge loom magnet mango
    maple marble market meadow melon mill mirror mitten moat moss mountain mulberry nest needle nickel nutmeg oak
    oar oasis olive onion orchard otter oven owl paddle palace panther parcel pasture pebble pepper piano pillar
    pine planet plough pocket pond poplar porch prism pulley quarry quill quilt raft raven reef ribbon ridge river
    robin rocket rope rudder saddle sail salmon scarf shed shell shore shovel signal sparrow spoon spring spruce
    stable staircase statue stone stove summit swan table tavern teapot temple thistle thread tiger timber torch
    tower trail trumpet tulip tunnel turtle umbrella valley vase village vine violin wagon walnut waterfall wharf
    wheat wheel whistle willow window winter wolf yarn zebra""".split()
)


def adjective_noun(rng: random.Random) -> str:
    """A key such as ``quiet-harbor``, one of some fifty thousand."""
    return f"{rng.choice(ADJECTIVES)}-{rng.choice(NOUNS)}"
