"""Train draft heads on a frozen model, resumably: ``python -m longdecode.training.draft_heads.train --help``.

The model runs once over a window without gradients; several sets of heads learn beside one another from what it found,
in float32, to name the tokens behind the next one through the model's own LM head. A window is a function of seed, step
and row alone, so that a killed run goes on from its last checkpoint as if it had not been.

Source: TokenSwift (arXiv 2502.18890), section 3.1 and table 9; Cai et al. 2024, Medusa (arXiv 2401.10774), section 2.2.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longdecode.engine.attention import DenseAttention
from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, lease_gpu, resolve_device, resolve_dtype
from longdecode.engine.errors import refuse_unknown
from longdecode.engine.prefill import PrefillState
from longdecode.engine.token_block import Piece, Stream, TokenBlock
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.engine.weights import load_decoder, model_hash
from longdecode.evals.plan import HEADS
from longdecode.evals.provenance import revision
from longdecode.evals.run_config import RunConfig
from longdecode.methods.draft_heads import DraftHeads, write_heads
from longdecode.training.draft_heads.data import Books
from longdecode.training.draft_heads.loss import frozen_head_loss
from longdecode.training.draft_heads.own_text import write_own_text
from longdecode.training.draft_heads.recipe import RECIPE, STARTS, Recipe, Start, load_recipe, start_of
from longdecode.training.files import run_commands, write_csv
from longdecode.training.loop import Loop, take_step

RANKS = ("top1", "top2", "top3")


class HeadTrainer:
    """Train sets of heads on one model, all on the same windows and none aware of the others.

    Args:
        decoder: frozen.
        books: windows to train on.
        recipe: the settings.
        starts: kinds and first weights, a set of heads each.
        state: file of the last checkpoint.
        minutes: at most, of all runs of the training together; without, as many as the steps take.

    Raises:
        CheckpointError: the file's state belongs to another recipe.
    """

    def __init__(
        self, decoder: Decoder, books: Books, recipe: Recipe, starts: Sequence[Start], state: Path,
        minutes: float | None = None,
    ):  # fmt: skip
        self.decoder, self.books, self.recipe = decoder, books, recipe
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
        parts: dict[str, Any] = {}
        for start, heads in self.sets.items():
            parts |= {f"{start} heads": heads, f"{start} optimizer": self.optimizers[start]}
            parts[f"{start} curve"] = self.curves[start]
        self.loop = Loop(state, f"{tuple(starts)!r} {recipe!r}", decoder.device, parts, recipe.steps, minutes)

    def fit(self) -> None:
        """Train up to the recipe's last step or the last minute, which ends the schedule too."""
        losses: dict[Start, Tensor] = {}
        for step, _ in self.loop.over(range(self.loop.step, self.recipe.steps)):
            losses = self._step(step, self.loop.passed)
            if (step + 1) % self.recipe.log_every == 0:
                self._log(step + 1, losses)
        if losses and self.loop.step % self.recipe.log_every:
            self._log(self.loop.step, losses)

    def _log(self, step: int, losses: Mapping[Start, Tensor]) -> None:
        for start, found in losses.items():
            row = {f"loss_{head}": round(loss, 4) for head, loss in enumerate(found.tolist(), start=1)}
            self.curves[start].append({"step": step, **row})
            done = {"set": str(start), "step": step, **row, "seconds": round(self.loop.seconds, 1)}
            print(json.dumps(done), flush=True)

    def _step(self, step: int, passed: float) -> dict[Start, Tensor]:
        recipe, device = self.recipe, self.decoder.device
        sums = {start: torch.zeros(heads.count, device=device) for start, heads in self.sets.items()}
        for first in range(0, recipe.sequences, recipe.at_once):
            rows = range(first, min(first + recipe.at_once, recipe.sequences))
            tokens = torch.from_numpy(np.stack([self.books.window(recipe.seed, step, row) for row in rows]))
            states, share = hidden_states(self.decoder, tokens), len(rows) / recipe.sequences
            for start, heads in self.sets.items():
                losses = torch.stack(
                    [
                        frozen_head_loss(state, wanted, self.decoder.weights.lm_head, recipe.loss_slice)
                        for state, wanted in pairs(heads, *states, tokens.to(device))
                    ]
                )
                (losses.sum() * share).backward()
                sums[start] += losses.detach() * share
        for optimizer in self.optimizers.values():
            take_step(optimizer, recipe.learning_rate_at(step, passed), recipe.clip)
        return sums

    def _state_size(self) -> float:
        """Return the root mean square of the last layer's output, the median over one window.

        A chained head adds ``W norm(z)`` to ``z``. As large as ``z`` the input norm leaves ``W = 0`` the start that it
        is, and lets ``W`` learn at the pace of a layer whose input and output are alike: SmolLM2's ``z`` is of size 40,
        which weights learned at the paper's rate from an input of size 1 would take thousands of steps to move.
        """
        before, _ = hidden_states(self.decoder, torch.from_numpy(self.books.window(self.recipe.seed, 0, 0))[None])
        return float(before.square().mean(dim=2).sqrt().median())


class WholePrompt(PrefillState):
    """A prefill that gives back every token's state, not the last one's alone; all rows are equally long."""

    def outputs(self, streams: list[Stream], pieces: tuple[Piece, ...]) -> Stream:
        """Return the sum of residual and delta of all tokens, ``[B, T, H]``."""
        groups: dict[int, list[Tensor]] = {}
        for (residual, delta), piece in zip(streams, pieces, strict=True):
            groups.setdefault(piece.rows.start, []).append(residual if delta is None else residual + delta)
        return torch.cat([torch.cat(columns, dim=1) for columns in groups.values()]), None


