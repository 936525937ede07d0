"""The stock loop: transformers' own model of the same shape, one eager forward call a token, for the record.

Its cache grows by concatenation, as ``generate`` has it by default. Weights and cache are random.
"""

from __future__ import annotations

import torch

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.evals.run_config import RunConfig
from longdecode.evals.throughput.shapes import RAW_SHAPES
from longdecode.evals.throughput.timing import Case, repeated

STEPS = 2


def stock_case(
    run: RunConfig, name: str, context: int, batch: int, device: torch.device, dtype: torch.dtype
) -> Case:  # fmt: skip
    """Make a case of eager steps over a cache that each of them copies into a longer one, by SDPA."""
    # Slow to import, and only these cells need it.
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    if name in run.models:
        config = AutoConfig.from_pretrained(resolve_checkpoint(run.models[name].path, run.models[name].revision))
    else:
        config = AutoConfig.for_model(**RAW_SHAPES[name])
    with torch.device(device):
        stock = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    cache, start = DynamicCache(config=config), context - STEPS
    for layer in range(config.num_hidden_layers):
        shape = (2, batch, config.num_key_value_heads, start, config.head_dim)
        cache.update(*torch.randn(shape, device=device, dtype=dtype), layer)
    token = torch.zeros(batch, 1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step() -> None:
        logits = stock(input_ids=token, past_key_values=cache, use_cache=True).logits
        token.copy_(logits[:, -1:].argmax(dim=-1))

    def reset() -> None:
        grown = int(cache.get_seq_length()) - start
        if grown > 0:
            cache.crop(-grown)

    return Case("hf_full", repeated(step, STEPS), calls=STEPS, reset=reset, keep=cache)
