"""Steps of a training: their learning rate, their time limit, and the state that a killed one goes on from."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch

from longdecode.training.files import load_state, save_state

SAVE_SECONDS = 60.0
"""Seconds between saved states."""
Made = TypeVar("Made")


class Loop:
    """Steps up to the last one or the last minute, whichever comes first, one at least; saved about once a minute.

    Args:
        path: file of the state.
        settings: what the training is; a state of other settings is refused.
        device: where the state is read to.
        parts: modules, optimizers and lists that are saved, by name; a list, such as a history, is filled in place.
        steps: at most.
        minutes: at most, of all runs of the training together; without, as many as the steps take.

    Raises:
        CheckpointError: the file belongs to other settings.
    """

    def __init__(
        self, path: Path, settings: object, device: torch.device, parts: Mapping[str, Any],
        steps: int, minutes: float | None = None,
    ):  # fmt: skip
        self.path, self.settings, self.parts, self.steps, self.minutes = path, settings, parts, steps, minutes
        self.step, self._started = 0, time.monotonic()
        if state := load_state(path, settings, device):
            self.step, self._started = state["step"], self._started - state["seconds"]
            for name, part in parts.items():
                if isinstance(part, list):
                    part[:] = state[name]
                else:
                    part.load_state_dict(state[name])

    @property
    def seconds(self) -> float:
        """Return the seconds that the training has taken, those before it was killed included."""
        return time.monotonic() - self._started

    @property
    def passed(self) -> float:
        """Return the share of the training that is over, by its steps or by its minutes."""
        return max(self.step / self.steps, self.seconds / (60 * self.minutes) if self.minutes else 0.0)

    def over(self, made: Iterable[Made]) -> Iterator[tuple[int, Made]]:
        """Yield each step left with what was made for it, first that of ``step``; the state is saved between steps."""
        saved = time.monotonic()
        if self.step and self.passed >= 1:
            return
        for batch in made:
            yield self.step, batch
            self.step += 1
            if (ends := self.passed >= 1) or time.monotonic() - saved > SAVE_SECONDS:
                kept = {name: x if isinstance(x, list) else x.state_dict() for name, x in self.parts.items()}
                save_state(self.path, self.settings, step=self.step, seconds=self.seconds, **kept)
                saved = time.monotonic()
            if ends:
                return


def warmed_cosine(step: int, warmup: int, passed: float, floor: float = 0.0) -> float:
    """Return the share of the peak rate: a linear rise, times a cosine down to ``floor`` as ``passed`` goes to 1."""
    cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, passed)))
    return min(1.0, (step + 1) / max(1, warmup)) * (floor + (1 - floor) * cosine)


def take_step(optimizer: torch.optim.Optimizer, rate: float, clip: float | None = None) -> None:
    """Step at a learning rate, the norm of all gradients cut to ``clip`` where one is given, and drop the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    if clip is not None:
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


class Staged:
    """A plan of stages, each of which has ``steps``."""

    stages: tuple[Any, ...]

    @property
    def total_steps(self) -> int:
        """Steps over all stages."""
        return sum(stage.steps for stage in self.stages)

    def stage_at(self, step: int) -> tuple[Any, int]:
        """Return the stage of a step, and the step's number within it."""
        for stage in self.stages:
            if step < stage.steps:
                return stage, step
            step -= stage.steps
        raise IndexError("step lies past the last stage")
