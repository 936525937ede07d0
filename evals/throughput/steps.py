"""Decode steps and their parts as cases to time, each a CUDA graph where there are graphs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.kv_cache import CacheShape, DenseCache, KVCache, empty_pair
from longdecode.engine.prefill import Observed
from longdecode.engine.request import Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.steppers import CorrectedStepper, SpeculativeStepper, Stepper, make_stepper
from longdecode.engine.token_block import TokenBlock
from longdecode.evals.throughput.spec import RAW_SHAPES
from longdecode.evals.throughput.timing import Case, captured, repeated

_ENDLESS = 1 << 14
"""Tokens a request may generate: more than a block has steps, so that no row ends while it is timed."""
_STOCK_STEPS = 2


def fill_cache(cache: KVCache, tokens: int, seed: int) -> KVCache:
    """Fill a cache with random normal keys and values, set its counters as after ``tokens`` a row, and return it."""
    generator = torch.Generator(cache.device).manual_seed(seed)
    near = cache.tensors()
    # Host memory that a GPU reads is filled once, by who reserves it.
    for tensor in (*near, *cache.host_tensors()) if cache.device.type == "cpu" else near:
        for part in tensor:
            if not part.is_floating_point():
                part.random_(0, 256, generator=generator)  # codes of a quantised cache
            elif part.itemsize == 1:  # float8 has no generator of its own
                part.copy_(torch.randn(part.shape, generator=generator, device=part.device))
            else:
                part.normal_(generator=generator)
    cache.stand_at(torch.full_like(cache.positions, tokens))
    return cache


def step_case(
    decoder: Decoder, cache: KVCache, method: AttentionMethod, variant: str, context: int, steps: int = 1,
    stage: str = "step",
) -> Case:  # fmt: skip
    """Make a case of work of a method that ends with a query over ``context`` tokens.

    Counters go back to their start before each block, so that the context does not drift. Tokens are any: time does not
    depend on them.

    Args:
        cache: filled, of the kind that the method decodes in; several cases may share it, each after its own reset.
        steps: decode steps a block.
        stage: ``step``; ``correction``, a dense step or the latest tokens run again as one chunk; ``speculative_step``,
            or one of its parts ``draft``, ``verify`` (one dense pass over the drafts) and ``keep`` (choose, compare,
            emit, set both caches back to what was accepted).

    Raises:
        UnsupportedCellError: more is rewritten or verified than the context has, or the method drops tokens.
    """
    if stage == "step":
        stepper = new_stepper(decoder, cache, method, context - steps)
        return stepper_case(stepper, stepper.step, variant, steps)
    if stage == "correction":
        correction = method.correction
        assert correction is not None
        rewritten = correction.period if correction.mode == "rewrite" else 0
        if rewritten > context:
            raise UnsupportedCellError(f"{rewritten} tokens are rewritten; the context has {context}")
        corrected = cast(CorrectedStepper, new_stepper(decoder, cache, method, context - (not rewritten)))
        return stepper_case(corrected, corrected.correct, variant)
    assert method.draft is not None
    rows = method.draft.tree.rows
    if rows >= context:
        raise UnsupportedCellError(f"{rows} tokens are verified; the context has {context}")
    speculative = cast(SpeculativeStepper, new_stepper(decoder, cache, method, context - rows))
    back = resetter(speculative)
    starts, tree = speculative.state.dense.lengths.clone(), speculative.trees[0]
    with torch.no_grad():
        nodes = speculative.proposer.propose()
        hidden, logits = speculative.verify(tree, starts, nodes)
    back()
    works: dict[str, Callable[[], object]] = {
        "speculative_step": speculative.step,
        "draft": speculative.proposer.propose,
        "verify": lambda: speculative.verify(tree, starts, nodes),
        "keep": lambda: speculative.accept(tree, starts, nodes, hidden, logits),
    }
    return stepper_case(speculative, works[stage], variant, keep=(starts, nodes, hidden, logits))


def stepper_case(
    stepper: Stepper, work: Callable[[], object], variant: str, steps: int = 1, keep: Sequence[Tensor] = ()
) -> Case:
    """Make a case of some work of a stepper, done ``steps`` times; its counters go back before each block."""
    reset = resetter(stepper)
    advance = captured(work, stepper.decoder.device, reset)
    caches = tuple({id(state.cache): state.cache for state in stepper.states}.values())
    run = repeated(advance, steps)
    return Case(variant, run, calls=steps, reset=reset, keep=(stepper, advance, keep), caches=caches)


def rows_case(decoder: Decoder, cache: KVCache, method: AttentionMethod, variant: str, context: int, rows: int) -> Case:
    """Make a case of one forward pass over ``rows`` tokens a sequence under a tree mask, LM head of all rows included.

    The last row's slot is ``context - 1``; the cache's counters stay as they are.
    """
    state = method.decode_in(cache)
    mask, depths = random_tree(rows, decoder.device)
    starts = torch.full((cache.batch,), context - rows, device=decoder.device)
    tokens = torch.zeros(cache.batch, rows, dtype=torch.int64, device=decoder.device)
    block = TokenBlock(tokens, starts[:, None] + depths, mask, starts, reads="dense")
    none = torch.zeros_like(starts)

    def forward() -> None:
        hidden = decoder.forward(block, state, method)
        state.accept(none)
        decoder.logits(hidden)

    return Case(variant, captured(forward, decoder.device), keep=(state, block, none))


def random_tree(rows: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the mask ``[T, T]`` of a random draft tree of ``T`` nodes, and their depths ``[T]`` int64."""
    draw = random.Random(f"tree {rows}")
    mask = torch.eye(rows, dtype=torch.bool)
    for node in range(1, rows):
        mask[node] |= mask[draw.randrange(node)]
    return mask.to(device), (mask.sum(dim=1) - 1).to(device)


