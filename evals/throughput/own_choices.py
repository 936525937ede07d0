"""Throughput of checkpoints on real text at equal device memory: what a step reads, each method chooses for itself."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.errors import ConfigError, DataUnavailableError
from longdecode.engine.generation import Generator
from longdecode.engine.request import Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import Stepper, make_stepper
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals.datasets.books import read_books
from longdecode.evals.gate import free_memory
from longdecode.evals.generators.narrative import narrative
from longdecode.evals.records import Bench as BenchName
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.equal_memory import EqualMemoryBench, block_bytes, fetched, moved_bytes
from longdecode.evals.throughput.harness import SpeedCell
from longdecode.evals.throughput.models import TimedModel, config_of
from longdecode.evals.throughput.spec import FULL, Grid
from longdecode.evals.throughput.steps import stepper_case
from longdecode.evals.throughput.timing import Case, captured, repeated
from longdecode.kernels.prefill_attention import prefill_attention
from longdecode.methods.offloaded import Offloadable
from longdecode.methods.offloaded_cache import OffloadedCache
from longdecode.methods.shadowkv.cache import ShadowCache
from longdecode.training.long_context.books import manifest

_STRIDE = 0.6180339887498949
"""Of the room that a book has for windows, from one window's start to the next: spreads any number of them."""


