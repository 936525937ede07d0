"""One call from Python: a checkpoint, prompts and a method give texts, with what was read for each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from longdecode.engine.config_reader import read_config, resolve_checkpoint
from longdecode.engine.device import lease_gpus, resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.ranks import Ranks
from longdecode.engine.split_generation import ShareGenerator, SplitGenerator
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
        gpus: GPUs of this host to split the model over, one process each, which wait for jobs on them to end; a script
            calls this under ``if __name__ == "__main__":`` then.
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
    folder, chosen = resolve_checkpoint(str(model)), get_method(method)
    config, tokenizer, sampling = read_config(folder), load_tokenizer(folder), Sampling(temperature=temperature)
    stop = eos_ids(folder, tokenizer)
    prompt_ids = [tokenizer.prompt_ids(prompt, chat) for prompt in prompts]
    requests = [Request(ids, max_new_tokens, stop_ids=stop, seed=row) for row, ids in enumerate(prompt_ids)]
    with ExitStack() as stack:
        if gpus == 1:
            target = resolve_device(device)
            generator = Generator(load_decoder(folder, device=target, dtype=resolve_dtype(dtype, target)), sampling)
        else:
            devices = stack.enter_context(lease_gpus(resolve_device(device), gpus))
            ranks = stack.enter_context(Ranks(devices, partial(ShareGenerator, folder, dtype)))
            generator = SplitGenerator(ranks, config, sampling)
        done = generator.run(requests, chosen.from_budget(budget, config, **params))
    texts = [tokenizer.decode([token for token in one.output_ids if token not in stop]) for one in done]
    return [
        Answer(text, one.output_ids, one.read_tokens_mean, one.prefill_ms, one.decode_ms)
        for text, one in zip(texts, done, strict=True)
    ]
