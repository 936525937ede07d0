"""Define the recipe of a training of draft heads, as ``recipe.yaml`` states it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from longdecode.evals.config_values import read, read_yaml
from longdecode.training.loop import warmed_cosine

RECIPE = Path(__file__).resolve().parent / "recipe.yaml"
Count = Annotated[int, Field(ge=1)]
Kind = Literal["chained", "medusa"]
Init = Literal["zero", "normal"]


@dataclass(frozen=True, slots=True)
class Start:
    """A kind of heads and their first weights; as text ``<kind>/<init>``."""

    kind: Kind
    init: Init

    def __str__(self) -> str:
        return f"{self.kind}/{self.init}"


STARTS = {
    str(start): start for start in (Start("chained", "zero"), Start("chained", "normal"), Start("medusa", "zero"))
}
"""Sets of heads by name; ``chained/normal`` is the paper's start."""


def start_of(name: str) -> Start:
    """Return the start of a set, of zeros where the name says what it reads, such as ``chained/books``."""
    return STARTS.get(name) or STARTS[f"{name.partition('/')[0]}/zero"]


class Recipe(BaseModel):
    """Settings of a training; ``recipe.yaml`` says where they come from.

    A step takes ``sequences`` windows of ``length`` tokens, ``at_once`` of them at a time. ``loss_slice`` bounds the
    positions whose logits exist at once. ``unseen_windows`` are cut from books that training never reads.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    heads: Mapping[Kind, Count]
    steps: Count
    sequences: Count
    at_once: Count
    length: Annotated[int, Field(ge=16)]
    learning_rate: Annotated[float, Field(gt=0)]
    warmup_steps: Annotated[int, Field(ge=0)]
    weight_decay: Annotated[float, Field(ge=0)]
    clip: Annotated[float, Field(gt=0)]
    seed: int
    loss_slice: Count
    log_every: Count
    unseen_windows: Count

    def learning_rate_at(self, step: int, passed: float) -> float:
        """Return the rate of a step from 0: a linear warm-up, then half a cosine by the share that has passed."""
        return self.learning_rate * warmed_cosine(step, self.warmup_steps, passed)


def load_recipe(model: str, path: Path = RECIPE) -> Recipe:
    """Return the recipe of a model: ``default``, under what its own entry says.

    Raises:
        ConfigError: the file does not fit the schema.
    """
    raw = read_yaml(path)
    return read(Recipe, raw["default"] | raw.get("models", {}).get(model, {}), f"{path}: {model}")