class OwnChoicesBench(EqualMemoryBench):
    """Times variants on models of their own, of one shape.

    A variant reads its prompts by its own rule into its own cache and decodes the words that follow in the book, its
    step a CUDA graph. It goes on from block to block and never back, so that what is resident is what its choices left
    there. Full attention, at a batch of its own, goes back before each of its blocks.
    """

    module: ClassVar[str] = "own_choices"
    bench: ClassVar[BenchName] = "own_choices"

    def __init__(self, run: RunConfig, name: str, device: torch.device):
        super().__init__(run, name, device)
        configs = [config_of(run, model) for model in self.models]
        shapes = {(c.num_layers, c.hidden_size, c.num_heads, c.num_kv_heads, c.head_dim, c.vocab_size) for c in configs}
        if len(shapes) > 1:
            raise ConfigError(f"{run.source}: own_choices: {', '.join(self.models)} are models of several shapes")
        self.missing_texts: DataUnavailableError | None = None
        try:
            self.texts = self._texts()
        except DataUnavailableError as error:
            self.missing_texts = error
        self.ids: list[list[int]] = []

    def setting(self, grid: Grid) -> dict[str, Any]:
        """See ``EqualMemoryBench.setting``."""
        return {"prompts": grid.prompts}

    def decoded_tokens(self, grid: Grid) -> int:
        """Return the tokens that follow a prompt."""
        return grid.forced_tokens

    def model(self, cell: SpeedCell) -> TimedModel:
        """See ``Bench.model``; of those beside full attention's, one stays loaded."""
        name = self.model_name(cell)
        if name not in self._loaded:
            self._loaded = {kept: model for kept, model in self._loaded.items() if kept == cell.grid.model}
            free_memory(self.device)
        return super().model(cell)

    def place(self, cell: SpeedCell) -> Any:
        """See ``Bench.place``; of one length of text, too."""
        return *super().place(cell), cell.grid.forced_tokens

    def prepare(self, cell: SpeedCell) -> Case:
        """Read a cell's prompts and stand ready to decode."""
        grid, method, model = cell.grid, self.method(cell), self.model(cell)
        if grid.prompts == "whole" or cell.variant == FULL:
            vars(method)["attend_prompt"] = _read_whole
        prompt = Generator(model.decoder).prefill_for(self.requests(grid, cell.context, cell.batch), method)
        with torch.no_grad():
            stepper = make_stepper(model.decoder, Sampling(), prompt, method, keep_prompt=False)
        known = {
            "text": "books" if self.run.data.get("pg19") else "generated", "prefill_ms": prompt.prefill_ms,
        }  # fmt: skip
        if cell.variant == FULL:
            case = stepper_case(stepper, stepper.step, FULL, grid.steps)
            for _ in range((grid.scored_tokens - 1) // grid.steps):
                case.run()
            losses = self._losses(stepper, grid)
            known["loss"] = float(losses.mean())
            return replace(case, calls=grid.steps * cell.batch, params=known, keep=(*case.keep, losses))
        advance = captured(stepper.step, self.device)
        cache, full_losses = stepper.state.cache, self.reference(cell).keep[-1]
        before, done = moved_bytes(cache), int(stepper.sequences.counts[0])

        def found() -> Mapping[str, Any]:
            moved = fetched(cache, before, cell.batch * (int(stepper.sequences.counts[0]) - done))
            losses = self._losses(stepper, grid)
            return {
                **moved, "loss": float(losses.mean()), "full_loss": float(full_losses[: len(losses)].mean()),
                "miss_rate": _miss_rate(stepper, sum(moved.values())),
            }  # fmt: skip

        return Case(
            cell.variant, repeated(advance, grid.steps), grid.steps * cell.batch, keep=(stepper, advance),
            caches=(cache,), params=known, found=found,
        )  # fmt: skip

    def requests(self, grid: Grid, context: int, batch: int) -> list[Request]:
        """Return windows of ``context`` tokens in the texts, the last of them forced.

        Row by row another text, and another window of it each time around: the first rows are those of every batch.

        Raises:
            DataUnavailableError: there are no texts, or none is long enough.
        """
        if self.missing_texts is not None:
            raise self.missing_texts
        if not self.ids:
            spec = self.run.models[grid.model]
            tokenizer = load_tokenizer(resolve_checkpoint(spec.path, spec.revision))
            self.ids = [list(tokenizer.encode(text)) for text in self.texts]
        long = [ids for ids in self.ids if len(ids) >= context]
        if not long:
            raise DataUnavailableError(f"no text of the {len(self.ids)} has {context:,} tokens")
        cut, found = context - grid.forced_tokens, []
        for row in range(batch):
            ids, turn = long[row % len(long)], row // len(long)
            start = int((len(ids) - context) * (turn * _STRIDE % 1))
            window = tuple(ids[start : start + context])
            found.append(Request(window[:cut], 0, window[cut:]))
        return found

    def _texts(self) -> Sequence[str]:
        """Return the books that no training of this project saw, or stories where no place for books is configured."""
        if books := self.run.data.get("pg19"):
            return tuple(read_books(books, manifest()["unseen"]).values())
        longest = max(context for grid in self.grids for context in grid.contexts)
        count = max(grid.sequences for grid in self.grids)
        drawn = (random.Random(f"own choices {number}") for number in range(count))
        return tuple(narrative(rng, 8 * longest, 0).prompt for rng in drawn)

    def _losses(self, stepper: Stepper, grid: Grid) -> Tensor:
        """Return nats a token over the tokens that every variant decodes, of full attention's rows or fewer."""
        rows = min(grid.sequences, len(stepper.sequences.counts))
        return -stepper.sequences.logprobs[:rows, : grid.scored_tokens].double().mean(dim=1).cpu()


def _read_whole(layer: int, q: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """See ``AttentionMethod.attend_prompt``: dense and causal."""
    return prefill_attention(q, keys, values, start)


def _miss_rate(stepper: Stepper, moved: float) -> float | None:
    """Return the share of what a step lists that it fetches: blocks, or ShadowKV's chosen chunks, of which values."""
    cache = stepper.state.cache
    if isinstance(cache, ShadowCache):
        config, plan = cache.config, cache.plan
        chunk = plan.chunk * config.head_dim * cache.shape.dtype.itemsize
        return moved / (chunk * plan.sparse * config.num_layers * config.num_kv_heads)
    if isinstance(cache, OffloadedCache):
        assert isinstance(stepper.method, Offloadable)
        lists = len(cache.at) * cache.config.num_kv_heads
        return moved / (block_bytes(cache) * stepper.method.listed_blocks * lists)
    return None
