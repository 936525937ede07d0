"""The training recipe, read from YAML."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from longdecode.evals.config_values import read, read_yaml
from longdecode.training.loop import Staged, warmed_cosine

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
class Recipe(Staged):
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
    text_weight: float
    answer_weight: float
    stages: tuple[Stage, ...]

    def learning_rate_at(self, step: int) -> float:
        """Return the rate of a step: a short warm-up into each stage's cosine."""
        stage, done = self.stage_at(step)
        return stage.learning_rate * warmed_cosine(done, self.warmup_steps, done / stage.steps, self.final_share)


def load_recipe(path: Path = RECIPE) -> Recipe:
    """Read a recipe.

    Raises:
        ConfigError: a key is unknown or missing.
    """
    return read(Recipe, read_yaml(path), str(path))
