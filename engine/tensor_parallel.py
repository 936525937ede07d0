"""Tensor parallelism: one model over the GPUs of one host, a process a GPU.

Each rank holds the query and KV heads, feed-forward channels and LM head rows of its share, so that caches, kernels and
methods run as on one GPU, on fewer heads. Two sums over the ranks a layer and one gather of the logits join the shares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from longdecode.engine.attention import AttentionMethod, DenseAttention
from longdecode.engine.config_reader import parse_config, read_config, read_json
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder, DecoderWeights, LayerWeights
from longdecode.engine.device import Timer, device_name, resolve_device, resolve_dtype
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillState
from longdecode.engine.ranks import Rank, over_gpus
from longdecode.engine.request import Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import Work, capture, make_stepper
from longdecode.engine.token_block import Stream, TokenBlock
from longdecode.engine.weights import _read_weights, _Reader, check_checkpoint, load_decoder, random_decoder
from longdecode.kernels.linear import linear, norm_linear

T = TypeVar("T")

PARALLEL_METHODS = ("duo", "full", "lychee", "quest", "retro", "snapkv", "streaming")
"""Methods in which no KV head depends on another, so that ranks need not agree on what is read."""
_DENSE = DenseAttention.name
_SPLIT_AXES = {
    "q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 0, "up_proj": 0, "lm_head": 0, "o_proj": 1, "down_proj": 1,
}  # fmt: skip
"""Axis along which a module's tensors are split; every other tensor is whole on every rank."""


