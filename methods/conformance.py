"""What every method must hold before its numbers count; callable outside tests, on any device.

``check_method("quest", torch.device("cuda"))`` runs all checks on a tiny random model, for the defaults and for each
variant of the card, and raises ``GateError`` at the first that fails.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import DecodeState, Selection, TokenHeads
from longdecode.engine.errors import ConfigError, GateError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.kv_cache import KVCache
from longdecode.kernels import dispatch
from longdecode.methods.conformance_bench import BUDGET, CONFIG, PROMPT_TOKENS, STEPS, WHOLE_BUDGET, Bench, make_bench
from longdecode.methods.registry import get_method, load_card

TOLERANCE = 2e-4
"""Largest difference allowed between logits (or keys) that should agree."""


def check_method(
    name: str,
    device: torch.device | str,
    overrides: Mapping[str, Any] | None = None,
    *,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> None:
    """Run every check on a method.

    float64 runs in plain torch on every device. Where other kernels serve float32 there, those that produce the
    scores, the checks of ``FAST_PATH_CHECKS`` run through them as well.

    Args:
        name: a registered method.
        overrides: parameters to check with; left out, the defaults and then every variant of the card.
        dtype: of the tiny model. In float64, near-ties in a selection fall the same way however a batch is cut, so
            that two runs that should agree do.
        seed: of the tiny model and its inputs.

    Raises:
        GateError: a check failed; the message names method, parameters and check.
        ConfigError: the method or a parameter is unknown, or the card does not fit.
    """
    card = load_card(name)
    cases = [dict(overrides)] if overrides is not None else [{}, *map(card.variant_params, card.variants)]
    fast = dispatch.kernel_path(torch.device(device), torch.float32) != "naive"
    for case in cases:
        _run(CHECKS, make_bench(name, device, case, dtype=dtype, seed=seed), case)
        if fast:
            _run(FAST_PATH_CHECKS, make_bench(name, device, case, dtype=torch.float32, seed=seed), case)


def card_names_the_parameters(bench: Bench) -> None:
    """The card's knobs are the fields of ``Params``, with their defaults."""
    params = get_method(bench.card.name).Params
    have = {item.name: _default(item) for item in fields(params)}
    said = {knob.name: knob.default for knob in bench.card.knobs}
    if have != said:
        raise GateError(f"the card lists the knobs {said}, Params has {have}")


def bad_parameters_are_refused(bench: Bench) -> None:
    """An unknown parameter, and a budget under the card's minimum, raise instead of being bent."""
    method = get_method(bench.card.name)
    budget = WHOLE_BUDGET if bench.takes_budget else None
    try:
        method.from_budget(budget, CONFIG, no_such_parameter=1)
    except ConfigError:
        pass
    else:
        raise GateError("an unknown parameter was accepted")
    minimum = bench.card.limits.min_budget_tokens
    if minimum is not None and minimum > 1:
        try:
            method.from_budget(minimum - 1, CONFIG)
        except UnsupportedCellError:
            return
        raise GateError(f"a budget of {minimum - 1} was accepted; the card's minimum is {minimum}")


def whole_budget_equals_full(bench: Bench) -> None:
    """With a budget over the context, logits equal Full's at every step, and everything is read."""
    got = bench.trace(bench.build(WHOLE_BUDGET))
    _close(got.logits, bench.full.logits, "logits with the whole budget and Full's")
    if not bool((got.reads >= bench.full.reads).all()):
        raise GateError("the whole budget does not read the whole context")


def small_budget_leaves_something_out(bench: Bench) -> None:
    """With a small budget not everything is read: otherwise the checks below would check dense attention."""
    if not bench.takes_budget:
        return
    if bool((bench.small.reads >= bench.full.reads)[:, bench.governed_layers()].all()):
        raise GateError(f"a budget of {BUDGET} tokens reads contexts of {PROMPT_TOKENS} whole")


def ragged_batch_equals_single_rows(bench: Bench) -> None:
    """Each row of a ragged batch gets the logits it gets alone."""
    method = bench.build(BUDGET)
    for row in range(len(bench.prompts)):
        alone = bench.trace(method, [row])
        _close(bench.small.logits[row : row + 1], alone.logits, f"row {row} in the batch and alone")
        if not bench.small.reads[..., row].equal(alone.reads[..., 0]):
            raise GateError(f"row {row} reads other numbers of tokens in the batch and alone")


