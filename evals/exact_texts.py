"""Hold every lossless variant against plain decoding in float32: the same tokens, alone and in a ragged batch.

``python -m longdecode.evals.exact_texts results/tokenswift --run middle`` takes the variants of a long generation that
draft losslessly, lets each write 2,000 tokens after one prompt and three of unequal length under each sampler, and
writes ``exact_texts.csv``. Long generations themselves are of bfloat16 and part from Full's text at the first near tie;
here a difference is an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import device_name, resolve_device
from longdecode.engine.errors import LongDecodeError
from longdecode.engine.generation import Generator, Request
from longdecode.evals import manifest, provenance
from longdecode.evals.gate import attempt
from longdecode.evals.generation.job import GenerationJob
from longdecode.evals.generation.texts import first_difference, prompts
from longdecode.evals.run_config import REFERENCE_METHOD, RunConfig, load_run_config
from longdecode.evals.store import write_table

NAME = "exact_texts.csv"
TOKENS, LENGTHS = 2000, (2048, 1531, 1100)
"""Tokens written, and prompts of the ragged batch, the first one alone too."""
PLACE = ["model", "variant", "sampler", "batch"]


def exact_texts(config: RunConfig, run: str, device: torch.device, tokens: int = TOKENS) -> Iterator[dict[str, object]]:
    """Let every lossless variant of a run write in float32 and yield a row for each, sampler by sampler.

    Raises:
        ConfigError: the configuration has no such run.
        DataUnavailableError: the books are not there.
    """
    job = GenerationJob(replace(config, dtype="float32"), run, device, Path(NAME))
    found = prompts(config.data.get("pg19"), len(LENGTHS), LENGTHS[0], config.seed, job.tokenizer)
    requests = [
        Request(ids[:length], tokens, seed=config.seed + number)
        for number, ((_, ids), length) in enumerate(zip(found, LENGTHS, strict=True))
    ]
    for sampler, batch in product(job.spec.samplers, (1, len(LENGTHS))):
        generator = job.generator(sampler)
        full = _texts(job, REFERENCE_METHOD, generator, requests[:batch])
        for variant in job.spec.variants:
            row: dict[str, object] = {
                "model": job.spec.model, "variant": variant, "method": config.methods[variant].method,
                "sampler": sampler, "batch": batch, "tokens": tokens, "device": device_name(device),
                "prompts": " ".join(map(str, LENGTHS[:batch])), "revision": provenance.revision()[:12],
            }  # fmt: skip
            mine, status, reason = attempt(partial(_texts, job, variant, generator, requests[:batch]), device)
            if mine is None:
                yield row | {"status": status, "reason": reason}
            elif mine:
                firsts = [first_difference(ours, theirs) for ours, theirs in zip(mine, full, strict=True)]
                first = min((at for at in firsts if at is not None), default=None)
                yield row | {"status": "ok", "identical": firsts.count(None), "first_difference": first}


def _texts(
    job: GenerationJob, variant: str, generator: Generator, requests: Sequence[Request]
) -> list[tuple[int, ...]]:
    """Return a variant's texts; none of one that does not draft by the exact rule, which writes a text of its own."""
    method = job.build(variant, job.config.budgets_of(variant)[0].tokens(LENGTHS[0]), LENGTHS[0])
    if variant != REFERENCE_METHOD and not _is_exact(method):
        return []
    return [done.output_ids for done in generator.run(requests, method)]


def _is_exact(method: AttentionMethod) -> bool:
    return method.draft is not None and method.draft.rule == "exact"


def main(results: Path, run: Annotated[str, typer.Option()], tokens: int = TOKENS, device: str = "auto") -> None:
    """Write the texts of a run's lossless variants in float32 and compare them with plain decoding's.

    RESULTS is a results folder with config.yaml, and --run a name under its generation.runs.
    """
    path = results / NAME
    try:
        config = load_run_config(results / "config.yaml")
        table = pd.read_csv(path, keep_default_na=False, na_values="") if path.exists() else pd.DataFrame(columns=PLACE)
        for row in exact_texts(config, run, resolve_device(device), tokens):
            print({name: row.get(name) for name in (*PLACE[1:], "status", "identical")}, flush=True)
            again = (table[PLACE] == [row[name] for name in PLACE]).all(axis=1)
            table = pd.concat([table[~again], pd.DataFrame([row])], ignore_index=True)
            write_table(path, table)
        manifest.seal(results, [path])
    except LongDecodeError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    typer.run(main)
