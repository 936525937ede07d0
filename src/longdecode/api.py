"""One call from Python: a checkpoint, prompts and a method give texts, with what was read for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.tensor_parallel import method_for, run_split
from longdecode.engine.tokenizer import eos_ids, load_tokenizer
from longdecode.methods.registry import get_method


@dataclass(frozen=True, slots=True)
class Answer:
    """The text after one prompt.

    ``read_tokens_mean`` is the tokens read per KV head, layer and step; the times are those of the whole batch.
    """

    text: str
    output_ids: tuple[int, ...]
    read_tokens_mean: float
    prefill_ms: float
    decode_ms: float


def generate(
    model: str | Path, prompts: Sequence[str], *, method: str = "full", budget: int | None = None,
    max_new_tokens: int = 256, chat: bool = False, temperature: float = 0.0, device: str = "auto", dtype: str = "auto",
    gpus: int = 1, **params: Any,
) -> list[Answer]:  # fmt: skip
    """Continue prompts, as one ragged batch, with a method's own kernels and cache.

    Args:
        model: a checkpoint's folder or hub id.
        budget: tokens that a query may read per KV head; methods that read everything take none.
        chat: put each prompt in the model's chat template.
        temperature: 0 is greedy.
        gpus: GPUs of this host to split the model over, one process each; a script calls this under
            ``if __name__ == "__main__":`` then.
        params: the method's knobs, as its card lists them.

    Raises:
        ConfigError: the method or a parameter is unknown, with the nearest name, or the budget does not fit.
        CheckpointError: the model cannot be loaded.
        ContextLimitError: a prompt is longer than the model's context.
        UnsupportedCellError, RankError: over several GPUs, the method cannot; a process failed, with its text.
    """
    if isinstance(prompts, str) or not all(isinstance(prompt, str) for prompt in prompts):
        raise ConfigError("prompts: a list of texts is needed")
    if budget is not None and not hasattr(budget, "__index__"):
        raise ConfigError(f"budget = {budget!r}: a whole number of tokens is needed")
    folder, _ = resolve_checkpoint(str(model)), get_method(method)
    answer = partial(_answers, folder, prompts, method, budget, max_new_tokens, chat, temperature, params)
    ranks = run_split(folder, gpus, device, dtype, method, answer)
    return [replace(a[0], read_tokens_mean=fmean(b.read_tokens_mean for b in a)) for a in zip(*ranks, strict=True)]


def _answers(
    folder: Path, prompts: Sequence[str], method: str, budget: int | None, max_new_tokens: int, chat: bool,
    temperature: float, params: dict[str, Any], decoder: Decoder,
) -> list[Answer]:  # fmt: skip
    """Continue the prompts with a decoder, or on one rank of several with its share."""
    tokenizer = load_tokenizer(folder)
    stop = eos_ids(folder, tokenizer)
    prompt_ids = [tokenizer.prompt_ids(prompt, chat) for prompt in prompts]
    requests = [Request(ids, max_new_tokens, stop_ids=stop, seed=row) for row, ids in enumerate(prompt_ids)]
    with torch.inference_mode():
        generator = Generator(decoder, Sampling(temperature=temperature))
        done = generator.run(requests, method_for(decoder, get_method(method), budget, params))
    texts = [tokenizer.decode([token for token in one.output_ids if token not in stop]) for one in done]
    return [
        Answer(text, one.output_ids, one.read_tokens_mean, one.prefill_ms, one.decode_ms)
        for text, one in zip(texts, done, strict=True)
    ]
