"""Hold every lossless writer against plain decoding in float32: the same tokens, alone and in a ragged batch.

``python -m longdecode.evals.exact_texts results/tokenswift --model smollm2-long`` takes the labels and drafters that
the long generations of the configuration name for a model, lets each write 2,000 tokens after one prompt and three of
unequal length, greedily and with the penalty, and writes ``exact_texts.csv``. Long generations themselves are of
bfloat16 and part from Full's text at the first near tie; here a difference is an error, or says how near its tie was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pandas as pd
import torch

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, resolve_device
from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.prefill import WholePrompt
from longdecode.engine.sampling import gumbel_noise
from longdecode.engine.token_block import TokenBlock
from longdecode.evals import manifest, provenance
from longdecode.evals.budgets import Budget
from longdecode.evals.failures import free_memory, status_of
from longdecode.evals.generation.job import REFERENCE, GenerationJob, Writer
from longdecode.evals.generation.prompts import prompts
from longdecode.evals.replay import distances
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.store import write_table
from longdecode.methods.registry import get_method

NAME = "exact_texts.csv"
TOKENS, LENGTHS, SAMPLERS = 2000, (2048, 1531, 1100), ("greedy", "minp")
"""Tokens written, prompts of the ragged batch (the first one alone too), and how tokens are drawn."""
PLACE = ["model", "label", "sampler", "batch"]
_PIECE_TOKENS, _LOSSLESS = 1024, "exact"


class ExactTexts:
    """A model in float32, prompts of three books, and all that writes losslessly after them.

    Args:
        config: the configuration; its ``generation`` names who writes.
        model: a key of ``config.models``.
        device: where to write.
        books: folder of the books, in place of ``data.pg19``.

    Raises:
        ConfigError: no long generation is configured for the model.
    """

    def __init__(self, config: RunConfig, model: str, device: torch.device, books: Path | None = None):
        runs = config.generation.runs if config.generation is not None else {}
        self.config = replace(config, dtype="float32")
        jobs = [
            GenerationJob(self.config, name, device, Path(NAME)) for name, run in runs.items() if run.model == model
        ]
        if not jobs:
            raise ConfigError(f"{config.source}: no long generation is configured for {model!r} (key 'generation')")
        self.job = jobs[0]
        self.writers: dict[str, tuple[Writer, Budget | None]] = {}
        for job in sorted(jobs, key=lambda job: len(job.spec.drafters)):
            for writer in job.writers:
                budget = (job.spec.budgets or config.budgets_of(writer.gated))[0] if writer.takes_budget else None
                if writer.params.get("mode", _LOSSLESS) == _LOSSLESS:
                    self.writers.setdefault(writer.label, (writer, budget))
        source = self.job.spec.source
        data = books or config.data.get("pg19")
        found = prompts(source, data, len(LENGTHS), LENGTHS[0], config.seed, self.job.tokenizer)
        self.prompts = [ids[:length] for ids, length in zip(found.values(), LENGTHS, strict=True)]

    def rows(self, sampler: str, batch: int, tokens: int, labels: Collection[str] = ()) -> Iterator[dict[str, object]]:
        """Let every writer, or those of ``labels``, write after the first ``batch`` prompts and yield a row for each.

        Raises:
            ConfigError: the configuration has no such sampler, or no writer of one of the labels.
        """
        assert self.config.generation is not None
        if unknown := set(labels) - set(self.writers):
            raise ConfigError(
                f"{self.config.source}: no writer {', '.join(sorted(unknown))}; {', '.join(self.writers)}"
            )
        if sampler not in self.config.generation.samplers:
            raise ConfigError(f"{self.config.source}: no sampler {sampler!r} is configured (key 'generation.samplers')")
        sampling = Sampling(**asdict(self.config.generation.samplers[sampler]))
        generator = Generator(self.job.decoder, sampling)
        requests = [
            Request(prompt, tokens, seed=self.config.seed + number)
            for number, prompt in enumerate(self.prompts[:batch])
        ]
        full = generator.run(requests, self._method(REFERENCE, requests))
        for label, (writer, _) in self.writers.items():
            if (not labels or label in labels) and self._drafts(label, requests):
                row: dict[str, object] = {
                    "model": self.job.spec.model, "label": label, "method": writer.method, "sampler": sampler,
                    "batch": batch, "prompts": " ".join(str(len(r.prompt_ids)) for r in requests), "tokens": tokens,
                    "device": device_name(self.job.device), "revision": provenance.revision()[:12],
                }  # fmt: skip
                yield row | self._compared(generator, requests, label, full)

    def _compared(
        self, generator: Generator, requests: Sequence[Request], label: str, full: Sequence[Completion]
    ) -> dict[str, object]:
        failure: Exception | None = None
        try:
            done = generator.run(requests, self._method(label, requests))
        except Exception as error:  # status_of tells which are the writer's own
            failure = error
        if failure is not None:
            if (status := status_of(failure)) is None:
                raise failure
            free_memory(self.job.device, failure)
            return {"status": status, "reason": str(failure)}
        pairs = list(zip(requests, done, full, strict=True))
        parted = [
            (next(at for at, (a, b) in enumerate(zip(mine.output_ids, theirs.output_ids, strict=True)) if a != b),
             request, mine)
            for request, mine, theirs in pairs if mine.output_ids != theirs.output_ids
        ]  # fmt: skip
        nats = [
            distance(self.job.decoder, generator.sampling, request, mine.output_ids[: at + 1])
            for at, request, mine in parted
        ]
        return {
            "status": "ok",
            "identical": len(pairs) - len(parted),
            "first_difference": min((at for at, *_ in parted), default=None),
            "nats": max(nats, default=None),
            "tokens_per_step": round(sum(mine.tokens_per_step for mine in done) / len(done), 3),
        }

    def _drafts(self, label: str, requests: Sequence[Request]) -> bool:
        """Return whether a writer lets Full verify; what decodes by itself has a text of its own."""
        try:
            return self._method(label, requests).draft is not None
        except LongDecodeError as error:
            if status_of(error) is None:
                raise
            return True  # its row says why it cannot write

    def _method(self, label: str, requests: Sequence[Request]) -> AttentionMethod:
        writer, budget = self.writers[label]
        tokens = None if budget is None else budget.tokens(len(requests[0].prompt_ids))
        return get_method(writer.method).from_budget(tokens, self.job.model_config, **writer.params)


@torch.no_grad()
def distance(decoder: Decoder, sampling: Sampling, request: Request, text: Sequence[int]) -> float:
    """Return how far a difference of two logits must be off for Full to draw a text's last token there, in nats."""
    ids = torch.tensor([[*request.prompt_ids, *text]])
    length = ids.shape[1] - 1
    state = WholePrompt(decoder.new_cache(1, length), [length], _PIECE_TOKENS)
    block = TokenBlock(ids[:, :-1], torch.arange(length, device=decoder.device)[None])
    hidden = decoder.forward(block, state, DenseAttention((), decoder.config))[0, -1:]
    logits, window = decoder.logits(hidden).float().cpu(), sampling.history_tokens
    history = ids[:, length - window : length] if window else None
    seeds, places = torch.tensor([request.seed]), torch.tensor([length])
    noise = gumbel_noise(seeds, places, logits.shape[1]) if sampling.temperature else None
    return float(distances(logits, ids[0, -1:], sampling, noise, history)[0])


