"""Check what every method must hold before its numbers count; callable outside tests, on any device.

``check_method("quest", torch.device("cuda"))`` runs all checks on a tiny random model, for the defaults and for each
variant of the card, and raises ``GateError`` at the first that fails.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.attention import Selection
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.errors import GateError
from longdecode.engine.generation import Generator
from longdecode.engine.sampling import Sampling
from longdecode.kernels import dispatch
from longdecode.methods.conformance_bench import MethodBench, Trace, make_bench, run_step_without_values
from longdecode.methods.conformance_card import (
    bad_parameters_are_refused,
    card_names_the_parameters,
    the_rule_is_stated,
)
from longdecode.methods.conformance_model import OTHER_SHAPES, Shape
from longdecode.methods.conformance_refill import refilled_rows_equal_rows_alone
from longdecode.methods.conformance_rules import reads_follow_the_rule, traffic_follows_the_rule
from longdecode.methods.prompt_selection import SelectivePrefill
from longdecode.methods.registry import get_method, load_card

TOLERANCE = 2e-4
"""Largest difference allowed between logits (or keys) that should agree."""
ROUNDED_TOLERANCE = 2e-2
"""The same over a cache that rounds, along two paths. An H100 showed 3e-3; that a code fell otherwise is inferred."""


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
    scores, the checks of ``FAST_PATH_CHECKS`` run through them as well, once for each set of ops and settings.

    Args:
        name: a registered method.
        overrides: parameters to check with; left out, the defaults and then every variant of the card.
        dtype: of the tiny model. In float64, near-ties in a selection fall the same way however a batch is cut, so
            that two runs that should agree do.
        seed: of the tiny model and its inputs.

    Raises:
        GateError: a check failed; the message names method, parameters and check.
        UnsupportedCellError: the parameters need a larger budget than the suite can check.
        ConfigError: the method or a parameter is unknown, or the card does not fit.
    """
    fast = dispatch.kernel_path(torch.device(device), torch.float32) != "naive"
    traces: list[Trace] = []
    paths: set[frozenset[object]] = set()
    for case, bench in benches(name, device, overrides, dtype=dtype, seed=seed):
        # Two cases that decode alike differ in what happens between steps only.
        alike = any(bench.small.equals(other) for other in traces)
        _run(CASE_CHECKS if alike else CHECKS, bench, case)
        for shape in () if alike else OTHER_SHAPES:
            # A row that is done meets the same code in every shape: once is enough, and a run is dear.
            checks = SHAPE_CHECKS if shape == OTHER_SHAPES[-1] else SHAPE_CHECKS[:-1]
            _run(checks, make_bench(name, device, case, dtype=dtype, seed=seed, shape=shape), case, shape)
        traces.append(bench.small)
        if fast:
            wide = make_bench(name, device, case, dtype=torch.float32, seed=seed)
            path = op_path(wide)
            if path not in paths:
                _run(FAST_PATH_CHECKS, wide, case)
            paths.add(path)


def benches(
    name: str, device: torch.device | str, overrides: Mapping[str, Any] | None, *, dtype: torch.dtype, seed: int
) -> Iterator[tuple[dict[str, Any], MethodBench]]:
    """Yield the cases to check a method in: the overrides, or the defaults and the variants that differ from them."""
    card = load_card(name)
    cases = [dict(overrides)] if overrides is not None else [{}, *map(card.variant_params, card.variants)]
    seen = []
    for case in cases:
        bench = make_bench(name, device, case, dtype=dtype, seed=seed)
        if bench.params not in seen:
            seen.append(bench.params)
            yield case, bench


def op_path(bench: MethodBench) -> frozenset[object]:
    """Return the ops that a decode calls, each with the settings that choose its kernel: arguments but the tensors."""
    used: set[object] = set()
    path = dispatch.kernel_path

    def recorded(device: torch.device, dtype: torch.dtype = torch.float32) -> str:
        op = sys._getframe(2)  # past use_triton, which every op asks
        given = dict(op.f_locals)  # those of dispatch.op take their arguments as ``args`` and ``kwargs``
        given |= {str(place): value for place, value in enumerate(given.pop("args", ()))} | given.pop("kwargs", {})
        used.add((op.f_code.co_name, *sorted(f"{name}={_setting(value)}" for name, value in given.items())))
        return path(device, dtype)

    setattr(dispatch, "kernel_path", recorded)  # noqa: B010
    try:
        bench.small  # noqa: B018
    finally:
        setattr(dispatch, "kernel_path", path)  # noqa: B010
    return frozenset(used)


