"""Compare what a method reads with the rule that it states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from longdecode.engine.errors import GateError
from longdecode.engine.model_config import ModelConfig
from longdecode.methods.conformance_bench import Heads, MethodBench, Trace
from longdecode.methods.rule import Positions, Rule

EXACT = 1e-9
"""Largest difference allowed between an output and attention over the declared tokens, both in float64."""
TURNED = 1e-3
"""The same where the method turns queries by angles of its own: the engine computes angles in float32."""
_ELEMENT_BYTES = 2


def reads_follow_the_rule(bench: MethodBench) -> None:
    """Hold every read of every step, layer, row and head against the rule.

    The output of a layer must be brute-force attention over the declared tokens, and the tokens counted as read theirs.
    Three budgets: the small one, one that is no multiple of it and little under a row's length, and the smallest.
    Tiny differences decide in float32, so that only float64 is checked.
    """
    if bench.rule is None or bench.decoder.dtype != torch.float64:
        return
    rows = list(range(len(bench.prompts)))
    _follow(bench, bench.small, bench.budget, rows)
    if bench.takes_budget:
        for budget in sorted({bench.card.limits.min_budget_tokens or 1, bench.budget - bench.budget // 8 - 1}):
            if bench.accepts(budget):
                _follow(bench, bench.inputs.trace(bench.build(budget), rows[1:]), budget, rows[1:])


def traffic_follows_the_rule(bench: MethodBench) -> None:
    """Metadata bytes are the rule's at every length; keys and values are at least those that were read."""
    if bench.rule is None:
        return
    config = bench.config
    rule = bench.rule(bench.params, bench.budget, config)
    bits = bench.card.conformance.stored_bits
    token_bytes = 2 * config.head_dim * (bits / 8 if bits else _ELEMENT_BYTES)
    for row, prompt in enumerate(bench.prompts):
        for step, read in enumerate(bench.small.kv_tokens_read[:, :, row].sum(dim=1).tolist()):
            kv_length = len(prompt) + step + 1
            traffic = bench.method.traffic(kv_length, _ELEMENT_BYTES)
            metadata = rule.metadata_bytes(kv_length, _ELEMENT_BYTES)
            if bench.card.slack.per_generated_token:
                read -= (step + 1) * config.num_layers * config.num_kv_heads
            if traffic.metadata_bytes != metadata or traffic.kv_bytes < read * token_bytes:
                raise GateError(
                    f"at {kv_length} tokens the traffic model says {traffic.metadata_bytes:,} bytes of metadata and "
                    f"{traffic.kv_bytes:,} of keys and values; {metadata:,} and {read * token_bytes:,} are read"
                )


def _follow(bench: MethodBench, trace: Trace, budget: int, rows: Sequence[int]) -> None:
    """Compare each of the traced rows with a rule of its own."""
    assert bench.rule is not None
    for at, row in enumerate(rows):
        rule = bench.rule(bench.params, budget, bench.config)
        for step, layer, view in _row_views(bench, rule, trace, at, row):
            where = f"budget {budget}, row {row}, step {step}, layer {layer}, {view.kv_length} tokens"
            view.keys, view.values = rule.stored(layer, view.keys, view.values)
            bias = rule.bias(layer, view.values)
            lists = rule.reads(layer, view.queries, view.keys)
            weights = _check_output(rule, layer, lists, view, bias, where)
            rule.see_weights(layer, weights)
            counted, want = int(trace.kv_tokens_read[step, layer, at]), sum(map(len, lists))
            if counted != want:
                raise GateError(f"{where}: {counted} tokens are counted as read over all lists, the rule reads {want}")


class _View:
    """Hold one layer of one step of one row, in float64 on the CPU; queries and keys are rotated."""

    def __init__(self, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor):
        self.queries, self.keys, self.values, self.out = queries, keys, values, out
        self.kv_length = keys.shape[1]


