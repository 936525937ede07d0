"""Train draft heads on a frozen model, resumably: ``python -m longdecode.training.draft_heads.train --help``.

The model runs once over a window without gradients; several sets of heads learn beside one another from what it found,
in float32, to name the tokens behind the next one through the model's own LM head. A window is a function of seed, step
and row alone, so that a killed run goes on from its last checkpoint as if it had not been.

Source: TokenSwift (arXiv 2502.18890), section 3.1 and table 9; Cai et al. 2024, Medusa (arXiv 2401.10774), section 2.2.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.attention import DenseAttention
from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, resolve_device, resolve_dtype
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.engine.prefill import WholePrompt
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.engine.weights import load_decoder, model_hash
from longdecode.evals.config_values import refuse_unknown
from longdecode.evals.provenance import revision
from longdecode.evals.run_config import RunConfig
from longdecode.methods.draft_heads import DraftHeads, write_heads
from longdecode.training.draft_heads.data import Books, PairTable
from longdecode.training.draft_heads.loss import frozen_head_loss
from longdecode.training.draft_heads.recipe import RECIPE, STARTS, Recipe, Start, load_recipe
from longdecode.training.files import load_state, run_commands, save_state, write_csv

RANKS = ("top1", "top2", "top3")


class HeadTrainer:
    """Train sets of heads on one model, all on the same windows and none aware of the others.

    Args:
        decoder: frozen.
        books: windows to train on.
        recipe: the settings.
        starts: kinds and first weights, a set of heads each.
        state: file of the last checkpoint.

    Raises:
        CheckpointError: the file's state belongs to another recipe.
    """

    def __init__(self, decoder: Decoder, books: Books, recipe: Recipe, starts: Sequence[Start], state: Path):
        self.decoder, self.books, self.recipe, self.state = decoder, books, recipe, state
        self.about = f"{tuple(starts)!r} {recipe!r}"
        config = decoder.config
        self.sets: dict[Start, DraftHeads] = {}
        self.optimizers: dict[Start, torch.optim.Optimizer] = {}
        for start in starts:
            heads = DraftHeads(start.kind, recipe.heads[start.kind], config.hidden_size, config.rms_norm_eps)
            heads.initialise(start.init, recipe.seed, decoder.weights.final_norm.float())
            if start == STARTS["chained/zero"]:
                heads.norm_in.data.fill_(self._state_size())
            self.sets[start] = heads.to(decoder.device)
            self.optimizers[start] = torch.optim.AdamW(
                heads.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.999), weight_decay=recipe.weight_decay
            )
        self.curves: dict[Start, list[dict[str, float]]] = {start: [] for start in starts}
        self.step = 0
        if saved := load_state(state, self.about, decoder.device):
            self.step = saved["step"]
            for (start, heads), own in zip(self.sets.items(), saved["sets"], strict=True):
                self.curves[start] = own["curve"]
                heads.load_state_dict(own["heads"])
                self.optimizers[start].load_state_dict(own["optimizer"])

    def fit(self, stop: int | None = None) -> None:
        """Train up to the recipe's last step, or up to step ``stop``."""
        recipe, clock = self.recipe, time.monotonic()
        while self.step < min(recipe.steps, recipe.steps if stop is None else stop):
            losses = self._step(self.step)
            self.step += 1
            if self.step % recipe.log_every == 0 or self.step == recipe.steps:
                seconds = round(time.monotonic() - clock, 1)
                for start, found in losses.items():
                    row = {f"loss_{head}": round(loss, 4) for head, loss in enumerate(found.tolist(), start=1)}
                    self.curves[start].append({"step": self.step, **row})
                    print(json.dumps({"set": str(start), "step": self.step, **row, "seconds": seconds}), flush=True)
            if self.step % recipe.save_every == 0:
                sets = [
                    {"curve": self.curves[s], "heads": h.state_dict(), "optimizer": self.optimizers[s].state_dict()}
                    for s, h in self.sets.items()
                ]
                save_state(self.state, self.about, step=self.step, sets=sets)

    @torch.no_grad()
    def accuracy(self) -> dict[Start, list[dict[str, Any]]]:
        """Return top-1, top-2 and top-3 accuracy by head on unseen books, and of the pair table beside it."""
        vocab, recipe = self.decoder.config.vocab_size, self.recipe
        windows = self.books.unseen_windows(recipe.seed, recipe.unseen_windows)

        @cache
        def table(distance: int) -> PairTable:
            return PairTable(self.books.train, distance, vocab)

        found: dict[Start, list[dict[str, Any]]] = {}
        hits = {
            start: torch.zeros(heads.count, 2, 3, dtype=torch.float64, device=self.decoder.device)
            for start, heads in self.sets.items()
        }
        for window in windows:
            tokens = torch.from_numpy(window)[None]
            states = self._states(tokens)
            for start, heads in self.sets.items():
                for head, (state, wanted) in enumerate(pairs(heads, *states, tokens.to(self.decoder.device))):
                    for piece, want in zip(
                        state.split(recipe.loss_slice), wanted.split(recipe.loss_slice), strict=True
                    ):
                        best = self.decoder.logits(piece.to(self.decoder.dtype)).topk(3, dim=1).indices
                        hits[start][head, 0] += ((best == want[:, None]).cumsum(dim=1) > 0).sum(dim=0) / len(wanted)
                    theirs = table(head + 2).hits(tokens[0, : len(wanted)], wanted.cpu()).double().mean(dim=0)
                    hits[start][head, 1] += theirs.to(hits[start].device)
        for start, summed in hits.items():
            ours, theirs = (summed / len(windows)).unbind(dim=1)
            found[start] = [
                {"head": head}
                | {name: round(value, 4) for name, value in zip(RANKS, own.tolist(), strict=True)}
                | {f"pair_{name}": round(value, 4) for name, value in zip(RANKS, other.tolist(), strict=True)}
                for head, (own, other) in enumerate(zip(ours, theirs, strict=True), start=1)
            ]
        return found

    def _step(self, step: int) -> dict[Start, Tensor]:
        recipe, device = self.recipe, self.decoder.device
        sums = {start: torch.zeros(heads.count, device=device) for start, heads in self.sets.items()}
        for first in range(0, recipe.sequences, recipe.at_once):
            rows = range(first, min(first + recipe.at_once, recipe.sequences))
            tokens = torch.from_numpy(np.stack([self.books.window(recipe.seed, step, row) for row in rows]))
            states, share = self._states(tokens), len(rows) / recipe.sequences
            for start, heads in self.sets.items():
                losses = torch.stack(
                    [
                        frozen_head_loss(state, wanted, self.decoder.weights.lm_head, recipe.loss_slice)
                        for state, wanted in pairs(heads, *states, tokens.to(device))
                    ]
                )
                (losses.sum() * share).backward()
                sums[start] += losses.detach() * share
        for start, optimizer in self.optimizers.items():
            for group in optimizer.param_groups:
                group["lr"] = recipe.learning_rate_at(step)
            torch.nn.utils.clip_grad_norm_(list(self.sets[start].parameters()), recipe.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return sums

    def _state_size(self) -> float:
        """Return the root mean square of the last layer's output, the median over one window.

        A chained head adds ``W norm(z)`` to ``z``. As large as ``z`` the input norm leaves ``W = 0`` the start that it
        is, and lets ``W`` learn at the pace of a layer whose input and output are alike: SmolLM2's ``z`` is of size 40,
        which weights learned at the paper's rate from an input of size 1 would take thousands of steps to move.
        """
        before, _ = self._states(torch.from_numpy(self.books.window(self.recipe.seed, 0, 0))[None])
        return float(before.square().mean(dim=2).sqrt().median())

    @torch.no_grad()
    def _states(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last layer's output ``[B, T, H]`` before and after the final norm, float32."""
        decoder, length = self.decoder, tokens.shape[1]
        cache = decoder.new_cache(len(tokens), length)
        state = WholePrompt(cache, [length] * len(tokens), tokens.numel())
        block = TokenBlock(tokens, torch.arange(length, device=decoder.device)[None])
        normed = decoder.forward(block, state, DenseAttention((), decoder.config))
        return state.residual.float(), normed.float()


def pairs(heads: DraftHeads, before: Tensor, after: Tensor, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield for each head the states ``[N, H]`` that the LM head reads and the tokens ``[N]`` that they must name.

    Head ``i``, counted from 1, at place ``t`` names the token at ``t + 1 + i``.

    Args:
        before: ``[B, T, H]``, the last layer's output.
        after: ``[B, T, H]``, the same after the final norm.
        tokens: ``[B, T]``, what was read, on the same device.
    """
    length = tokens.shape[1]
    for head, found in enumerate(heads.states(before, after), start=1):
        yield found[:, : length - 1 - head].flatten(0, 1), tokens[:, 1 + head :].flatten()


def train_heads(
    folder: Path,
    model: str,
    source: str | None,
    recipe: Recipe,
    starts: Sequence[Start],
    output: Path,
    device: str = "auto",
) -> None:
    """Train sets of heads on a checkpoint and write each set's file, curve and accuracies.

    Args:
        folder: the checkpoint.
        model: its name.
        source: books, see ``Books``.
        recipe: the settings.
        starts: kinds and first weights, a set each.
        output: folder of ``<kind>/<init>/`` with ``heads.json``, ``heads.safetensors``, ``curve.csv`` and
            ``accuracy.csv``, and of ``state.pt`` while it trains.
        device: ``cpu``, ``cuda`` or ``auto``.

    Raises:
        DataUnavailableError: the books are not there.
        CheckpointError: the checkpoint cannot be loaded, or ``state.pt`` belongs to another training.
    """
    with lease_gpu(resolve_device(device)) as target:
        decoder = load_decoder(folder, device=target, dtype=resolve_dtype("auto", target))
        books = Books(source, load_tokenizer(folder), recipe.length)
        trainer = HeadTrainer(decoder, books, recipe, starts, output / "state.pt")
        trainer.fit()
        accuracy = trainer.accuracy()
    for start, heads in trainer.sets.items():
        own = output / str(start)
        for name, rows in (("curve", trainer.curves[start]), ("accuracy", accuracy[start])):
            write_csv(own / f"{name}.csv", list(rows[0]), [list(row.values()) for row in rows])
        run: dict[str, Any] = {"init": start.init, "recipe": recipe.model_dump(mode="json"), "revision": revision()}
        run |= {"books": len(books.train), "unseen_books": len(books.unseen), "device": device_name(target)}
        run |= {"tokens": recipe.steps * recipe.sequences * recipe.length}
        run |= {"loss": trainer.curves[start][-1], "accuracy": accuracy[start]}
        write_heads(own / "heads.json", heads, model, model_hash(folder), run)
    trainer.state.unlink(missing_ok=True)


def run_planned(config: RunConfig, model: str, output: Path) -> None:
    """Train every set of heads of a model of a configuration, on the books of its ``data.pg19``."""
    spec, books = config.models[model], config.data.get("pg19")
    folder, starts = resolve_checkpoint(spec.path, spec.revision), list(STARTS.values())
    train_heads(folder, model, str(books) if books else None, load_recipe(model), starts, output, config.device)


def run(
    model: str, books: str, output: Path, name: str = "", sets: str = ",".join(STARTS), recipe: Path = RECIPE,
    device: str = "auto",
) -> None:  # fmt: skip
    """Train the sets of heads of one model.

    Args:
        model: a checkpoint's folder, a built model's name or a hub id.
        books: folder of ``*.txt`` books, or a hub id such as ``emozilla/pg19``.
        output: folder.
        name: the model's name in the recipe; left out, MODEL.
        sets: with commas between; ``normal`` is the paper's start.
        recipe: the settings.
        device: ``auto``, ``cpu`` or ``cuda``.
    """
    name = name or model
    refuse_unknown("sets", "set of heads", sets.split(","), STARTS)
    starts = [STARTS[given] for given in sets.split(",")]
    train_heads(resolve_checkpoint(model, None), name, books, load_recipe(name, recipe), starts, output, device)


if __name__ == "__main__":
    run_commands(run)
