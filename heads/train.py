"""Train draft heads on a frozen model, resumably: ``python -m longdecode.heads.train --help``.

The model runs once over a window without gradients; the heads, in float32, learn to name the tokens behind the next
one through the model's own LM head. A window is a function of seed, step and row alone, so that a killed run goes on
from its last checkpoint as if it had not been.

Source: TokenSwift (arXiv 2502.18890), section 3.1 and table 9; Cai et al. 2024, Medusa (arXiv 2401.10774), section 2.2.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from longdecode.engine.attention import DenseAttention
from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.errors import CheckpointError
from longdecode.engine.prefill import WholePrompt
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.weights import load_decoder, model_hash
from longdecode.evals.provenance import revision
from longdecode.evals.tokenizing import load_tokenizer
from longdecode.heads.data import Books, PairTable
from longdecode.heads.recipe import RECIPE, Init, Recipe, load_recipe
from longdecode.methods.draft_heads import DraftHeads, Kind, write_heads

RANKS = ("top1", "top2", "top3")


class HeadTrainer:
    """Train heads of one kind on one model.

    Args:
        decoder: frozen.
        books: windows to train on.
        recipe: the settings.
        kind: of the heads.
        init: their first weights.
        state: file of the last checkpoint.

    Raises:
        CheckpointError: the file's state belongs to another recipe.
    """

    def __init__(self, decoder: Decoder, books: Books, recipe: Recipe, kind: Kind, init: Init, state: Path):
        self.decoder, self.books, self.recipe, self.state = decoder, books, recipe, state
        self.about = f"{kind} {init} {recipe!r}"
        config = decoder.config
        self.heads = DraftHeads(kind, recipe.heads[kind], config.hidden_size, config.rms_norm_eps)
        self.heads.initialise(init, recipe.seed, decoder.weights.final_norm.float())
        self.heads.to(decoder.device)
        self.optimizer = torch.optim.AdamW(
            self.heads.parameters(), lr=recipe.learning_rate, betas=(0.9, 0.999), weight_decay=recipe.weight_decay
        )
        self.curve: list[dict[str, float]] = []
        self.step = 0
        if state.is_file():
            self._restore()

    def fit(self, stop: int | None = None) -> None:
        """Train up to the recipe's last step, or up to step ``stop``."""
        recipe, clock = self.recipe, time.monotonic()
        while self.step < min(recipe.steps, recipe.steps if stop is None else stop):
            losses = self._step(self.step)
            self.step += 1
            if self.step % recipe.log_every == 0 or self.step == recipe.steps:
                row = {f"loss_{head}": round(loss, 4) for head, loss in enumerate(losses.tolist(), start=1)}
                self.curve.append({"step": self.step, **row})
                seconds = round(time.monotonic() - clock, 1)
                print(json.dumps(self.curve[-1] | {"seconds": seconds}), flush=True)
            if self.step % recipe.save_every == 0:
                self._save()

    @torch.no_grad()
    def accuracy(self) -> list[dict[str, Any]]:
        """Return top-1, top-2 and top-3 accuracy by head on unseen books, and of the pair table beside it."""
        vocab, recipe = self.decoder.config.vocab_size, self.recipe
        windows = self.books.unseen_windows(recipe.seed, recipe.unseen_windows)
        tables = [PairTable(self.books.train, head + 2, vocab) for head in range(self.heads.count)]
        ours, theirs = (torch.zeros(self.heads.count, 3, dtype=torch.float64) for _ in range(2))
        for window in windows:
            tokens = torch.from_numpy(window)[None]
            for head, (state, wanted) in enumerate(self._pairs(tokens)):
                for piece, want in zip(state.split(recipe.loss_slice), wanted.split(recipe.loss_slice), strict=True):
                    best = self.decoder.logits(piece.to(self.decoder.dtype)).topk(3, dim=1).indices
                    ours[head] += ((best == want[:, None]).cumsum(dim=1) > 0).sum(dim=0).cpu() / len(wanted)
                theirs[head] += tables[head].hits(tokens[0, : len(wanted)], wanted.cpu()).double().mean(dim=0)
        return [
            {"head": head + 1}
            | {name: round(float(ours[head, rank]) / len(windows), 4) for rank, name in enumerate(RANKS)}
            | {f"pair_{name}": round(float(theirs[head, rank]) / len(windows), 4) for rank, name in enumerate(RANKS)}
            for head in range(self.heads.count)
        ]

    def _step(self, step: int) -> Tensor:
        recipe = self.recipe
        for group in self.optimizer.param_groups:
            group["lr"] = recipe.learning_rate_at(step)
        sums = torch.zeros(self.heads.count, device=self.decoder.device)
        for first in range(0, recipe.sequences, recipe.at_once):
            rows = range(first, min(first + recipe.at_once, recipe.sequences))
            tokens = torch.from_numpy(np.stack([self.books.window(recipe.seed, step, row) for row in rows]))
            losses = torch.stack([self._loss(state, wanted) for state, wanted in self._pairs(tokens)])
            share = len(rows) / recipe.sequences
            (losses.sum() * share).backward()
            sums += losses.detach() * share
        torch.nn.utils.clip_grad_norm_(list(self.heads.parameters()), recipe.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return sums.cpu()

    def _pairs(self, tokens: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield for each head the states ``[N, H]`` that the LM head reads and the tokens ``[N]`` that they must name.

        Head ``i``, counted from 1, at place ``t`` names the token at ``t + 1 + i``.
        """
        decoder, length = self.decoder, tokens.shape[1]
        cache = decoder.new_cache(len(tokens), length)
        state = WholePrompt(cache, [length] * len(tokens), tokens.numel())
        block = TokenBlock(tokens, torch.arange(length, device=decoder.device)[None])
        normed = decoder.forward(block, state, DenseAttention((), decoder.config))
        before, after = state.residual.float(), normed.float()
        wanted = tokens.to(decoder.device)
        for head, found in enumerate(self.heads.states(before, after), start=1):
            yield found[:, : length - 1 - head].flatten(0, 1), wanted[:, 1 + head :].flatten()

    def _loss(self, states: Tensor, wanted: Tensor) -> Tensor:
        """Return the mean cross-entropy; logits of ``loss_slice`` places exist at once, and again for the gradient."""
        head = self.decoder.weights.lm_head

        def piece(state: Tensor, want: Tensor) -> Tensor:
            return cross_entropy((state.to(head.dtype) @ head.T).float(), want, reduction="sum")

        size = self.recipe.loss_slice
        parts = zip(states.split(size), wanted.split(size), strict=True)
        return torch.stack([checkpoint(piece, *part, use_reentrant=False) for part in parts]).sum() / len(wanted)

    def _save(self) -> None:
        self.state.parent.mkdir(parents=True, exist_ok=True)
        partial = self.state.with_suffix(".partial")
        values = {"about": self.about, "step": self.step, "curve": self.curve, "heads": self.heads.state_dict()}
        torch.save(values | {"optimizer": self.optimizer.state_dict()}, partial)
        partial.replace(self.state)

    def _restore(self) -> None:
        saved = torch.load(self.state, map_location=self.decoder.device, weights_only=True)
        if saved["about"] != self.about:
            raise CheckpointError(f"{self.state} belongs to another training; remove it to start anew")
        self.heads.load_state_dict(saved["heads"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.step, self.curve = saved["step"], saved["curve"]


def train_heads(
    folder: Path, model: str, source: str | None, recipe: Recipe, kind: Kind, init: Init, output: Path, device: str
) -> None:
    """Train heads and write ``heads.safetensors``, ``curve.csv``, ``accuracy.csv`` and, last, ``heads.json``.

    Args:
        folder: the checkpoint.
        model: its name.
        source: books; see ``Books``.
        output: folder; it also keeps ``state.pt`` until the training ends.

    Raises:
        DataUnavailableError: there are no books.
        CheckpointError: the checkpoint cannot be loaded, or ``state.pt`` belongs to another training.
    """
    target = resolve_device(device)
    decoder = load_decoder(folder, device=target, dtype=resolve_dtype("auto", target))
    books = Books(source, load_tokenizer(folder), recipe.length)
    trainer = HeadTrainer(decoder, books, recipe, kind, init, output / "state.pt")
    trainer.fit()
    accuracy = trainer.accuracy()
    write_rows(output / "curve.csv", trainer.curve)
    write_rows(output / "accuracy.csv", accuracy)
    run: dict[str, Any] = {"init": init, "recipe": recipe.model_dump(mode="json"), "revision": revision()}
    run |= {"books": len(books.train), "unseen_books": len(books.unseen)}
    run |= {"loss": trainer.curve[-1], "accuracy": accuracy}
    write_heads(output / "heads.json", trainer.heads, model, model_hash(folder), run)
    trainer.state.unlink(missing_ok=True)


def write_rows(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write a table, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    partial.replace(path)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a checkpoint's folder, a built model's name or a hub id")
    parser.add_argument("--name", help="the model's name in the recipe (default: --model)")
    parser.add_argument("--books", required=True, help="folder of *.txt books, or a hub id such as emozilla/pg19")
    parser.add_argument("--kind", choices=("chained", "medusa"), default="chained")
    parser.add_argument("--init", choices=("zero", "normal"), default="zero", help="normal is the paper's")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--recipe", type=Path, default=RECIPE)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args(arguments)
    name = asked.name or asked.model
    recipe, folder = load_recipe(name, asked.recipe), resolve_checkpoint(asked.model, None)
    train_heads(folder, name, asked.books, recipe, asked.kind, asked.init, asked.output, asked.device)


if __name__ == "__main__":
    main()