def main(arguments: list[str] | None = None) -> int:
    """Write the texts of a model's lossless writers in float32 and compare them with plain decoding's."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("results", type=Path, help="a results folder with config.yaml")
    parser.add_argument("--model", required=True, help="a model of its long generations")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of each text")
    parser.add_argument("--samplers", nargs="+", default=SAMPLERS, help="names under generation.samplers")
    parser.add_argument("--batches", nargs="+", type=int, choices=range(1, len(LENGTHS) + 1), default=(1, len(LENGTHS)))
    parser.add_argument(
        "--labels", nargs="+", default=(), help="writers, such as tokenswift or quest+4x2; all when left out"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--books", type=Path, help="folder of the books; the configuration's data.pg19 when left out")
    parser.add_argument("--output", type=Path, help=f"the table; {NAME} of the results folder when left out")
    given = parser.parse_args(arguments)
    try:
        config = load_run_config(given.results / "config.yaml")
        texts = ExactTexts(config, given.model, resolve_device(given.device), given.books)
        path = given.output or given.results / NAME
        table = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=[*PLACE])
        for sampler, batch in product(given.samplers, given.batches):
            for row in texts.rows(sampler, batch, given.tokens, given.labels):
                print(
                    {name: row.get(name) for name in ("label", "sampler", "batch", "status", "identical")}, flush=True
                )
                again = (table[PLACE] == [row[name] for name in PLACE]).all(axis=1)
                table = pd.concat([table[~again], pd.DataFrame([row])], ignore_index=True)
                write_table(path, table)
        if given.output is None:
            manifest.seal(given.results, [path])
    except LongDecodeError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