class TensorParallelDecoder(Decoder):
    """A rank's share of a decoder; ``config`` counts the share's heads, ``whole`` the model's.

    The embedding is whole on every rank, ``V H`` elements (2.1 GB for Llama 3 70B in bfloat16): split, it would cost a
    third kind of sum a step.
    """

    def __init__(
        self, whole: ModelConfig, weights: DecoderWeights, rank: Rank, device: torch.device, dtype: torch.dtype
    ):
        super().__init__(rank.share_of(whole), weights, device, dtype)
        self.whole = whole
        self.rank = rank

    def forward(self, block: TokenBlock, state: DecodeState | PrefillState, method: AttentionMethod) -> Tensor:
        """See ``Decoder.forward``; every rank feeds the same block and gets the same hidden states.

        Raises:
            UnsupportedCellError: the method does not run on a share of the heads.
        """
        refuse_method(method.name)
        return super().forward(block, state, method)

    def logits(self, hidden: Tensor) -> Tensor:
        """See ``Decoder.logits``; each rank computes its rows of the LM head and gets those of all."""
        vocab = self.config.vocab_size
        width = -(-vocab // self.rank.world)
        own = linear(hidden, self.weights.lm_head)
        own = F.pad(own, (0, width - own.shape[-1])).contiguous()
        parts = [torch.empty_like(own) for _ in range(self.rank.world)]
        dist.all_gather(parts, own)
        return torch.cat(parts, dim=-1)[..., :vocab].float().contiguous()

    def _finish(self, layer: LayerWeights, attended: Tensor, residual: Tensor) -> Stream:
        """See ``Decoder._finish``; both projections are summed over the ranks."""
        delta = linear(attended.transpose(1, 2).flatten(2), layer.o, layer.o_bias)
        dist.all_reduce(delta)
        inner, residual, _ = norm_linear(
            delta, residual, layer.mlp_norm, self.config.rms_norm_eps, layer.gate_up, gated=True
        )
        down = linear(inner, layer.down)
        dist.all_reduce(down)
        return residual, down


def refuse_method(name: str) -> None:
    """Refuse a method that is not known to run on a share of the heads.

    Raises:
        UnsupportedCellError: as said.
    """
    if name not in (*PARALLEL_METHODS, _DENSE):
        raise UnsupportedCellError(
            f"{name} does not run over several GPUs; methods that do: {', '.join(PARALLEL_METHODS)}"
        )


def method_for(
    decoder: Decoder, chosen: type[AttentionMethod], budget: int | None, params: dict[str, Any]
) -> AttentionMethod:
    """Build a method for a decoder; on a share, head roles are the whole model's, cut to the rank's KV heads.

    Raises:
        ConfigError, UnsupportedCellError: as of ``AttentionMethod.from_budget``.
    """
    if not isinstance(decoder, TensorParallelDecoder) or "roles" not in {knob.name for knob in fields(chosen.Params)}:
        return chosen.from_budget(budget, decoder.config, **params)
    whole = chosen.from_budget(budget, decoder.whole, **params)
    mine = decoder.rank.part(decoder.whole.num_kv_heads)
    roles = [[int(head in heads) for head in range(mine.start, mine.stop)] for heads in whole.dense_heads()]
    about = {"model": "share of a model", "layers": decoder.config.num_layers, "kv_heads": decoder.config.num_kv_heads}
    with TemporaryDirectory(prefix="longdecode-roles-") as folder:
        file = Path(folder, "roles.json")
        file.write_text(json.dumps({**about, "kind": "share", "scores": roles, "roles": roles}), encoding="utf-8")
        own = replace(whole.params, roles=str(file), retrieval_heads=sum(map(sum, roles)))
        # Not by from_budget, whose checks the whole model has passed: all heads of one share may retrieve.
        shared: AttentionMethod = cast(Any, chosen)(own, decoder.config, budget)
        return shared


class _ShareReader(_Reader):
    """Named tensors of a checkpoint, of which a rank's slices alone are read."""

    def __init__(self, rank: Rank, *args: Any):
        super().__init__(*args)
        self.rank = rank

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name.startswith("lm_head."):
            rows = self.rank.part(shape[0])
            shape = (rows.stop - rows.start, *shape[1:])
        return super().__call__(name, *shape)

    def read(self, name: str) -> Tensor:
        """Read this rank's slice of a tensor, or all of one that is not split."""
        stored, axis = self.handles[name].get_slice(name), _SPLIT_AXES.get(name.split(".")[-2])
        sizes = stored.get_shape()
        if axis is None or axis >= len(sizes):  # the output projection's bias is whole
            return super().read(name)
        part = self.rank.part(sizes[axis])
        slice_: Tensor = stored[part] if axis == 0 else stored[:, part]
        return slice_


def load_share(folder: Path, rank: Rank, device: torch.device, dtype: torch.dtype) -> TensorParallelDecoder:
    """Load a rank's share of a checkpoint folder; no more of a split tensor is read than the rank's slice.

    Raises:
        CheckpointError, UnsupportedFamilyError: as of ``load_decoder``.
        ConfigError: as of ``Rank.share_of``.
    """
    whole = check_checkpoint(folder)
    with ExitStack() as stack:
        weights = _read_weights(rank.share_of(whole), _ShareReader(rank, folder, device, dtype, stack))
    if whole.tie_embeddings:
        weights.lm_head = weights.embedding[rank.part(whole.vocab_size)]
    if rank.index:  # the sum over the ranks takes the bias once
        for layer in weights.layers:
            layer.o_bias = None
    decoder = TensorParallelDecoder(whole, weights, rank, device, dtype)
    decoder.checkpoint = folder
    return decoder


def random_share(
    whole: ModelConfig, rank: Rank, seed: int, device: torch.device, dtype: torch.dtype
) -> TensorParallelDecoder:
    """Make a rank's share of a decoder with random weights, for timing: its size is right, its numbers are any."""
    weights = random_decoder(rank.share_of(whole), seed, device, dtype).weights
    head = weights.lm_head[rank.part(whole.vocab_size)]
    weights.lm_head = head if whole.tie_embeddings else head.clone()
    return TensorParallelDecoder(whole, weights, rank, device, dtype)


def run_split(
    folder: Path, gpus: int, device: str, dtype: str, method: str, function: Callable[[Decoder], T]
) -> list[T]:
    """Load a checkpoint and call a function of the decoder: here, or over several GPUs in the process of each.

    Args:
        folder: of the checkpoint.
        gpus: 1, or how many processes share the model.
        device: as of ``resolve_device``, or of ``over_gpus``.
        dtype: as of ``resolve_dtype``.
        method: name of the method that ``function`` runs.
        function: at the top level of a module, or a ``partial`` of such a one.

    Returns:
        What it returned on each rank.

    Raises:
        UnsupportedCellError: the method does not run over several GPUs.
        ConfigError, RankError: as of ``over_gpus``; the number of GPUs does not divide the KV heads.
        CheckpointError, UnsupportedFamilyError: as of ``read_config``.
    """
    if gpus == 1:
        target = resolve_device(device)
        return [function(load_decoder(folder, device=target, dtype=resolve_dtype(dtype, target)))]
    refuse_method(method)
    Rank(0, gpus).share_of(read_config(folder))
    return over_gpus(gpus, device, partial(_load_and_run, folder, dtype, function))


def _load_and_run(folder: Path, dtype: str, function: Callable[[Decoder], T], rank: Rank, device: torch.device) -> T:
    return function(load_share(folder, rank, device, resolve_dtype(dtype, device)))


@dataclass(frozen=True, slots=True)
class StepTime:
    """Times of one rank in ms, each round's mean of a step; ``read_bytes`` of a step, ``bytes_per_ms`` of the probe."""

    device: str
    steps_ms: list[float]
    sums_ms: float
    read_bytes: int
    bytes_per_ms: float


_STEPS = 32
_ROUNDS = 10
_PROBE_TOKENS = {"cuda": 131072, "cpu": 1024}


def time_step(whole: ModelConfig, context: int, batch: int, rank: Rank, device: torch.device) -> StepTime:
    """Time full attention's decode step on a random share, as a CUDA graph where there are graphs.

    Blocks of steps end with a query over ``context`` tokens.
    """
    dtype = resolve_dtype("auto", device)
    bytes_per_ms = _read_rate(device, dtype)
    decoder = random_share(whole, rank, 0, device, dtype)
    cache, start = decoder.new_cache(batch, context), context - _STEPS
    for layers in cache.tensors():
        layers.normal_()
    cache.stand_at(torch.full_like(cache.positions, start))
    requests = tuple(Request((0,) * start, max_new_tokens=1 << 14) for _ in range(batch))
    logits = torch.zeros(batch, whole.vocab_size, device=device)
    method = DenseAttention((), decoder.config)
    with torch.no_grad():
        stepper = make_stepper(decoder, Sampling(), Prompt(requests, cache, logits, 0.0), method, keep_prompt=False)
        step = _graph(stepper.step, device)
        cache.stand_at(torch.full_like(cache.positions, start))
        steps_ms = _times(step, device, lambda: cache.stand_at(torch.full_like(cache.positions, start)))
        delta = torch.zeros(batch, 1, whole.hidden_size, device=device, dtype=dtype)
        sums = _graph(lambda: [dist.all_reduce(delta) for _ in range(2 * whole.num_layers)], device)
        sums_ms = median(_times(sums, device))
    read = decoder.weights.nbytes() + batch * context * decoder.config.kv_bytes_per_token(dtype.itemsize)
    return StepTime(device_name(device), steps_ms, sums_ms, read, bytes_per_ms)


def _read_rate(device: torch.device, dtype: torch.dtype) -> float:
    """Return the bytes a ms that torch's fastest readers reach over 2 GiB: flash attention of one query, and a sum."""
    k, v = torch.randn(2, 4, 8, _PROBE_TOKENS[device.type], 128, device=device, dtype=dtype)
    q = torch.randn(4, 8, 4, 128, device=device, dtype=dtype)

    def attend() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v)

    attention_ms, sum_ms = (median(_times(_graph(probe, device), device)) for probe in (attend, k.sum))
    return max((k.nbytes + v.nbytes) / attention_ms, k.nbytes / sum_ms)


