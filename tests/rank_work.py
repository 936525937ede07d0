"""Work that tests start in several processes, which import it by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import DeviceMemoryError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.ranks import Rank
from longdecode.engine.tensor_parallel import TensorParallelDecoder, load_share
from longdecode.methods.registry import get_method

VARIANTS = (
    ("full", None, {}), ("streaming", 12, {}), ("snapkv", 12, {"window": 4}),
    ("quest", 16, {"page_size": 4, "dense_layers": 1}), ("retro", 16, {"page_size": 4, "dense_layers": 1}),
    ("duo", 12, {}), ("lychee", 16, {"block_size": 4, "sink_tokens": 4, "recent_tokens": 4, "correction": "rewrite"}),
)  # fmt: skip


def decode_all(decoder: Decoder) -> list[Completion]:
    """Decode forced and free tokens, greedy and drawn in turn, by each variant; two where projections have no bias."""
    ids = torch.randint(0, decoder.config.vocab_size, (2, 70), generator=torch.Generator().manual_seed(0)).tolist()
    new = 30 if decoder.device.type == "cuda" else 8  # a graph repays itself from 24 steps on
    requests = [Request(tuple(row[:-9]), new, tuple(row[-9:])) for row in (ids[0], ids[1][:49])]
    done, has_bias = [], decoder.weights.layers[0].qkv_bias is not None
    for place, (name, budget, params) in enumerate(VARIANTS if has_bias else VARIANTS[:2]):
        generator = Generator(decoder, Sampling(place % 2), prefill_tokens=50)
        whole = get_method(name).from_budget(budget, getattr(decoder, "whole", decoder.config), **params)
        done += generator.run(requests, decoder.share(whole) if isinstance(decoder, TensorParallelDecoder) else whole)
    return done


def answering(work: Callable[..., Any], rank: Rank, device: torch.device) -> Callable[..., list[Any]]:
    """Answer each call with the one result of some work."""
    return lambda *given: [work(rank, device, *given)]


def decode_shares(rank: Rank, device: torch.device, folders: list[Path]) -> list[list[Completion]]:
    """Load this rank's share of each checkpoint and decode."""
    return [decode_all(load_share(folder, rank, device, torch.float32)) for folder in folders]


def sum_norms(rank: Rank, device: torch.device) -> list[bool]:
    """Sum rows that differ by call and by rank, in a graph that runs often; return which sums are right."""
    from longdecode.kernels.peer_sum import peer_sum_norm

    sums = peer_sum_norm(1536, device, torch.bfloat16)
    parts = torch.ones(rank.world, 4, 3, 1536, dtype=torch.bfloat16, device=device)
    weight, rng, right = torch.ones_like(parts[0, 0, 0]), torch.Generator().manual_seed(0), []

    def totals() -> torch.Tensor:
        return torch.stack([sums(part, torch.zeros_like(part), weight, 1e-6)[1] for part in parts[rank.index]])

    totals()
    with torch.cuda.graph(graph := torch.cuda.CUDAGraph()):
        found = totals()
    for at in range(200):
        parts.copy_(torch.randn(parts.shape, generator=rng))
        if at % 7 == rank.index:
            torch.cuda._sleep(1_000_000)  # the other rank comes first
        graph.replay()
        right.append(torch.equal(found, parts.float().sum(0).bfloat16()))
    return right


def add(rank: Rank, device: torch.device, how: str) -> float:
    """Sum ones over the ranks; before that let rank 1 die or fail while the other waits for it."""
    if rank.index and how == "dies":
        os._exit(7)
    if rank.index and how == "fails":
        raise DeviceMemoryError("no room")
    dist.all_reduce(total := torch.ones(1))
    return total.item()