def permuting_the_batch_permutes_the_result(bench: Bench) -> None:
    """The order of rows does not matter."""
    order = [2, 0, 1]
    permuted = bench.trace(bench.build(BUDGET), order)
    _close(permuted.logits, bench.small.logits[order], "a permuted batch and the permuted result")


def unwritten_memory_is_never_read(bench: Bench) -> None:
    """With every buffer full of NaN beforehand, the result is the same."""
    poisoned = bench.trace(bench.build(BUDGET), poison=True)
    _close(poisoned.logits, bench.small.logits, "poisoned and clean buffers")


def stored_keys_keep_their_rotation(bench: Bench) -> None:
    """Each key that a head of the first layer stores is one Full has, beside its value; no token is there twice."""
    got, want = bench.small.cache, bench.full.cache
    for row, seen in enumerate(want.lengths.tolist()):
        if int(got.positions[row]) != seen:
            raise GateError(f"row {row} is at position {int(got.positions[row])} after {seen} tokens")
        for head in range(CONFIG.num_kv_heads):
            (keys, values), (all_keys, all_values) = got.stored_kv(0, row, head), want.stored_kv(0, row, head)
            token = torch.cdist(keys, all_keys).argmin(dim=1)
            what = f"row {row}, head {head}"
            _close(keys, all_keys[token], f"{what}: stored keys and keys at their original positions")
            _close(values, all_values[token], f"{what}: values beside those keys")
            if len(set(token.tolist())) != len(keys):
                raise GateError(f"{what} stores {len(keys)} tokens of which {len(set(token.tolist()))} are distinct")


def reads_stay_within_budget(bench: Bench) -> None:
    """In every step and layer, governed heads read no more than the budget and the card's slack.

    Reads are counted over all heads of a layer; those that read everything are taken off by what Full reads.
    """
    if not bench.takes_budget:
        return
    layers = bench.governed_layers()
    governed = torch.tensor([bench.governed_heads[layer] for layer in layers], device=bench.decoder.device)[:, None]
    over_heads, whole = (trace.reads[:, layers] for trace in (bench.small, bench.full))
    reads = (over_heads * CONFIG.num_kv_heads - whole * (CONFIG.num_kv_heads - governed)) / governed
    allowed = BUDGET * bench.list_factor + bench.card.slack.tokens
    if float(reads.max()) > allowed:
        raise GateError(f"{float(reads.max()):.0f} tokens were read in a step, {allowed} are declared")
    if float(reads.min()) <= 0:
        raise GateError("a step read nothing")


def traffic_covers_the_reads(bench: Bench) -> None:
    """The traffic model's bytes are at least those of the tokens counted; at most a tenth over, unless it says so."""
    reads = float(bench.small.reads[-1, :, 0].sum())
    read_bytes = reads * CONFIG.kv_bytes_per_token(1) / CONFIG.num_layers
    traffic = bench.build(BUDGET).traffic(PROMPT_TOKENS[0] + STEPS, 1)
    if traffic.kv_bytes < read_bytes or (traffic.kv_bytes > 1.1 * read_bytes and not traffic.at_most):
        raise GateError(f"the traffic model says {traffic.kv_bytes:,} bytes, {read_bytes:,.0f} were read")


def runs_leave_no_trace(bench: Bench) -> None:
    """Two runs are identical, and so is a run after another with other rows."""
    method = bench.build(BUDGET)
    bench.trace(method, [1])
    for again in (bench.trace(method), bench.trace(method)):
        if not again.logits.equal(bench.small.logits) or not again.reads.equal(bench.small.reads):
            raise GateError("two runs with the same inputs differ")


def a_step_never_waits_for_the_host(bench: Bench) -> None:
    """A step runs on tensors without values, so no hook looks at one, which would break a CUDA graph."""
    meta = torch.device("meta")
    cache = KVCache(CONFIG, len(PROMPT_TOKENS), max(PROMPT_TOKENS) + STEPS, device=meta, dtype=torch.float32)
    method = bench.build(BUDGET)
    try:
        state = method.start(cache)
        method.before_step(state)
        for layer in range(CONFIG.num_layers):
            shape = (len(PROMPT_TOKENS), CONFIG.num_kv_heads, 1, CONFIG.head_dim)
            k = torch.empty(shape, device=meta)
            q = k.repeat_interleave(CONFIG.group_size, dim=1)
            angles = torch.empty(len(PROMPT_TOKENS), 1, CONFIG.head_dim, device=meta)
            rotated = method.append(layer, TokenHeads(q, k, k, angles, angles), state)
            method.attend(layer, rotated, state)
        method.after_step(state)
        state.finish_step()
    except (RuntimeError, NotImplementedError) as error:
        raise GateError(f"a step needs a tensor's value: {error}") from error


