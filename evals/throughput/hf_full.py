"""The stock loop: transformers' own model of the same shape, one forward call a token, for the record.

Two ways that its documentation gives: a cache that grows by concatenation, run eagerly (``hf_full``), and a static
cache, captured as a CUDA graph where that works (``hf_full_static``). Weights and cache are random.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch

from longdecode.engine.errors import DeviceMemoryError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.failures import free_memory
from longdecode.evals.records import SpeedRecord
from longdecode.evals.throughput.cells import SpeedCell
from longdecode.evals.throughput.models import TimedModel, parameters
from longdecode.evals.throughput.speed_job import SpeedJob
from longdecode.evals.throughput.step_block import captured
from longdecode.evals.throughput.timing import Block

STEPS = 2
MAX_ROUNDS = 4
"""An eager step over 128K tokens takes a tenth of a second on an H200."""


def measure_stock_loop(
    job: SpeedJob, model: TimedModel, full: Block | None, cell: SpeedCell, rounds: int
) -> SpeedRecord:
    """Time transformers' loop in pairs with our own full attention at the same context and batch, where that fits.

    Raises:
        DeviceMemoryError: a second model and cache do not fit beside ours.
        UnsupportedCellError: the step could not be captured as a graph.
    """
    _refuse_if_too_large(job, model, cell)
    before = 0
    if job.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(job.device)
        before = torch.cuda.memory_allocated(job.device)
    stock = stock_model(model.config, job.device, job.dtype, cell.context)
    make = _static_block if cell.label == "hf_full_static" else _growing_block
    block = make(stock, model.config, cell, job)
    samples = job.time(block, full, min(rounds, MAX_ROUNDS))
    peak = torch.cuda.max_memory_allocated(job.device) - before if job.device.type == "cuda" else None
    cache_bytes = cell.batch * cell.context * model.config.kv_bytes_per_token(job.dtype.itemsize)
    record = job.timed(
        cell, "random", samples, full.label if full else None, bytes_min=model.read_bytes + cache_bytes,
        expected_bytes=model.resident_bytes + cache_bytes, peak_bytes=peak,
    )  # fmt: skip
    del block, stock
    free_memory(job.device)
    return record


def stock_model(config: ModelConfig, device: torch.device, dtype: torch.dtype, positions: int) -> Any:
    """Make transformers' model of this shape with random weights and SDPA, ready for inference."""
    from transformers import AutoConfig, AutoModelForCausalLM

    stock_config = AutoConfig.for_model(
        config.family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=max(config.max_positions, positions),
        rms_norm_eps=config.rms_norm_eps,
        tie_word_embeddings=config.tie_embeddings,
        rope_parameters=dict(config.rope),
        sliding_window=None,  # Mistral's own default has one
    )
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(stock_config, dtype=dtype, attn_implementation="sdpa")
    return model.eval()


def _growing_block(stock: Any, config: ModelConfig, cell: SpeedCell, job: SpeedJob) -> Block:
    """Make a block of eager steps over a cache that each of them copies into a longer one."""
    from transformers import DynamicCache

    cache = DynamicCache(config=stock.config)
    start = cell.context - STEPS
    shape = (cell.batch, config.num_kv_heads, start, config.head_dim)
    for layer in range(config.num_layers):
        keys, values = (torch.randn(shape, device=job.device, dtype=job.dtype) for _ in range(2))
        cache.update(keys, values, layer)
        del keys, values
    token = torch.zeros(cell.batch, 1, dtype=torch.int64, device=job.device)

    def reset() -> None:
        grown = int(cache.get_seq_length()) - start
        if grown > 0:
            cache.crop(-grown)

    return Block(cell.label, _steps(_step(stock, cache, token)), calls=STEPS, reset=reset, keep=cache)


def _static_block(stock: Any, config: ModelConfig, cell: SpeedCell, job: SpeedJob) -> Block:
    """Make a block of steps over a static cache, as one graph where there are graphs."""
    from transformers import StaticCache

    cache = StaticCache(config=stock.config, max_cache_len=cell.context)
    cache.early_initialization(cell.batch, config.num_kv_heads, config.head_dim, job.dtype, job.device)
    for layer in cache.layers:
        layer.keys.normal_()
        layer.values.normal_()
    token = torch.zeros(cell.batch, 1, dtype=torch.int64, device=job.device)

    def reset() -> None:
        for layer in cache.layers:
            layer.cumulative_length.fill_(cell.context - STEPS)

    try:
        advance = captured(_step(stock, cache, token), job.device, reset)
    except RuntimeError as error:
        if isinstance(error, torch.cuda.OutOfMemoryError):
            raise
        raise UnsupportedCellError(f"transformers' step could not be captured as a CUDA graph: {error}") from error
    return Block(cell.label, _steps(advance), calls=STEPS, reset=reset, keep=(cache, token))


def _step(stock: Any, cache: Any, token: torch.Tensor) -> Callable[[], None]:
    """Return a function of one forward call and the greedy choice of the next token."""

    @torch.no_grad()
    def step() -> None:
        logits = stock(input_ids=token, past_key_values=cache, use_cache=True).logits
        token.copy_(logits[:, -1:].argmax(dim=-1))

    return step


def _steps(step: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(STEPS):
            step()

    return run


def _refuse_if_too_large(job: SpeedJob, model: TimedModel, cell: SpeedCell) -> None:
    """Decide before any allocation: weights, the cache, and one layer's cache while it is copied into a longer one."""
    logging.getLogger("transformers").setLevel(logging.ERROR)
    if job.device.type != "cuda":
        return
    config = model.config
    cache = cell.batch * cell.context * config.kv_bytes_per_token(job.dtype.itemsize)
    need = parameters(config) * job.dtype.itemsize + cache + 4 * cache // config.num_layers
    free_memory(job.device)
    free, _ = torch.cuda.mem_get_info(job.device)
    if need > free:
        raise DeviceMemoryError(f"transformers' model and cache need {need:,} bytes; {free:,} are free beside ours")
