"""Times prompts of a batch alone on a GPU, and the memory that they take: ``python results/qwen/prefill.py OUT.csv``.

Weights are random, tokens any. ``held_bytes`` are those of weights, cache and tables afterwards, ``peak_bytes`` before.
"""

import sys

import pandas as pd
import torch

from longdecode.engine.config_reader import parse_config
from longdecode.engine.device import device_name
from longdecode.engine.generation import Generator, Request
from longdecode.engine.weights import random_decoder

ABLE = {
    "model_type": "qwen2", "vocab_size": 151936, "hidden_size": 1536, "intermediate_size": 8960,
    "num_hidden_layers": 28, "num_attention_heads": 12, "num_key_value_heads": 2, "head_dim": 128,
    "tie_word_embeddings": True,
}  # fmt: skip
LARGE = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "tie_word_embeddings": False,
}  # fmt: skip
MORE = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 131072}
ABLE_SIZES = ((1024, 24), (4096, 24), (8192, 24), (16384, 1), (16384, 24), (32768, 12), (65536, 8))
SIZES = {
    "qwen2.5-coder-1.5b": (ABLE, ABLE_SIZES),
    "llama3-8b": (LARGE, ((4096, 4), (16384, 1), (16384, 4), (32768, 1), (65536, 2))),
}
rows = []
for model, (shape, sizes) in SIZES.items():
    generator = Generator(random_decoder(parse_config(shape | MORE, model), 0, "cuda", torch.bfloat16))
    for context, batch in sizes:
        requests = [Request(tuple(range(row, row + context - 128)), 128) for row in range(batch)]
        for _ in range(4):  # the first compiles
            torch.cuda.reset_peak_memory_stats()
            prompt = generator.prefill(requests)
            peak, held = torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
            ms, device = round(prompt.prefill_ms, 1), device_name(torch.device("cuda"))
            rows.append((model, context, batch, ms, peak, held, device))
            del prompt
    del generator
columns = ["model", "context", "batch", "prefill_ms", "peak_bytes", "held_bytes", "device"]
last = pd.DataFrame(rows, columns=columns).groupby(["model", "context", "batch"], sort=False).tail(3)
last.to_csv(sys.argv[1], index=False)
