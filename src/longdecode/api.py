"""One call from Python: a checkpoint, prompts and a method give texts, with what was read for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.tokenizer import eos_ids, load_tokenizer
from longdecode.engine.weights import load_decoder
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
    model: str | Path,
    prompts: Sequence[str],
    *,
    method: str = "full",
    budget: int | None = None,
    max_new_tokens: int = 256,
    chat: bool = False,
    temperature: float = 0.0,
    device: str = "auto",
    dtype: str = "auto",
    **params: Any,
) -> list[Answer]:
    """Continue prompts, as one ragged batch, with a method's own kernels and cache.

    Args:
        model: a checkpoint's folder or hub id.
        budget: tokens that a query may read per KV head; methods that read everything take none.
        chat: put each prompt in the model's chat template.
        temperature: 0 is greedy.
        params: the method's knobs, as its card lists them.

    Raises:
        ConfigError: the method or a parameter is unknown, with the nearest name, or the budget does not fit.
        CheckpointError: the model cannot be loaded.
        ContextLimitError: a prompt is longer than the model's context.
    """
    folder, target = resolve_checkpoint(str(model)), resolve_device(device)
    chosen = get_method(method)
    tokenizer = load_tokenizer(folder)
    decoder = load_decoder(folder, device=target, dtype=resolve_dtype(dtype, target))
    stop = eos_ids(folder, tokenizer)
    requests = [
        Request(tokenizer.prompt_ids(prompt, chat), max_new_tokens, stop_ids=stop, seed=row)
        for row, prompt in enumerate(prompts)
    ]
    with torch.inference_mode():
        generator = Generator(decoder, Sampling(temperature=temperature))
        done = generator.run(requests, chosen.from_budget(budget, decoder.config, **params))
    return [
        Answer(
            text=tokenizer.decode([token for token in completion.output_ids if token not in stop]),
            output_ids=completion.output_ids,
            read_tokens_mean=completion.read_tokens_mean,
            prefill_ms=completion.prefill_ms,
            decode_ms=completion.decode_ms,
        )
        for completion in done
    ]