def _row_views(bench: MethodBench, rule: Rule, trace: Trace, at: int, row: int) -> Iterator[tuple[int, int, _View]]:
    """Show the prompt of a row, the trace's ``at``-th, to the rule; yield step, layer and view of each layer."""
    start, config = len(bench.prompts[row]), bench.config
    table = _rotations(bench, start + len(trace.heads))
    keys, values = (torch.full((config.num_layers, config.num_kv_heads, len(table[0]), config.head_dim), math.nan,
                               dtype=torch.float64) for _ in range(2))  # fmt: skip
    for layer in range(config.num_layers):
        for head in range(config.num_kv_heads):
            # A method that prefills by a rule of its own has a prompt of its own.
            own = not bench.method.prefills_densely
            stored = trace.cache.stored_kv(layer, at, head) if own else bench.full.cache.stored_kv(layer, row, head)
            for into, every in zip((keys, values), stored, strict=True):
                into[layer, head, :start] = every[:start].cpu()
    if type(rule).see_prompt is not Rule.see_prompt:
        for layer in range(config.num_layers):
            queries = bench.inputs.prompt_queries[layer, row, :, :start].cpu()
            rule.see_prompt(layer, queries, keys[layer, :, :start])
    for step, layers in enumerate(trace.heads):
        n = start + step
        for layer, heads in enumerate(layers):
            q, k, v, out = _of_row(heads, at)
            angles = [part[n] for part in table]
            again = min(n, heads.past_k.shape[2])
            if again:  # earlier tokens ran again and may have written over theirs
                for into, past in ((keys, heads.past_k), (values, heads.past_v)):
                    into[layer, :, n - again : n] = past[at, :, -again:].cpu().double()
            keys[layer, :, n], values[layer, :, n] = _rotate(k, *angles), v
            yield step, layer, _View(_rotate(q, *angles), keys[layer, :, : n + 1], values[layer, :, : n + 1], out)


def _check_output(
    rule: Rule, layer: int, lists: Sequence[Positions], view: _View, bias: Tensor | None, where: str
) -> Tensor:
    """Compare each query head's output with attention over its list; return the weights ``[Hq, n]``.

    Raises:
        GateError: a list is malformed, or the output is not attention over it.
    """
    n, config = view.kv_length, rule.config
    if len(lists) not in (config.num_kv_heads, config.num_heads):
        raise GateError(f"{where}: the rule names {len(lists)} lists")
    share, group = config.num_heads // len(lists), config.group_size
    listed = torch.zeros(len(lists), n, dtype=torch.bool)
    for at, tokens in enumerate(lists):
        if not tokens or len(set(tokens)) != len(tokens) or not 0 <= min(tokens) <= max(tokens) < n:
            raise GateError(f"{where}, query head {at * share}: the rule names no set of tokens below {n}: {tokens}")
        listed[at, torch.tensor(tokens)] = True
    turned = rule.turned_back(layer, n)
    keys, values = (part.repeat_interleave(group, dim=0) for part in (view.keys, view.values))
    queries = view.queries[:, None] if turned is None else _turn_back(view.queries, turned, config)
    logits = (queries * keys).sum(dim=-1) / math.sqrt(config.head_dim)
    if bias is not None:
        logits = logits + bias.repeat_interleave(group, dim=0)
    weights = logits.masked_fill(~listed.repeat_interleave(share, dim=0), -math.inf).softmax(dim=-1)
    differences = (view.out - (weights[:, None] @ values)[:, 0]).abs().amax(dim=1).tolist()
    for head, difference in enumerate(differences):
        if not difference <= (EXACT if turned is None else TURNED):
            own = list(lists[head // share])
            hint = _explain(logits[head], values[head], own, view.out[head])
            raise GateError(
                f"{where}, query head {head}: the output differs by {difference:.3g} from attention over the "
                f"{len(own)} tokens of the rule{hint}"
            )
    return weights


def _explain(logits: Tensor, values: Tensor, tokens: list[int], out: Tensor) -> str:
    """Name the one token whose absence or presence in the read explains the output, if one does."""
    for token in range(len(logits)):
        listed = token in tokens
        other = [t for t in tokens if t != token] if listed else [*tokens, token]
        if other and float((out - _attention(logits, values, other)).abs().max()) <= EXACT:
            return f"; token {token} is {'not read' if listed else 'read besides'}"
    return ""


def _attention(logits: Tensor, values: Tensor, tokens: list[int]) -> Tensor:
    """Return softmax attention ``[D]`` over the listed tokens."""
    return logits[tokens].softmax(dim=0) @ values[tokens]


def _of_row(heads: Heads, row: int) -> list[Tensor]:
    """Return queries, keys, values and output of one row, ``[H, D]``, on the CPU."""
    return [part[row].cpu().double() for part in (heads.q, heads.k, heads.v, heads.out)]


def _rotations(bench: MethodBench, length: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of every position, ``[length, D]``."""
    cos, sin = bench.decoder.rope.at(torch.arange(length, device=bench.decoder.device)[None])
    return cos[0].cpu().double(), sin[0].cpu().double()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate heads ``[H, D]`` or ``[H, n, D]`` in the split-half layout."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def _turn_back(queries: Tensor, positions: Tensor, config: ModelConfig) -> Tensor:
    """Rotate heads ``[H, D]`` back by so many positions for each of ``n`` keys: ``[H, n, D]``."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    half = positions[:, None] / float(config.rope["rope_theta"]) ** exponents
    angles = torch.cat((half, half), dim=-1)
    return _rotate(queries[:, None].expand(-1, len(positions), -1), angles.cos(), -angles.sin())