def graph_replay_equals_eager(bench: Bench) -> None:
    """A step replayed from a CUDA graph gives what it gives eagerly; holds vacuously where there is no CUDA.

    Where the method corrects its cache, the generation is long enough for two corrections.
    """
    if bench.decoder.device.type != "cuda":
        return
    method = bench.build(BUDGET)
    new_tokens = 8 if method.correction is None else 8 + 2 * method.correction.period
    requests = [
        Request(tuple(prompt.tolist()), max_new_tokens=new_tokens, forced_ids=tuple(fed.tolist()))
        for prompt, fed in zip(bench.prompts, bench.fed, strict=True)
    ]
    eager, replayed = (Generator(bench.decoder, cuda_graph=graph).run(requests, method) for graph in (False, True))
    for row, (a, b) in enumerate(zip(eager, replayed, strict=True)):
        logprobs = [torch.tensor(completion.forced_logprobs) for completion in (a, b)]
        _close(logprobs[0], logprobs[1], f"row {row}: log-probabilities eagerly and from a graph")
        if a.output_ids != b.output_ids or a.read_tokens_mean != b.read_tokens_mean:
            raise GateError(f"row {row}: a graph replay generates or reads otherwise than the eager step")


def fast_path_equals_naive(bench: Bench) -> None:
    """What the kernels in force compute is what their plain torch definitions compute, over a whole decode.

    Both read the same: the selections of one run are replayed in the other, so that a near-tie decides nothing.
    """
    made: list[Selection | None] = []
    fast, plain = bench.build(BUDGET), bench.build(BUDGET)
    choose = fast.select

    def recorded(layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        chosen = choose(layer, q, state)
        copy = chosen and Selection(chosen.indices.clone(), chosen.counts.clone(), chosen.block_size)
        made.append(copy)
        return chosen

    setattr(fast, "select", recorded)  # noqa: B010 - a method of an instance, which types do not allow to assign
    got = bench.trace(fast)
    replay = iter(made)
    setattr(plain, "select", lambda layer, q, state: next(replay))  # noqa: B010
    with dispatch.naive_kernels():
        want = bench.trace(plain)
    _close(got.logits, want.logits, "logits through the kernels in force and through their definitions")


CHECKS: tuple[Callable[[Bench], None], ...] = (
    card_names_the_parameters,
    bad_parameters_are_refused,
    whole_budget_equals_full,
    small_budget_leaves_something_out,
    ragged_batch_equals_single_rows,
    permuting_the_batch_permutes_the_result,
    unwritten_memory_is_never_read,
    stored_keys_keep_their_rotation,
    reads_stay_within_budget,
    traffic_covers_the_reads,
    runs_leave_no_trace,
    a_step_never_waits_for_the_host,
    graph_replay_equals_eager,
)
"""Every check, in the order they run."""

FAST_PATH_CHECKS: tuple[Callable[[Bench], None], ...] = (
    fast_path_equals_naive,
    whole_budget_equals_full,
    unwritten_memory_is_never_read,
    runs_leave_no_trace,
    graph_replay_equals_eager,
)
"""Those that hold in float32 too: none compares two ways of cutting a batch, where a near-tie may fall either way."""


def _run(checks: tuple[Callable[[Bench], None], ...], bench: Bench, case: Mapping[str, Any]) -> None:
    for check in checks:
        try:
            check(bench)
        except GateError as error:
            params = dict(case) or "with defaults"
            raise GateError(f"{bench.card.name} {params}: {check.__name__}: {error}") from error


def _default(item: Field[Any]) -> Any:
    return item.default if item.default is not MISSING else None


def _close(got: Tensor, want: Tensor, what: str) -> None:
    """Raise where two tensors differ by more than the tolerance, or one is not finite."""
    if not bool(torch.isfinite(got).all()):
        raise GateError(f"{what}: not finite")
    difference = float((got.double() - want.double()).abs().max())
    if difference > TOLERANCE:
        raise GateError(f"{what}: differ by up to {difference:.3g}, allowed {TOLERANCE}")
