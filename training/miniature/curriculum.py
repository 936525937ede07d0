"""The training plan: stages of growing length, read from YAML."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

from longdecode.engine.errors import refuse_unknown
from longdecode.evals.config_values import read, read_yaml
from longdecode.training.loop import Staged, warmed_cosine
from longdecode.training.miniature.documents import KINDS


@dataclass(frozen=True, slots=True)
class Stage:
    """Steps at sequence lengths drawn anew each step, with the share of each kind of document."""

    lengths: tuple[int, ...]
    steps: int
    mixture: dict[str, float]


@dataclass(frozen=True, slots=True)
class Curriculum(Staged):
    """Everything that decides what the trained weights are, the device's rounding aside."""

    seed: int
    tokens_per_step: int
    learning_rate: float
    final_learning_rate: float
    warmup_steps: int
    weight_decay: float
    gradient_clip: float
    validate_every_steps: int
    stages: tuple[Stage, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence, the trained model's limit."""
        return max(length for stage in self.stages for length in stage.lengths)

    def length_at(self, step: int) -> int:
        """The sequence length of a step."""
        return random.Random(f"{self.seed} {step} length").choice(self.stage_at(step)[0].lengths)

    def rows_at(self, step: int) -> int:
        """Sequences in a step."""
        return max(1, self.tokens_per_step // self.length_at(step))

    def learning_rate_at(self, step: int) -> float:
        """Linear warm-up, then a cosine down to the final rate."""
        done = max(0, step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        floor = self.final_learning_rate / self.learning_rate
        return self.learning_rate * warmed_cosine(step, self.warmup_steps, done, floor)


def load_curriculum(path: Path) -> Curriculum:
    """Read a curriculum.

    Raises:
        ConfigError: a key is unknown or missing, or a mixture names an unknown kind of document.
    """
    curriculum = read(Curriculum, read_yaml(path), str(path))
    for stage in curriculum.stages:
        refuse_unknown(str(path), "kind of document", stage.mixture, KINDS)
    return curriculum