@torch.no_grad()
def hidden_states(decoder: Decoder, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return the last layer's output ``[B, T, H]`` before and after the final norm, float32."""
    length = tokens.shape[1]
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


@torch.no_grad()
def accuracy(decoder: Decoder, heads: DraftHeads, books: Books, recipe: Recipe) -> list[dict[str, Any]]:
    """Return by head how often its first guess is right on unseen windows, or one of its first two or three."""
    hits = torch.zeros(heads.count, len(RANKS), dtype=torch.float64, device=decoder.device)
    windows = books.unseen_windows(recipe.seed, recipe.unseen_windows)
    for tokens in (torch.from_numpy(window)[None] for window in windows):
        states = hidden_states(decoder, tokens)
        for head, (state, wanted) in enumerate(pairs(heads, *states, tokens.to(decoder.device))):
            for piece, want in zip(state.split(recipe.loss_slice), wanted.split(recipe.loss_slice), strict=True):
                best = decoder.logits(piece.to(decoder.dtype)).topk(len(RANKS), dim=1).indices
                hits[head] += ((best == want[:, None]).cumsum(dim=1) > 0).sum(dim=0) / len(wanted)
    shares = (hits / len(windows)).tolist()
    return [
        {"head": head} | {name: round(value, 4) for name, value in zip(RANKS, own, strict=True)}
        for head, own in enumerate(shares, start=1)
    ]


def train_heads(
    folder: Path, model: str, source: str | None, recipe: Recipe, sets: Mapping[str, Start], output: Path, device: str,
    minutes: float | None = None,
) -> None:  # fmt: skip
    """Train sets of heads on a checkpoint and write each set's file, curve and accuracies.

    Args:
        folder: the checkpoint.
        model: its name.
        source: books, see ``Books``.
        recipe: the settings.
        sets: by subfolder of ``output``, the kind and first weights of a set.
        output: each set's folder below it holds ``heads.json``, ``heads.safetensors``, ``curve.csv`` and
            ``accuracy.csv``; ``state.pt`` is there while it trains.
        device: ``cpu``, ``cuda`` or ``auto``.
        minutes: time after which a training ends, its schedule with it.

    Raises:
        DataUnavailableError: the books are not there.
        CheckpointError: the checkpoint cannot be loaded, or ``state.pt`` belongs to another training.
    """
    with lease_gpu(resolve_device(device)) as target:
        decoder = load_decoder(folder, device=target, dtype=resolve_dtype("auto", target))
        books = Books(source, load_tokenizer(folder), recipe.length)
        trainer = HeadTrainer(decoder, books, recipe, list(sets.values()), state := output / "state.pt", minutes)
        trainer.fit()
        steps = trainer.loop.step
        for name, start in sets.items():
            heads, curve = trainer.sets[start], trainer.curves[start]
            right = accuracy(decoder, heads, books, recipe)
            for table, rows in (("curve", curve), ("accuracy", right)):
                write_csv(output / name / f"{table}.csv", list(rows[0]), [list(row.values()) for row in rows])
            run = {
                "init": start.init, "recipe": recipe.model_dump(mode="json"), "steps": steps,
                "tokens": steps * recipe.sequences * recipe.length, "revision": revision(),
                "books": len(books.train), "unseen_books": len(books.unseen), "device": device_name(target),
                "text": name.rpartition("/")[2], "loss": curve[-1], "accuracy": right,
            }  # fmt: skip
            # As every method reads them on a GPU; half the size.
            write_heads(output / name / "heads.json", heads.bfloat16(), model, model_hash(folder), run)
    state.unlink(missing_ok=True)


def run_planned(config: RunConfig, model: str, output: Path) -> None:
    """Train every set of heads of a model of a configuration: on books of its ``data.pg19``, and on its own text."""
    folder, books, recipe = config.models[model].checkpoint(), config.data.get("pg19"), load_recipe(model)
    source = str(books) if books else None
    own = output / "own_text.npz"
    if not own.is_file():
        write_own_text(folder, source, own, config.device)
    for text, place in (("books", source), ("own", str(own))):
        sets = {made: start_of(made) for made in HEADS if made.endswith(f"/{text}")}
        train_heads(folder, model, place, recipe, sets, output, config.device)


def run(
    model: str, books: str, output: Path, name: str = "", sets: str = ",".join(STARTS), recipe: Path = RECIPE,
    device: str = "auto", minutes: float | None = None,
) -> None:  # fmt: skip
    """Train the sets of heads of one model.

    Args:
        model: a checkpoint's folder, a built model's name or a hub id.
        books: folder of ``*.txt`` books, a hub id such as ``emozilla/pg19``, or ``*.npz`` of a model's own text.
        output: folder.
        name: the model's name in the recipe; left out, MODEL.
        sets: with commas between; ``chained/normal`` is the paper's start.
        recipe: the settings.
        device: ``auto``, ``cpu`` or ``cuda``.
        minutes: at most; the schedule ends with them.
    """
    name = name or model
    refuse_unknown("sets", "set of heads", sets.split(","), [*STARTS, *HEADS])
    starts, made = {given: start_of(given) for given in sets.split(",")}, load_recipe(name, recipe)
    train_heads(resolve_checkpoint(model, None), name, books, made, starts, output, device, minutes)


if __name__ == "__main__":
    run_commands(run)
