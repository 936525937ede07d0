"""Continue a dense checkpoint with sparse attention, resumably: ``python -m longdecode.training.forks.train --help``.

Low-rank factors, norms and importance heads are trained, each fork from the same checkpoint on the same documents. The
output is a small adaptor and the checkpoint with it merged.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.device import lease_gpu, resolve_device
from longdecode.engine.errors import refuse_unknown
from longdecode.evals import provenance
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.training_spec import ForkTraining
from longdecode.training.files import prefetched, run_commands
from longdecode.training.forks.artefacts import CURVE_COLUMNS, write_fork
from longdecode.training.forks.documents import Maker, makers
from longdecode.training.forks.fork import load_fork
from longdecode.training.long_context.documents import Document
from longdecode.training.loop import Loop, warmed_cosine
from longdecode.training.token_losses import token_losses

_CLIP = 1.0
_LAST_SHARE = 0.1
"""Of the learning rate, at the end."""
_LOGITS_AT_ONCE = 1 << 28
"""Logits held at a time: 1 GiB in float32, of which a stretch's gradient takes up to seven."""
_EAGER_STEPS = 3
"""Steps before a step is captured: the optimizer's state and what kernels compile exist by then."""


class Trainer:
    """One fork in training: model, optimizer and history; ``fit`` goes on from where a state file left it."""

    def __init__(self, run: ForkTraining, folder: Path, device: torch.device):
        self.run, self.device = run, device
        self.model, self.fork = load_fork(run, folder, device)
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self.model.parameters() if p.requires_grad], "factor": 1.0}
        ]
        if self.fork.heads:
            groups.append({"params": list(self.fork.heads.parameters()), "factor": run.importance_factor})
        self.trained = [p for group in groups for p in group["params"]]
        cuda = device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            groups, lr=run.lr, weight_decay=0.0, betas=(0.9, 0.95), fused=cuda, capturable=cuda
        )
        self.curve: list[list[float]] = []

    def fit(self, train: Maker, held_out: Maker, state: Path, minutes: float | None = None) -> None:
        """Train to the last step or minute; the learning rate falls with whichever ends first.

        Args:
            train: makes documents.
            held_out: makes documents that no step sees.
            state: file that a killed run goes on from.
            minutes: of training; without, all steps are taken.

        Raises:
            CheckpointError: the file belongs to other settings.
        """
        losses: list[Tensor] = []
        parts: dict[str, Any] = {
            "trained": torch.nn.ParameterList(self.trained), "optimizer": self.optimizer, "losses": losses,
            "curve": self.curve,
        }  # fmt: skip
        loop = Loop(state, self.run, self.device, parts, self.run.steps, minutes)
        advance = CapturedStep(self.advance) if self.device.type == "cuda" else self.advance
        rates = [torch.zeros((), device=self.device) for _ in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate  # as a tensor: a captured step reads it anew

        def documents_of(step: int) -> list[Document]:
            drawn = [random.Random(f"{self.run.seed} {step} {row}") for row in range(self.run.rows)]
            numbered = enumerate(drawn, start=step * self.run.rows)
            return [train(rng, self.run.length + 1, self.run.lookups, number) for number, rng in numbered]

        for step, documents in loop.over(prefetched(documents_of, loop.step, self.run.steps)):
            share = warmed_cosine(step, self.run.warmup, loop.passed, _LAST_SHARE)
            for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
                rate.fill_(self.run.lr * group["factor"] * share)
            losses.append(advance(*self._moved(documents)))
            if minutes:
                losses[-1].item()  # the clock is the device's: steps are queued far ahead otherwise
            if (step + 1) % self.run.log_every == 0:
                self._log(step + 1, losses, held_out, loop.seconds)
        if losses:
            self._log(loop.step, losses, held_out, loop.seconds)

    def advance(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """Take a step on documents ``[R, T]`` int64 with weights ``[R, T]``; return its loss."""
        loss, _ = self.loss(tokens, weights)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.trained, _CLIP)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def loss(self, tokens: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of the documents' weighted losses, and the losses ``[R, T - 1]`` of their tokens.

        Where a gradient is taken, the mean has the divergence from the teacher and the importances' own loss in it.
        All documents go through the model at once, and nothing waits for the device.
        """
        weights, learning = weights[:, 1:], torch.is_grad_enabled()
        causal = self.model.base_model.model
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            taught = learning and (self.run.distil or self.run.received)
            aims = self._taught(tokens[:, :-1]) if taught else [None] * len(tokens)
            hidden = causal.model(tokens[:, :-1], use_cache=False).last_hidden_state
            head, rows = causal.lm_head.weight, zip(hidden, tokens[:, 1:], aims, strict=True)
            found = [token_losses(head, own, wanted, _LOGITS_AT_ONCE // len(head), aim) for own, wanted, aim in rows]
            losses, apart = torch.stack(found, dim=1)
        means = ((losses + self.run.distil * apart) * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1e-6)
        own = self.run.received * torch.stack(self.fork.signals).mean() if self.fork.signals else 0.0
        self.fork.received, self.fork.signals = [], []
        return means.mean() + own, losses

    @torch.no_grad()
    def _taught(self, tokens: Tensor) -> Tensor:
        """Return the last hidden states ``[R, T, H]`` of the checkpoint before training, read with full attention."""
        self.fork.teaching = True
        with self.model.disable_adapter():
            hidden: Tensor = self.model.base_model.model.model(tokens, use_cache=False).last_hidden_state
        self.fork.teaching = False
        return hidden

    def _moved(self, documents: Sequence[Document]) -> list[Tensor]:
        """Return ids and weights of documents on the device, ``[R, T]`` each."""
        tensors = [torch.from_numpy(np.stack(part)) for part in zip(*documents, strict=True)]
        # From pinned memory: a copy from other memory would wait for all that the device has still to do.
        return [x.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else x for x in tensors]

    @torch.no_grad()
    def _log(self, step: int, losses: list[Tensor], held_out: Maker, seconds: float) -> None:
        """Move losses to the history, with those on held-out prose and answers, answers known for sure, overlap."""
        found: dict[str, list[Tensor]] = {"prose": [], "answers": [], "sure": []}
        self.fork.watched = []
        for number in range(self.run.held_out):
            for kind, lookups in (("prose", 0.0), ("answers", 1.0)):
                rng = random.Random(f"held out {self.run.seed} {number}")
                document = held_out(rng, self.run.length + 1, lookups, number)
                tokens, weights = self._moved([document])
                _, own = self.loss(tokens, weights)
                weights = weights[:, 1:]
                mine = own[weights == weights.max()] if kind == "answers" else own
                found[kind].append(mine.mean())
                if kind == "answers":
                    found["sure"].append((mine < math.log(2)).float().mean())
        watched, self.fork.watched = self.fork.watched, None
        means = [torch.stack(values).mean().item() for values in found.values()]
        gamma = torch.stack(watched).mean().item() if watched else math.nan
        self.curve.append([step, torch.stack(losses).mean().item(), *means, gamma, seconds])
        losses.clear()
        entry = dict(zip(CURVE_COLUMNS, self.curve[-1], strict=True))
        print(f"{self.run.name}: " + ", ".join(f"{k} {v:.4g}" for k, v in entry.items()), file=sys.stderr, flush=True)


class CapturedStep:
    """A training step as a CUDA graph: the first few run eagerly, the next is captured, and from then on replayed."""

    def __init__(self, advance: Callable[[Tensor, Tensor], Tensor]):
        self._advance = advance
        self._taken = 0
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._inputs: tuple[Tensor, Tensor]
        self._loss: Tensor

    def __call__(self, tokens: Tensor, weights: Tensor) -> Tensor:
        """Take a step; shapes are those of the first call."""
        self._taken += 1
        if self._taken <= _EAGER_STEPS:
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                loss = self._advance(tokens, weights)
            torch.cuda.current_stream().wait_stream(self._stream)
            return loss
        if self._graph is None:
            self._inputs = tokens.clone(), weights.clone()
            torch.cuda.empty_cache()  # the graph's memory is its own
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph, stream=self._stream):
                self._loss = self._advance(*self._inputs)
        for held, given in zip(self._inputs, (tokens, weights), strict=True):
            held.copy_(given)
        self._graph.replay()
        return self._loss.clone()


def train_fork(
    run: ForkTraining, folder: Path, device: torch.device, output: Path, sources: tuple[Maker, Maker],
    minutes: float | None = None,
) -> None:  # fmt: skip
    """Train one fork and write its adaptor, history and merged checkpoint to ``output``; see ``artefacts``."""
    output.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(run, folder, device)
    trainer.fit(*sources, output / "state.pt", minutes)
    about = {
        "settings": asdict(run),
        "minutes": minutes,
        "base_hash": provenance.checkpoint_hash(folder),
        **provenance.origin(device),
        "last": dict(zip(CURVE_COLUMNS, trainer.curve[-1], strict=True)),
    }
    write_fork(output, folder, trainer.model, trainer.fork.heads, trainer.curve, about)
    (output / "state.pt").unlink(missing_ok=True)


def run_planned(
    config: RunConfig, name: str, output: Path, device: str | None = None, minutes: float | None = None
) -> None:
    """Train one fork of a configuration, for so many minutes at most.

    Raises:
        ConfigError: there is no such fork; the message gives the nearest name.
        LongDecodeError: the model or its data cannot be loaded.
    """
    refuse_unknown(str(config.source), "fork", [name], config.fork_trainings)
    run = config.fork_trainings[name]
    folder = config.models[run.model].checkpoint()
    with lease_gpu(resolve_device(device or config.device)) as target:
        sources = makers(run, folder, config.data, output.parent)
        train_fork(run, folder, target, output, sources, minutes)


def run(
    config: Path = Path("config/nosa.yaml"), forks: str = "", device: str | None = None, minutes: float | None = None
) -> None:
    """Train the forks asked for, one after another.

    Args:
        config: a configuration file.
        forks: names of forks, with commas between; all without.
        device: instead of the configuration's.
        minutes: of training each; the schedule ends with them. Forks that stop at different steps have seen different
            documents.
    """
    settings = load_run_config(config)
    for name in forks.split(",") if forks else settings.fork_trainings:
        model = settings.fork_trainings[name].model if name in settings.fork_trainings else ""
        run_planned(settings, name, Path("results") / settings.profile / "forks" / model / name, device, minutes)


if __name__ == "__main__":
    run_commands(run)