def setup_case(method: AttentionMethod, cache: KVCache, variant: str, context: int) -> Case:
    """Make a case of what the method does once between prefill and the first step.

    A method with a cache of its own moves what it keeps of every layer into it; one random layer stands for all.
    """
    shape, lengths = cache.shape, torch.full_like(cache.positions, context)
    own = not isinstance(cache, DenseCache)
    size = (shape.batch, shape.config.num_kv_heads, context if own else 0, shape.config.head_dim)
    keys, values = (tensor.normal_() for tensor in empty_pair(size, shape))
    observed = _observed(method, shape, context) if own else {}

    @torch.no_grad()
    def start() -> None:
        for layer in range(shape.config.num_layers if own else 0):
            seen = {key: layers[layer] for key, layers in observed.items()}
            method.keep_layer(cache, layer, keys, values, lengths, seen)
        cache.stand_at(lengths)
        method.decode_in(cache)

    return Case(variant, start, caches=(cache,))


def prefill_case(decoder: Decoder, cache: KVCache, variant: str, context: int, chunk: int, seed: int) -> Case:
    """Make a case of the dense prefill of random tokens, LM head of the last row included."""
    generator, vocab = torch.Generator().manual_seed(seed), decoder.config.vocab_size
    prompts = [*torch.randint(vocab, (cache.batch, context), generator=generator)]
    return Case(variant, repeated(lambda: decoder.prefill(prompts, cache, chunk), 1), caches=(cache,))


def stock_case(source: Path | str, context: int, batch: int, device: torch.device, dtype: torch.dtype) -> Case:
    """Make a case of the stock loop: transformers' own model, one eager forward call by SDPA a token, for the record.

    Its cache grows by concatenation, as ``generate`` has it by default. Weights and cache are random.

    Args:
        source: folder of a checkpoint, or name of a shape.
    """
    # Slow to import, and only these cells need it.
    from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

    here = isinstance(source, Path)
    config = AutoConfig.from_pretrained(source) if here else AutoConfig.for_model(**RAW_SHAPES[str(source)])
    with torch.device(device):
        stock = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="sdpa").eval()
    cache, start = DynamicCache(config=config), context - _STOCK_STEPS
    for layer in range(config.num_hidden_layers):
        shape = (2, batch, config.num_key_value_heads, start, config.head_dim)
        cache.update(*torch.randn(shape, device=device, dtype=dtype), layer)
    token = torch.zeros(batch, 1, dtype=torch.int64, device=device)

    @torch.no_grad()
    def step() -> None:
        logits = stock(input_ids=token, past_key_values=cache, use_cache=True).logits
        token.copy_(logits[:, -1:].argmax(dim=-1))

    def reset() -> None:
        cache.crop(start - int(cache.get_seq_length()))

    return Case("hf_full", repeated(step, _STOCK_STEPS), calls=_STOCK_STEPS, reset=reset, keep=cache)


def new_stepper(decoder: Decoder, cache: KVCache, method: AttentionMethod, tokens: int) -> Stepper:
    """Start a method in ``cache`` with ``tokens`` tokens a row, with requests that do not end while it is timed."""
    cache.stand_at(torch.full_like(cache.positions, tokens))
    requests = tuple(Request((0,) * tokens, max_new_tokens=_ENDLESS) for row in range(cache.batch))
    logits = torch.zeros(cache.batch, decoder.config.vocab_size, dtype=torch.float32, device=decoder.device)
    prompt = Prompt(requests, cache, logits, 0.0, _observed(method, cache.shape, tokens) if method.draft else {})
    with torch.no_grad():
        stepper = make_stepper(decoder, Sampling(), prompt, method, keep_prompt=False)
    method.settle(stepper.state)
    return stepper


def resetter(stepper: Stepper) -> Callable[[], None]:
    """Return what brings a stepper's counters back to where they are now; keys and values stay as they are."""
    sequences = stepper.sequences
    tensors = [sequences.tokens, sequences.counts, sequences.steps, sequences.active]
    for state in stepper.states:
        tensors += [state.active, *(tensor for tensor, _ in state.cache.counters())]
    saved = [(tensor, tensor.clone()) for tensor in tensors]

    def reset() -> None:
        for tensor, value in saved:
            tensor.copy_(value)

    return reset


def _observed(method: AttentionMethod, shape: CacheShape, tokens: int) -> Observed:
    """Return what the method's prefill observers would keep, with random values."""
    found: dict[str, Sequence[Tensor]] = {}
    for observer in method.observers():
        observer.begin(shape, [tokens] * shape.batch)
        found[observer.key] = [observer.layer(layer).normal_() for layer in range(shape.config.num_layers)]
    return found