def whole_budget_equals_full(bench: MethodBench) -> None:
    """With a budget over the context, logits equal Full's at every step, and everything is read.

    Left out where the card says that the method is not exact then.
    """
    if not bench.card.conformance.whole_budget_exact:
        return
    got = bench.inputs.trace(bench.build(bench.whole_budget))
    _close(got.logits, bench.full.logits, "logits with the whole budget and Full's")
    if not bool((got.reads >= bench.full.reads).all()):
        raise GateError("the whole budget does not read the whole context")


def small_budget_leaves_something_out(bench: MethodBench) -> None:
    """With a small budget not everything is read: otherwise the checks below would check dense attention."""
    if not bench.takes_budget or bench.card.kind == "speculative":
        return
    if bool((bench.small.reads >= bench.full.reads)[:, bench.governed_layers()].all()):
        raise GateError(f"a budget of {bench.budget} tokens reads contexts of up to {len(bench.prompts[0])} whole")


def ragged_batch_equals_single_rows(bench: MethodBench) -> None:
    """The shortest and the longest row of a ragged batch get the logits that they get alone."""
    for row in (2, 0):
        alone = bench.inputs.trace(bench.method, [row])
        _close(bench.small.logits[row : row + 1], alone.logits, f"row {row} in the batch and alone")
        if not bench.small.reads[..., row].equal(alone.reads[..., 0]):
            raise GateError(f"row {row} reads other numbers of tokens in the batch and alone")


def unwritten_memory_is_never_read(bench: MethodBench) -> None:
    """With every buffer full of NaN beforehand, the result is finite."""
    _, poisoned = bench.shuffled
    if not bool(torch.isfinite(poisoned.logits).all()):
        raise GateError("poisoned buffers make the logits NaN")


def permuting_the_batch_permutes_the_result(bench: MethodBench) -> None:
    """The order of rows does not matter."""
    order, permuted = bench.shuffled
    _close(permuted.logits, bench.small.logits[order], "a permuted batch and the permuted result")


def stored_keys_keep_their_rotation(bench: MethodBench) -> None:
    """Each key that a head of the first layer stores is one Full has, beside its value; no token is there twice."""
    got, want = bench.small.cache, bench.full.cache
    for row, seen in enumerate(want.positions.tolist()):
        if int(got.positions[row]) != seen:
            raise GateError(f"row {row} is at position {int(got.positions[row])} after {seen} tokens")
        for head in range(bench.config.num_kv_heads):
            (keys, values), (all_keys, all_values) = got.stored_kv(0, row, head), want.stored_kv(0, row, head)
            what, error = f"row {row}, head {head}", bench.card.conformance.stored_error
            # Rounded keys may be nearer to another's: a cache that rounds holds every token, in order.
            token = torch.arange(seen) if error else torch.cdist(keys, all_keys).argmin(dim=1)
            for part, exact, name in (
                (keys, all_keys, "stored keys and keys at their original positions"),
                (values, all_values, "values beside those keys"),
            ):
                _close(part, exact[token], f"{what}: {name}", error * float(exact.abs().max()))
            if len(set(token.tolist())) != len(keys):
                raise GateError(f"{what} stores {len(keys)} tokens of which {len(set(token.tolist()))} are distinct")


def reads_stay_within_budget(bench: MethodBench) -> None:
    """In every step governed heads read no more than the budget and the card's slack: each layer its own, all the sum.

    Reads are counted over all heads of a layer; those that read everything are taken off by what Full reads. Layers and
    heads may differ, so that the mean over all of them is held against the declared budget too.
    """
    if not bench.takes_budget or bench.card.kind == "speculative":
        return
    layers, heads = bench.governed_layers(), bench.config.num_kv_heads
    governed = torch.tensor([bench.governed_heads[layer] for layer in layers], device=bench.decoder.device)[:, None]
    # Whole numbers: a third of a token would be rounded.
    over_heads, whole = (trace.kv_tokens_read[:, layers] for trace in (bench.small, bench.full))
    reads = over_heads - whole // heads * (heads - governed)
    steps = torch.arange(1, bench.fed.shape[1] + 1, device=reads.device)[:, None, None]
    slack = bench.card.slack.tokens + steps * bench.card.slack.per_generated_token
    declared = torch.tensor(bench.declared_budgets(), device=reads.device)[:, None]
    own = torch.tensor(bench.layer_budgets(layers), device=reads.device)
    for budgets, read, heads_of in (
        (own, reads, governed),
        (declared, reads.sum(dim=1, keepdim=True), governed.sum(dim=0, keepdim=True)),
    ):
        allowed = budgets * bench.list_factor + slack
        if bool((read > allowed * heads_of).any()):
            most = float((read / heads_of).max())
            raise GateError(f"{most:.0f} tokens were read in a step, {int(budgets.max())} are declared")
    if int(reads.min()) <= 0:
        raise GateError("a step read nothing")