def _graph(work: Callable[[], object], device: torch.device) -> Work:
    """Warm work up on a side stream and capture it; on a CPU it is returned as it is."""

    def run() -> None:
        work()

    if device.type != "cuda":
        return run
    stream = torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        run()
        run()
    torch.cuda.synchronize(device)
    return capture(run, device)


def _times(work: Work, device: torch.device, reset: Work = lambda: None) -> list[float]:
    """Return the mean ms of a call in each round; a first round is left out."""
    found = []
    for _ in range(_ROUNDS + 1):
        reset()
        with Timer(device) as timer:
            for _ in range(_STEPS):
                work()
        found.append(timer.ms / _STEPS)
    return found[1:]


def main(arguments: list[str] | None = None) -> None:
    """Time full attention's step over several GPUs and print it beside its floor."""
    parser = argparse.ArgumentParser(prog="python -m longdecode.engine.tensor_parallel", description=main.__doc__)
    parser.add_argument("--shape", required=True, help="config.json of a model: the file, or its text")
    parser.add_argument("--context", type=int, default=32768)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    raw = json.loads(given.shape) if given.shape.startswith("{") else read_json(Path(given.shape))
    config = parse_config(raw, "--shape")
    Rank(0, given.gpus).share_of(config)
    if not _STEPS < given.context <= config.max_positions:
        parser.error(f"--context {given.context}: {_STEPS + 1} to {config.max_positions} tokens are possible")
    ranks = over_gpus(given.gpus, given.device, partial(time_step, config, given.context, given.batch))
    first, times = ranks[0], sorted(ranks[0].steps_ms)
    floor = max(rank.read_bytes / rank.bytes_per_ms for rank in ranks)
    print(
        f"{given.gpus} x {first.device}, {given.context:,} tokens, batch {given.batch}: "
        f"{median(times):.2f} ms a step ({times[0]:.2f} to {times[-1]:.2f} in {_ROUNDS} rounds of {_STEPS})\n"
        f"floor {floor:.2f} ms: {first.read_bytes / 1e9:.2f} GB on a rank at {first.bytes_per_ms / 1e9:.2f} TB/s "
        f"(torch's best kernel, here); share {floor / median(times):.0%}\n"
        f"{2 * config.num_layers} sums over the ranks alone {first.sums_ms:.2f} ms, not in the floor"
    )


if __name__ == "__main__":
    main()
