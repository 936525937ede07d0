"""The training recipe, read from YAML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from longdecode.evals.config_values import read, read_yaml

RECIPE = Path(__file__).resolve().parent / "recipe.yaml"


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps of ``rows`` documents of ``length`` tokens, a share of which are look-ups."""

    length: int
    rows: int
    steps: int
    learning_rate: float
    lookups: float


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that decides the adaptor's weights, but for the books and the device's rounding."""

    seed: int
    rank: int
    alpha: int
    rope_theta: float
    max_positions: int
    warmup_steps: int
    final_share: float
    gradient_clip: float
    loss_slice: int
    checkpointing_from: int
    save_every_steps: int
    text_weight: float
    answer_weight: float
    stages: tuple[Stage, ...]

    @property
    def total_steps(self) -> int:
        """Return the steps of all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage_at(self, step: int) -> tuple[Stage, int]:
        """Return the stage of a step, and the step's number within it."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        raise IndexError("step lies past the last stage")

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of a step: a short warm-up into each stage's cosine."""
        stage, done = self.stage_at(step)
        cosine = 0.5 * (1 + math.cos(math.pi * done / stage.steps))
        warm = min(1.0, (done + 1) / self.warmup_steps)
        return stage.learning_rate * warm * (self.final_share + (1 - self.final_share) * cosine)


def load_recipe(path: Path = RECIPE) -> Recipe:
    """Read a recipe.

    Raises:
        ConfigError: a key is unknown or missing.
    """
    return read(Recipe, read_yaml(path), str(path))
