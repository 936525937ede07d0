"""Decode given tokens on one model, and measure what selections share and what corrections change: one tidy table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from longdecode.engine.attention import AttentionMethod, Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import device_name, lease_gpu, resolve_device
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Generator
from longdecode.engine.kv_cache import DenseCache
from longdecode.engine.request import Prompt, Request
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals import provenance
from longdecode.evals.model_job import ModelJob
from longdecode.evals.run_config import RunConfig
from longdecode.evals.stats import Spread, bootstrap_interval, generator
from longdecode.evals.store import write_table
from longdecode.evals.tasks.base import Task
from longdecode.evals.tasks.registry import get_task
from longdecode.kernels.page_score import page_score
from longdecode.methods.paged import PagedMethod
from longdecode.methods.registry import get_method

COLUMNS = (
    "model", "task", "context", "budget", "variant", "measure", "layer", "index", "value", "low", "high", "n",
    "revision", "device",
)  # fmt: skip
ALL_LAYERS = -1
MINUS = "_minus_quest"
"""End of a measure's name where the value is the paired difference to Quest's."""
SAMPLES, LAGS, RESAMPLES = 8, 15, 1000
BUCKETS = 8
"""Parts of a continuation over which a loss is averaged."""

Values = tuple[str, str, int, int, Tensor]
"""Variant, measure, layer, index (lag, steps ahead or last step of a part), and a value for each sample."""


@dataclass(slots=True)
class ForcedDecode:
    """A decode of ``T`` given tokens of ``B`` samples.

    ``states`` ``[L, B, H, T, D]``: ``key`` and ``value`` are what the cache held in the end, ``output`` is each token's
    attention output as made in its own step, ``output_final`` as it stood when its window had passed.
    ``losses`` ``[T, B]``: negative log-probability of the next token, in nats.
    """

    states: dict[str, Tensor]
    losses: Tensor


@dataclass(slots=True)
class PageChoices:
    """Pages chosen and nearly chosen by ``T`` steps in ``L`` sparse layers.

    ``top`` and ``following`` ``[T, L, B, Hkv, P]`` bool; ``following`` are the ranks ``k + 1 .. 2 k`` of a list of
    ``k``. ``used`` ``[T, B]`` int64 counts the pages in use.
    """

    top: Tensor
    following: Tensor
    used: Tensor

    @property
    def in_use(self) -> Tensor:
        """Pages in use by step, ``[T, 1, B, 1, P]`` bool."""
        pages = torch.arange(self.top.shape[-1], device=self.top.device)
        return (pages < self.used[..., None])[:, None, :, None]


def measure_retrospection(config: RunConfig, model: str, output: Path) -> None:
    """Write the table of one of the models that the configuration names for it.

    Raises:
        ConfigError: none of the variants is Quest.
        LongDecodeError: the model cannot be loaded, or a task does not fit it.
    """
    spec = config.retrospection
    rows: list[tuple[object, ...]] = []
    spread = Spread(resamples=RESAMPLES, seed=config.seed)
    with lease_gpu(resolve_device(config.device)) as target:
        job, task = ModelJob(config, model, target), get_task(spec.models[model], config.data)
        for context in spec.contexts:
            prompt, tokens = forced_continuation(task, context, spec.steps, config.seed, job.decoder, job.tokenizer)
            for budget in config.budgets:
                built = {variant: job.build(variant, budget.tokens(context)) for variant in spec.variants}
                for *what, values in measured(job.decoder, prompt, tokens, built):
                    cell = (model, task.name, context, budget.text, *what)
                    mean = bootstrap_interval([values.cpu().numpy()], spread, generator("retrospection", *cell))
                    made = (provenance.revision(), device_name(target))
                    rows.append((*cell, mean.value, mean.low, mean.high, len(values), *made))
    write_table(output, pd.DataFrame(rows, columns=list(COLUMNS)))


def forced_continuation(
    task: Task, context: int, steps: int, seed: int, decoder: Decoder, tokenizer: TextTokenizer
) -> tuple[Prompt, Tensor]:
    """Return the prefilled samples and the ``steps + 1`` tokens that follow each, ``[B, steps + 1]``.

    The task's forced tokens come first; where they end, Full goes on greedily.
    """
    requests = []
    for sample in task.samples(context, SAMPLES, seed, tokenizer):
        forced = tokenizer.encode(sample.forced)[: steps + 1]
        requests.append(Request(tokenizer.prompt_ids(sample.prompt, task.chat), steps + 1 - len(forced), forced))
    full = get_method("full").from_budget(None, decoder.config)
    prompt = Generator(decoder).prefill(requests, [full])
    done = Generator(decoder).decode(prompt, full)
    texts = [(*request.forced_ids, *one.output_ids) for request, one in zip(requests, done, strict=True)]
    return prompt, torch.tensor(texts, device=decoder.device)


def measured(decoder: Decoder, prompt: Prompt, tokens: Tensor, methods: dict[str, AttentionMethod]) -> Iterator[Values]:
    """Yield every measure, a value for each sample.

    Raises:
        ConfigError: none of the methods is Quest.
    """
    base = next((variant for variant, method in methods.items() if method.name == "quest"), "")
    quest = methods.get(base)
    if not isinstance(quest, PagedMethod):
        raise ConfigError("retrospection.variants: one of method 'quest' is needed, what the others correct")
    choices = record_pages(decoder, prompt, quest, tokens[:, :-1])
    for lag in range(1, min(LAGS, tokens.shape[1] - 2) + 1):
        top, following = overlap(choices, lag)
        yield base, "overlap_top", ALL_LAYERS, lag, top
        yield base, "overlap_next", ALL_LAYERS, lag, following
        yield base, "effective_budget", ALL_LAYERS, lag, effective_budget(choices, lag)
    full = record(decoder, prompt, get_method("full").from_budget(None, decoder.config), tokens)
    # The same tokens for all variants: those that have left the widest window.
    widest = max(method.window for method in methods.values())
    of_quest: dict[tuple[str, int, int], Tensor] = {}
    for variant in [base, *(variant for variant in methods if variant != base)]:
        trace = record(decoder, prompt, methods[variant], tokens)
        found = {("loss_gap", ALL_LAYERS, index): values for index, values in loss_gaps(trace, full)}
        for measure, by_layer in errors(trace, full, widest).items():
            found |= {(measure, layer, 0): values for layer, values in enumerate(by_layer)}
            found[measure, ALL_LAYERS, 0] = by_layer.mean(dim=0)
        of_quest = of_quest or found
        for (measure, layer, index), values in found.items():
            yield variant, measure, layer, index, values
            if variant != base:
                yield variant, measure + MINUS, layer, index, values - of_quest[measure, layer, index]


@torch.no_grad()
def record(decoder: Decoder, prompt: Prompt, method: AttentionMethod, tokens: Tensor) -> ForcedDecode:
    """Decode ``tokens`` ``[B, T + 1]`` after a prompt, in a copy of it; the last is predicted only.

    Raises:
        ConfigError: the method's cache does not keep every token.
    """
    state = method.start(prompt)
    if not isinstance(state.cache, DenseCache):
        raise ConfigError(f"{method.name}: what a dropped token became cannot be compared; keep every token")
    batch, steps, config = tokens.shape[0], tokens.shape[1] - 1, decoder.config
    size = (config.num_layers, batch, config.num_heads, steps, config.head_dim)
    first, last = (torch.zeros(size, device=decoder.device) for _ in range(2))
    starts, losses = state.cache.positions.clone(), []
    for step in range(steps):
        outputs: list[Tensor] = []
        # A copy: a method may keep its outputs in place.
        with watched(method, "attend", lambda q, state, layer, out, to=outputs: to.append(out.clone())):
            logits = decoder.step(tokens[:, step], state, method)
        losses.append(-logits.log_softmax(dim=-1).gather(1, tokens[:, step + 1 :][:, :1])[:, 0])
        for layer, out in enumerate(outputs):
            first[layer, :, :, step] = out[:, :, -1]
            for back in range(min(out.shape[2], step + 1)):
                last[layer, :, :, step - back] = out[:, :, -1 - back]
    keys, values = (part.float() for part in state.dense.window(starts, steps))
    return ForcedDecode({"key": keys, "value": values, "output": first, "output_final": last}, torch.stack(losses))


@torch.no_grad()
def record_pages(decoder: Decoder, prompt: Prompt, method: PagedMethod, tokens: Tensor) -> PageChoices:
    """Decode ``tokens`` ``[B, T]`` and keep which pages every step chose, and which it would have chosen next."""
    state, steps, used = method.start(prompt), [], []
    layers: list[tuple[Tensor, Tensor]] = []

    def note(q: Tensor, state: DecodeState, layer: int, chosen: Selection | None) -> None:
        if chosen is not None:
            pages = method.pages_of(state)
            scores = page_score(q, pages.bounds[layer], pages.used, group=method.params.group_score)
            layers.append(chosen_and_next(chosen, scores))

    for step in range(tokens.shape[1]):
        layers.clear()
        with watched(method, "select", note):
            decoder.step(tokens[:, step], state, method)
        steps.append([torch.stack(part) for part in zip(*layers, strict=True)])
        used.append(method.pages_of(state).used.clone())
    top, following = (torch.stack(part) for part in zip(*steps, strict=True))
    return PageChoices(top, following, torch.stack(used))


@contextmanager
def watched(method: AttentionMethod, hook: str, note: Callable[..., None]) -> Iterator[None]:
    """Show what a hook of the method returns, layer by layer, while inside."""
    own = getattr(method, hook)

    def shown(layer: int, q: Tensor, state: DecodeState) -> object:
        out = own(layer, q, state)
        note(q, state, layer, out)
        return out

    vars(method)[hook] = shown
    try:
        yield
    finally:
        del vars(method)[hook]


def chosen_and_next(chosen: Selection, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pages of the lists and as many with the next best scores, ``[B, Hkv, P]`` bool each.

    Args:
        chosen: one list per KV head.
        scores: ``[B, Hkv, P]``, minus infinity for pages not in use.
    """
    listed = torch.arange(chosen.indices.shape[2], device=scores.device) < chosen.counts[..., None]
    top = torch.zeros_like(scores, dtype=torch.int8)
    top.scatter_reduce_(2, torch.where(listed, chosen.indices, 0), listed.to(torch.int8), "amax")
    rivals = scores.masked_fill(top.bool(), float("-inf"))
    rank = rivals.argsort(dim=2, descending=True, stable=True).argsort(dim=2)
    return top.bool(), (rank < chosen.counts[..., None]) & (rivals > float("-inf"))


