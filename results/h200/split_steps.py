"""Times decode steps of large shapes split over two GPUs: ``python results/h200/split_steps.py OUT.csv``.

Weights and caches are random. ``fraction`` is the time that a card's bytes (its weights, what the method reads) need at
the read bandwidth of an H200 (``results/h200/speed.csv``), over the step's.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median

import pandas as pd
import torch
import torch.distributed as dist

from longdecode.engine.config_reader import parse_config
from longdecode.engine.device import Timer, device_name
from longdecode.engine.kv_cache import DenseCache
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.ranks import Rank, over_gpus
from longdecode.engine.tensor_parallel import TensorParallelDecoder, method_for
from longdecode.engine.weights import random_decoder
from longdecode.evals import provenance
from longdecode.evals.throughput.steps import fill_cache, step_case
from longdecode.methods.registry import get_method

BANDWIDTH = 4.60e12
GPUS, BUDGET, STEPS, ROUNDS = 2, 4096, 8, 10
_LLAMA = {"model_type": "llama", "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
          "rms_norm_eps": 1e-5, "rope_theta": 1e6, "tie_word_embeddings": False}  # fmt: skip
SHAPES = {
    "qwen2.5-32b": _LLAMA | {"hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64,
                             "num_attention_heads": 40, "vocab_size": 152064, "attention_bias": True},
    "llama3-70b": _LLAMA | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
                            "num_attention_heads": 64, "vocab_size": 128256},
}  # fmt: skip
METHODS = ("full", "quest", "lychee")
PLACES = ((32768, 1), (32768, 4), (131072, 1))


def timed(whole: ModelConfig, rank: Rank, device: torch.device) -> list[tuple[float, int]]:
    """Return microseconds a step and bytes a step of this rank, by place and method."""
    decoder = random_decoder(rank.share_of(whole), 0, device, torch.bfloat16)
    if rank.world > 1:
        decoder.weights.lm_head = decoder.weights.lm_head[rank.part(whole.vocab_size)].clone()
        decoder = TensorParallelDecoder(whole, decoder.weights, rank, device, torch.bfloat16)
    found = []
    for (context, batch), name in product(PLACES, METHODS):
        method = method_for(decoder, get_method(name), None if name == "full" else BUDGET, {})
        shape = decoder.cache_shape(batch, context, STEPS)
        cache = fill_cache(method.make_cache(shape) or DenseCache(shape), context - STEPS, 0)
        case, times = step_case(decoder, cache, method, name, context, STEPS), []
        for _ in range(ROUNDS + 2):
            case.reset()
            if rank.world > 1:
                dist.barrier()
            with Timer(device) as timer:
                case.run()
            times.append(1000 * timer.ms / STEPS)
        read = decoder.weights.nbytes() + batch * method.traffic(context, 2).total_bytes
        found.append((median(times[2:]), read))
        del case, cache, method
        torch.cuda.empty_cache()
    return found


def main(out: Path) -> None:
    """Time every shape."""
    rows = []
    for name in SHAPES:
        whole = parse_config(SHAPES[name], name)
        ranks = over_gpus(GPUS, "cuda", partial(timed, replace(whole, max_positions=1 << 18)))
        for ((context, batch), method), *each in zip(product(PLACES, METHODS), *ranks, strict=True):
            us, read = (max(values) for values in zip(*each, strict=True))
            rows.append({
                "shape": name, "gpus": GPUS, "method": method, "context": context, "batch": batch, "budget": BUDGET,
                "us": round(us, 1), "times_full": 1.0, "gb_a_card": round(read / 1e9, 3),
                "fraction": round(read / BANDWIDTH / us * 1e6, 3),
                "device": device_name(torch.device("cuda:0")), "revision": provenance.revision()[:12],
            })  # fmt: skip
            print(rows[-1], flush=True)
        table = pd.DataFrame(rows)
        dense = table.us.where(table.method == METHODS[0]).ffill()  # the first method of each place
        table.assign(times_full=(dense / table.us).round(3)).to_csv(out, index=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