def traffic_covers_the_reads(bench: MethodBench) -> None:
    """The traffic model's bytes are at least those of the tokens counted; at most a tenth over, unless it says so."""
    config, steps = bench.config, bench.fed.shape[1]
    tokens = int(bench.small.kv_tokens_read[-1, :, 0].sum())
    tokens -= steps * config.num_layers * config.num_kv_heads * bench.card.slack.per_generated_token
    bits = bench.card.conformance.stored_bits
    read_bytes = tokens * 2 * config.head_dim * (bits or 8) // 8
    traffic = bench.method.traffic(len(bench.prompts[0]) + steps, 1)
    if traffic.kv_bytes < read_bytes or (traffic.kv_bytes > 1.1 * read_bytes and not (traffic.at_most or bits)):
        raise GateError(f"the traffic model says {traffic.kv_bytes:,} bytes, {read_bytes:,} were read")


def runs_leave_no_trace(bench: MethodBench) -> None:
    """A method that ran before, also with other rows, runs as the first time; so it does on a prompt it shares."""
    first = bench.small
    bench.inputs.trace(bench.method, [2])
    again = bench.inputs.trace(bench.method, shared=True)
    if not again.logits.equal(first.logits) or not again.reads.equal(first.reads):
        raise GateError("two runs with the same inputs differ")


def a_step_never_waits_for_the_host(bench: MethodBench) -> None:
    """A step runs on tensors without values, so no hook looks at one, which would break a CUDA graph."""
    run_step_without_values(bench)


def speculation_changes_no_token(bench: MethodBench) -> None:
    """Speculation generates Full's tokens, greedy and, under the exact rule, sampled."""
    if bench.method.draft is None:
        return
    requests = bench.inputs.requests(new_tokens=3 * bench.method.draft.tokens)
    full = get_method("full").from_budget(None, bench.config)
    exact = bench.method.draft.rule == "exact"
    for sampling in (Sampling(), Sampling(temperature=1.0))[: 1 + exact]:
        generator = Generator(bench.decoder, sampling)
        for row, (got, want) in enumerate(
            zip(generator.run(requests, bench.method), generator.run(requests, full), strict=True)
        ):
            if got.output_ids != want.output_ids:
                raise GateError(f"row {row}: speculation generates {got.output_ids}, full attention {want.output_ids}")


def a_row_that_is_done_changes_no_other(bench: MethodBench) -> None:
    """Beside a longest prompt that continues nothing, others get the log-probabilities and Full's drafts as ever."""
    longest, forced, both = bench.inputs.requests(new_tokens=2)
    requests = [replace(longest, forced_ids=(), max_new_tokens=0), replace(forced, max_new_tokens=0), both]
    done = Generator(bench.decoder).run(requests, bench.method)
    for row, completion in enumerate(done[1:], start=1):
        want = bench.small.logits[row, :-1].log_softmax(dim=-1).gather(1, bench.fed[row, 1:, None])[:, 0]
        got = torch.tensor(completion.forced_logprobs[1:], device=want.device)
        _close(got, want, f"row {row}: log-probabilities beside a row that is done, and otherwise")
    texts = [len(completion.output_ids) for completion in done]
    if texts != [0, 0, 2]:
        raise GateError(f"0, 0 and 2 tokens were asked for, {texts} generated")
    if bench.method.draft is not None:
        wanted = Generator(bench.decoder).run([both], get_method("full").from_budget(None, bench.config))
        if wanted[0].output_ids != done[2].output_ids:
            raise GateError(f"speculation generates {done[2].output_ids}, full attention {wanted[0].output_ids}")


def graph_replay_equals_eager(bench: MethodBench) -> None:
    """A step replayed from a CUDA graph gives what it gives eagerly; holds vacuously where there is no CUDA.

    Where the method corrects its cache, the generation is long enough for two corrections.
    """
    if bench.decoder.device.type != "cuda":
        return
    method = bench.method
    new_tokens = 8 if method.correction is None else 8 + 2 * method.correction.period
    requests = bench.inputs.requests(new_tokens=new_tokens)
    eager, replayed = (Generator(bench.decoder, cuda_graph=graph).run(requests, method) for graph in (False, True))
    for row, (a, b) in enumerate(zip(eager, replayed, strict=True)):
        logprobs = [torch.tensor(completion.forced_logprobs) for completion in (a, b)]
        _close(logprobs[0], logprobs[1], f"row {row}: log-probabilities eagerly and from a graph")
        if a.output_ids != b.output_ids or a.read_tokens_mean != b.read_tokens_mean:
            raise GateError(f"row {row}: a graph replay generates or reads otherwise than the eager step")