def overlap(choices: PageChoices, lag: int) -> tuple[Tensor, Tensor]:
    """Return how much of what a step loads the step ``lag`` before had chosen, and had next in rank, ``[B]`` float64.

    Of the pages that existed at the earlier step; the mean over steps, sparse layers and KV heads.

    Source: RetroAttention (arXiv 2508.09001), figure 2b; the restriction to pages that existed is this project's.
    """
    loaded = choices.top[lag:] & choices.in_use[:-lag]
    total = loaded.sum(dim=-1).double().clamp(min=1)
    top, following = (
        ((loaded & earlier[:-lag]).sum(dim=-1).double() / total).mean(dim=(0, 1, 3))
        for earlier in (choices.top, choices.following)
    )
    return top, following


def effective_budget(choices: PageChoices, steps: int) -> Tensor:
    """Return ``E_n``, ``[B]`` float64: pages loaded in a step or the ``n`` after it, over those of the step.

    ``E_n = |S_t | S_{t+1} | ... | S_{t+n}| / |S_t|`` of the pages that a token at ``t`` may read; the mean over steps,
    sparse layers and KV heads.

    Source: RetroAttention (arXiv 2508.09001), figure 2c; the formula is inferred.
    """
    count = len(choices.top) - steps
    loaded = torch.stack([choices.top[ahead : ahead + count] for ahead in range(steps + 1)]).any(dim=0)
    union = (loaded & choices.in_use[:count]).sum(dim=-1).double()
    return (union / choices.top[:count].sum(dim=-1)).mean(dim=(0, 1, 3))


def errors(trace: ForcedDecode, full: ForcedDecode, window: int) -> dict[str, Tensor]:
    """Return how far a trace's states lie from Full's, ``[L, B]`` float64 by measure: norms of differences over norms.

    States: ``key``, ``value``, ``output`` (a token's attention output in its own step) and ``output_final`` (as its
    window left it). The last ``window - 1`` tokens, not yet final, are left out of all four.
    """
    settled = len(trace.losses) - (window - 1)
    found = {}
    for name, state in trace.states.items():
        ours, want = (one[..., :settled, :].double().flatten(2) for one in (state, full.states[name]))
        found[f"{name}_error"] = (ours - want).norm(dim=2) / want.norm(dim=2).clamp(min=1e-30)
    return found


def loss_gaps(trace: ForcedDecode, full: ForcedDecode) -> list[tuple[int, Tensor]]:
    """Return the loss over Full's by part of the continuation: its last step and ``[B]`` float64, in nats a token."""
    gap = (trace.losses - full.losses).double()
    parts = gap.tensor_split(min(BUCKETS, len(gap)))
    ends = torch.tensor([len(part) for part in parts]).cumsum(0).tolist()
    return [(end, part.mean(dim=0)) for end, part in zip(ends, parts, strict=True)]
