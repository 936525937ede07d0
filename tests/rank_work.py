"""Work that tests start in several processes, which import it by name."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist

from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.ranks import Rank
from longdecode.engine.tensor_parallel import load_share, method_for
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
        done += generator.run(requests, method_for(decoder, get_method(name), budget, params))
    return done


def decode_shares(folders: list[Path], rank: Rank, device: torch.device) -> list[list[Completion]]:
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


def end_early(killed: bool, rank: Rank, device: torch.device) -> None:
    """Let rank 1 die or fail while the other waits for it."""
    if rank.index and killed:
        os._exit(7)
    if rank.index:
        raise ConfigError("no such knob")
    dist.all_reduce(torch.zeros(1))