def fast_path_equals_naive(bench: MethodBench) -> None:
    """The kernels in force compute what their plain torch definitions compute, over a whole decode.

    Both read the same: the selections of one run are replayed in the other, those of the prompt too, so that a near-tie
    decides nothing.
    """
    made: list[Selection | None] = []
    fast, plain = bench.build(bench.budget), bench.build(bench.budget)
    choose = fast.select
    if isinstance(fast, SelectivePrefill):
        prompts: list[Tensor] = []
        of_prompt = fast.select_prompt

        def recorded_prompt(*given: Any) -> Tensor:
            prompts.append(of_prompt(*given))
            return prompts[-1]

        setattr(fast, "select_prompt", recorded_prompt)  # noqa: B010
        setattr(plain, "select_prompt", lambda *given: prompts.pop(0))  # noqa: B010

    def recorded(layer: int, q: Tensor, state: DecodeState) -> Selection | None:
        chosen = choose(layer, q, state)
        copy = chosen and Selection(chosen.indices.clone(), chosen.counts.clone(), chosen.block_size)
        made.append(copy)
        return chosen

    setattr(fast, "select", recorded)  # noqa: B010 - a method of an instance, which types do not allow to assign
    got = bench.inputs.trace(fast)
    replay = iter(made)
    setattr(plain, "select", lambda layer, q, state: next(replay))  # noqa: B010
    with dispatch.naive_kernels():
        want = bench.inputs.trace(plain)
    # A number beside a rounding border may be stored as either neighbour; kernels over the same codes have own tests.
    allowed = ROUNDED_TOLERANCE if bench.card.conformance.stored_error else 0.0
    _close(got.logits, want.logits, "logits through the kernels in force and through their definitions", allowed)


Checks = tuple[Callable[[MethodBench], None], ...]
CHECKS: Checks = (
    card_names_the_parameters,
    bad_parameters_are_refused,
    the_rule_is_stated,
    small_budget_leaves_something_out,
    reads_follow_the_rule,
    traffic_follows_the_rule,
    whole_budget_equals_full,
    ragged_batch_equals_single_rows,
    unwritten_memory_is_never_read,
    permuting_the_batch_permutes_the_result,
    stored_keys_keep_their_rotation,
    reads_stay_within_budget,
    traffic_covers_the_reads,
    runs_leave_no_trace,
    a_step_never_waits_for_the_host,
    refilled_rows_equal_rows_alone,
    speculation_changes_no_token,
    graph_replay_equals_eager,
)
"""Every check, in the order they run."""

CASE_CHECKS: Checks = (
    bad_parameters_are_refused,
    speculation_changes_no_token,
    graph_replay_equals_eager,
)
"""Those that may tell two cases apart whose steps are the same."""

SHAPE_CHECKS: Checks = (
    reads_follow_the_rule,
    traffic_follows_the_rule,
    reads_stay_within_budget,
    traffic_covers_the_reads,
    a_row_that_is_done_changes_no_other,
)
"""Those that heads of another number, group or width, and rows much shorter than the budget, may fail alone."""

FAST_PATH_CHECKS: Checks = (
    fast_path_equals_naive,
    whole_budget_equals_full,
    unwritten_memory_is_never_read,
    runs_leave_no_trace,
    graph_replay_equals_eager,
)
"""Those that hold in float32 too: none compares two ways of cutting a batch, where a near-tie may fall either way."""


def _run(checks: Checks, bench: MethodBench, case: Mapping[str, Any], shape: Shape | None = None) -> None:
    for check in checks:
        try:
            check(bench)
        except GateError as error:
            params = dict(case) or "with defaults"
            where = f" with {shape}" if shape else ""
            raise GateError(f"{bench.card.name} {params}: {check.__name__}{where}: {error}") from error


def _setting(value: object) -> str:
    return repr(value) if isinstance(value, bool | int | float | str | None) else type(value).__name__


def _close(got: Tensor, want: Tensor, what: str, allowed: float = 0.0) -> None:
    """Raise where two tensors differ by more than the tolerance, or one is not finite."""
    allowed = max(TOLERANCE, allowed)
    if not bool(torch.isfinite(got).all()):
        raise GateError(f"{what}: not finite")
    difference = float((got.double() - want.double()).abs().max())
    if difference > allowed:
        raise GateError(f"{what}: differ by up to {difference:.3g}, allowed {allowed}")
