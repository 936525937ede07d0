"""Replay written texts in float32: is each token the one that full attention draws there, and if not, how near was it?

``python -m longdecode.evals.replay results/tokenswift --run long --tokens 4096`` reads the run's records and
writes their rows of ``replay.csv``. The records are of bfloat16 on a GPU, where a step of one row and a block of many
round differently, so that even a lossless text leaves Full's at the first near tie and is another one from there on. A
replay feeds each text its own past and compares place by place; Full's own text, replayed alike, shows what rounding
alone does.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from longdecode.engine.attention import DenseAttention
from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.engine.prefill import WholePrompt
from longdecode.engine.sampling import Sampling, gumbel_noise, penalised
from longdecode.engine.token_block import Piece, TokenBlock
from longdecode.engine.weights import load_decoder
from longdecode.evals import manifest
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.generation.job import REFERENCE, SUITE
from longdecode.evals.generation.prompts import prompts
from longdecode.evals.records import Record
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.store import read_records, write_table
from longdecode.evals.tokenizing import load_tokenizer

NAME = "replay.csv"
MARGINS = (0.125, 0.25)
"""Nats by which the difference of two logits may be off: one and two steps of bfloat16 between 16 and 32."""
_PIECE_TOKENS, _LOGIT_ROWS = 1024, 256
_PLACE = ["run", "model", "label", "sampler", "context", "budget", "sample"]


class _Replayed(WholePrompt):
    """A text after a prompt that the cache already has: only columns from ``known`` on are fed."""

    known = 0

    def pieces(self, block: TokenBlock) -> tuple[Piece, ...]:
        step = _PIECE_TOKENS
        starts = range(self.known, self.lengths[0], step)
        return tuple(Piece(slice(0, 1), slice(start, min(start + step, self.lengths[0]))) for start in starts)


def distances(
    logits: Tensor, wanted: Tensor, sampling: Sampling, noise: Tensor | None, history: Tensor | None
) -> Tensor:
    """Return how far differences of two logits must be off for each wanted token to be the one drawn.

    0 where it is drawn as things are. A token is drawn when it is under no filter and nothing that surely passes it
    beats it under the noise, so that the distance is the larger of what it lacks to min-p's floor and, over all
    others, the smaller of their lead and what they stand over the floor.

    Args:
        logits: ``[N, V]`` float32.
        wanted: ``[N]`` int64.
        sampling: greedy, or a temperature with a penalty and min-p.
        noise: ``[N, V]`` float64, ``None`` for greedy choice.
        history: ``[N, W]`` int64, the tokens before, where there is a penalty.

    Returns:
        ``[N]`` float64, in nats.

    Raises:
        ConfigError: the sampling has another filter.
    """
    if not sampling.is_simple:
        raise ConfigError("a replay knows a penalty, a temperature and min-p; top-p and eta are not among them")
    if sampling.penalty > 1:
        if history is None:
            raise ConfigError("a penalty needs the tokens before the draw")
        logits = penalised(logits, history, sampling.penalty)
    own = wanted[:, None]
    laws = logits.double() / (sampling.temperature or 1.0)
    scores = laws if noise is None else laws + noise
    leads = (scores - scores.gather(1, own)).scatter(1, own, -math.inf)
    if noise is None or sampling.min_p == 0:
        return leads.amax(dim=1).clamp(min=0)
    above = laws - (laws.amax(dim=1, keepdim=True) + math.log(sampling.min_p))
    beaten = torch.minimum(leads, above).amax(dim=1)
    return torch.maximum(beaten, -above.gather(1, own)[:, 0]).clamp(min=0)


class Replay:
    """A run's prompts in float32, and its texts after them.

    Args:
        config: the configuration as run.
        run: a name under ``generation.runs``.
        books: the folder of the books, in place of ``data.pg19``.
    """

    def __init__(self, config: RunConfig, run: str, books: Path | None = None):
        if config.generation is None or run not in config.generation.runs:
            raise ConfigError(f"{config.source}: no generation of the name {run!r} is configured (key 'generation')")
        self.config, self.run, self.books = config, run, books or config.data.get("pg19")
        self.spec, self.samplers = config.generation.runs[run], config.generation.samplers
        place = config.models[self.spec.model]
        self.folder = resolve_checkpoint(place.path, place.revision)
        self.tokenizer = load_tokenizer(self.folder)
        self.decoder: Decoder = load_decoder(self.folder, device=torch.device("cpu"), dtype=torch.float32)

    @torch.no_grad()
    def rows(self, records: Sequence[Record], tokens: int) -> list[dict[str, object]]:
        """Return one row a text: tokens replayed, those drawn alike, those beyond each margin, the largest distance.

        Raises:
            ConfigError: a record's prompt is not the one that the books give.
        """
        rows, seen = list[dict[str, object]](), dict[tuple[object, ...], Tensor]()
        for place in dict.fromkeys((r.context, r.sample_index) for r in records):
            mine = [r for r in records if (r.context, r.sample_index) == place]
            prompt = self._prompt(mine[0])
            cache = self.decoder.new_cache(1, len(prompt) + tokens)
            theirs = {r.task: r.output_ids for r in mine if r.variant == REFERENCE}
            for record in mine:
                ids = record.output_ids or theirs[record.task]  # a text that is Full's is stored once
                if ids is None:
                    print(f"{record.variant} {record.task}: its tokens were not kept", flush=True)
                    continue
                text = tuple(ids[:tokens])
                key = (place, record.task, text)
                if key not in seen:
                    state = _Replayed(cache, [len(prompt) + len(text)], _PIECE_TOKENS)
                    state.known = 0 if not any(k[0] == place for k in seen) else len(prompt) - 1
                    seen[key] = self._distances(record, prompt, text, state)
                    print(f"{record.variant} {record.task}: {int((seen[key] == 0).sum())} of {len(text)}", flush=True)
                found = seen[key]
                values = (
                    self.run,
                    record.model,
                    record.variant,
                    record.task,
                    record.context,
                    record.budget,
                    record.sample_index,
                )
                row: dict[str, object] = dict(zip(_PLACE, values, strict=True))
                row |= {"tokens": len(text), "drawn": int((found == 0).sum())}
                row |= {f"beyond_{margin:g}": int((found > margin).sum()) for margin in MARGINS}
                rows.append(row | {"largest": round(float(found.max()), 4)})
        return rows

    def _prompt(self, record: Record) -> tuple[int, ...]:
        count = record.sample_index + 1
        found = prompts(self.spec.source, self.books, count, record.context, self.config.seed, self.tokenizer)
        book, prompt = list(found.items())[record.sample_index]
        if hash_texts([book, *map(str, prompt)]) != record.prompt_sha256:
            raise ConfigError(
                f"book {book} of {self.books} gives another prompt than the one that {record.variant} went on from"
            )
        return prompt

    def _distances(self, record: Record, prompt: Sequence[int], text: Sequence[int], state: _Replayed) -> Tensor:
        sampling = Sampling(**asdict(self.samplers[record.task]))
        ids = torch.tensor([[*prompt, *text]])
        block = TokenBlock(ids, torch.arange(ids.shape[1])[None])
        hidden = self.decoder.forward(block, state, DenseAttention((), self.decoder.config))[0]
        hidden = hidden[len(prompt) - 1 - state.known : -1]
        name = f"{SUITE}/{record.task}/{record.context}/{record.sample_index}/{self.config.seed}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")  # as GenerationJob seeds a text
        found = []
        for first in range(0, len(text), _LOGIT_ROWS):
            logits = self.decoder.logits(hidden[first : first + _LOGIT_ROWS])
            at = torch.arange(first, first + len(logits)) + len(prompt)
            window = sampling.history_tokens
            history = ids[0].unfold(0, window, 1)[at - window] if window else None
            seeds = torch.full_like(at, seed)
            noise = gumbel_noise(seeds, at, logits.shape[1]) if sampling.temperature else None
            found.append(distances(logits, ids[0, at], sampling, noise, history))
        return torch.cat(found)


def main(arguments: list[str] | None = None) -> int:
    """Replay a run's texts and write their rows of the table."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path, help="a results folder with config.yaml and generation/")
    parser.add_argument("--run", required=True, help="a name under generation.runs")
    parser.add_argument("--tokens", type=int, default=512, help="first tokens of each text")
    parser.add_argument("--books", type=Path, help="folder of the books; the configuration's data.pg19 when left out")
    given = parser.parse_args(arguments)
    try:
        file = given.results / "generation" / f"{given.run}.parquet"
        records = [r for r in read_records(file, Record) if r.status == "ok"]
        rows = Replay(load_run_config(given.results / "config.yaml"), given.run, given.books).rows(
            records, given.tokens
        )
        table, path = pd.DataFrame(rows), given.results / NAME
        if path.exists():
            before = pd.read_csv(path, dtype={"budget": str})
            table = pd.concat([before[before["run"] != given.run], table], ignore_index=True)
        write_table(path, table)
        manifest.seal(given.results, [path])
    except LongDecodeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
