"""Launches of a run against their definitions: right ones pass, bugs that only bfloat16 or length shows are caught."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from longdecode.engine import kv_cache
from longdecode.engine.attention import Selection
from longdecode.engine.errors import GateError
from longdecode.evals.throughput.harness import shape_config
from longdecode.kernels import dispatch
from longdecode.kernels.attention_weights import attention_weights
from longdecode.kernels.decode_attention import naive as decode_attention
from longdecode.kernels.quantised_kv.naive import append_quantised
from longdecode.methods import conformance_launches, evicting, paged, quantised_cache, window_cut
from longdecode.methods.conformance import check_method
from longdecode.methods.conformance_launches import LaunchSize, check_launches, landmarks
from longdecode.methods.lychee import method as lychee
from longdecode.methods.registry import get_method, load_card, method_names
from longdecode.methods.streaming.method import Streaming

CPU, SHAPE = torch.device("cpu"), shape_config("miniature-shape")
LONG = LaunchSize(1000, 2)


def checked(
    name: str, dtype: torch.dtype, place: LaunchSize = LONG, device: torch.device = CPU, shape: Any = SHAPE
) -> None:
    name, _, stored = name.partition("+")
    params = {"kv_cache_dtype": stored} if stored else {}
    least = load_card(name).limits.min_budget_tokens
    check_launches(name, shape, params, least and max(least, place.context // 8), place, device, dtype)


def assert_refused(name: str, dtype: torch.dtype, message: str) -> None:
    with pytest.raises(GateError, match=message):
        checked(name, dtype)


def in_force() -> bool:
    """True where the kernels run, not their definitions."""
    return os.environ.get(dispatch.VARIABLE) != "naive"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["dma", "duo", "quest", "retro", "shadowkv", "tova", "triforce"])
def test_every_kind_of_method_can_be_checked(name: str, dtype: torch.dtype) -> None:
    checked(name, dtype)


def test_landmarks_lie_in_the_row_and_on_both_sides_of_edges() -> None:
    for length in (1, 2, 63, 64, 65, 1000, 131_071, 131_072):
        found = landmarks(length)
        assert len(found) == conformance_launches.LANDMARKS and 0 <= min(found) <= max(found) == length - 1
    assert {65_535, 65_536} <= set(landmarks(131_072)) and {511, 512} <= set(landmarks(1000))


def faulty_attention(fault: Callable[..., Tensor]) -> Callable[..., Any]:
    right = kv_cache.decode_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, kv_lengths: Tensor, **given: Any) -> tuple[Tensor, Tensor]:
        return fault(right, q, k, v, kv_lengths, **given) if in_force() else right(q, k, v, kv_lengths, **given)

    return attend


def tail_lost(right: Any, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, **given: Any) -> Any:
    """The half-filled last tile of 64 is left out once there are ten tiles."""
    return right(q, k, v, torch.where(lengths > 640, lengths // 64 * 64, lengths), **given)


def offsets_wrap(right: Any, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor, **given: Any) -> Any:
    """Slots from 512 on are read at the row's start, as when an offset's high bits are lost."""
    slots = torch.arange(k.shape[2]) % 512
    return right(q, k[:, :, slots], v[:, :, slots], lengths, **given)


def coarse(right: Any, q: Tensor, *rest: Any, **given: Any) -> Any:
    """The query loses bits in bfloat16 alone."""
    return right((q / 4).round() * 4 if q.dtype == torch.bfloat16 else q, *rest, **given)


@pytest.mark.parametrize(("fault", "dtype"), [(tail_lost, "float32"), (offsets_wrap, "float32"), (coarse, "bfloat16")])
def test_a_fault_of_length_or_dtype_fails_the_launches(fault: Any, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    checked("full", getattr(torch, dtype))
    monkeypatch.setattr(kv_cache, "decode_attention", faulty_attention(fault))
    check_method("full", CPU, {})
    assert_refused("full", getattr(torch, dtype), f"full in {dtype}, 1000 tokens, 2 rows, .* outputs differ")


def test_a_selector_that_misses_late_pages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    quest = get_method("quest")
    choose = quest.select

    def select(self: Any, layer: int, q: Tensor, state: Any) -> Selection | None:
        chosen = choose(self, layer, q, state)
        if chosen is not None and in_force():
            chosen.indices = torch.where(chosen.indices > 32, chosen.indices - 32, chosen.indices)
        return chosen

    monkeypatch.setattr(quest, "select", select)
    assert_refused("quest", torch.float32, "entries of a list are not in its definition's")


@pytest.mark.parametrize("seed", range(2))
def test_a_tie_broken_otherwise_fails_no_union_of_pages(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A choice that takes one page for another of nearly its score makes a union longer or shorter."""
    right, generator = paged.page_score, torch.Generator().manual_seed(seed)

    def rounded(*given: Any, **options: Any) -> Tensor:
        scores = right(*given, **options)
        return scores * (1 + 1e-3 * torch.randn(scores.shape, generator=generator)) if in_force() else scores

    monkeypatch.setattr(paged, "page_score", rounded)
    checked("page_union", torch.float32)


@pytest.mark.parametrize(("hook", "name"), [("choose", "quest"), ("choose", "page_union"), ("select", "page_union")])
def test_a_list_of_a_wrong_length_is_caught(hook: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    method = get_method(name)
    right = getattr(method, hook)

    def shorter(self: Any, layer: int, q: Tensor, state: Any) -> Selection | None:
        chosen: Selection | None = right(self, layer, q, state)
        if chosen is not None and in_force():
            chosen.counts = chosen.counts - torch.eye(1, chosen.counts.shape[1], dtype=torch.int64)[0]
        return chosen

    monkeypatch.setattr(method, hook, shorter)
    assert_refused(name, torch.float32, "lists have other lengths")


TOP_P = {"mode": "token", "strategy": "top_p", "top_p": 0.8, "sink_tokens": 0, "recent_tokens": 0}


def checked_top_p() -> None:
    check_launches("lychee", SHAPE, TOP_P, 600, LONG, CPU, torch.float32)


def reads_leave(change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the scores that a read in force leaves for a choice."""
    right = kv_cache.sparse_decode_attention

    def read(*given: Any, scores: Tensor | None = None, **options: Any) -> Any:
        out = right(*given, scores=scores, **options)
        if scores is not None and in_force():
            scores.copy_(change(scores))
        return out

    monkeypatch.setattr(kv_cache, "sparse_decode_attention", read)


def recorded(owner: Any, name: str, part: Callable[[Any], Tensor], monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """A list to which each call of a function adds a part of what it gives."""
    right, seen = getattr(owner, name), list[Tensor]()

    def run(*given: Any, **options: Any) -> Any:
        found = right(*given, **options)
        seen.append(part(found))
        return found

    monkeypatch.setattr(owner, name, run)
    return seen


@pytest.mark.parametrize("factor", [1 - 8e-4, 1 + 8e-4])
def test_a_mass_within_rounding_of_top_p_fails_no_list(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that are rounded otherwise end some lists an entry earlier or later."""
    counts = recorded(lychee, "by_probability", lambda found: found[1], monkeypatch)
    checked_top_p()
    exact, counts[:] = list(counts), []
    reads_leave(lambda scores: factor * scores, monkeypatch)
    checked_top_p()
    assert any(not mine.equal(truth) for mine, truth in zip(counts, exact, strict=True))


def test_a_top_p_list_that_ends_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last entry is missing, though those before it hold less than ``top_p``."""
    right = lychee.by_probability

    def shorter(*given: Any, **options: Any) -> tuple[Tensor, Tensor]:
        places, counts = right(*given, **options)
        return places, counts - int(in_force())

    monkeypatch.setattr(lychee, "by_probability", shorter)
    with pytest.raises(GateError, match="lists have other lengths"):
        checked_top_p()


def test_scores_that_rounding_does_not_explain_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    reads_leave(lambda scores: 0.99 * scores, monkeypatch)
    with pytest.raises(GateError, match=r"lychee in float32, .* scores differ by up to"):
        checked_top_p()


def weights_are(change: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """Change the attention weights in force, by which tokens are dropped: of a prompt, and those that a step leaves."""
    right, read = attention_weights.__wrapped__, decode_attention.decode_attention

    def weigh(*given: Any, **options: Any) -> Tensor:
        weights = right(*given, **options)
        return change(weights) if in_force() else weights

    def attend(*given: Any, logits: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
        out, lse = read(*given, logits=logits, **options)
        if logits is not None and in_force():
            logits.copy_(change(torch.exp(logits - lse)).log() + lse)
        return out, lse

    monkeypatch.setattr(attention_weights, "__wrapped__", weigh)
    monkeypatch.setattr(decode_attention, "decode_attention", attend)


def rounded(weights: Tensor) -> Tensor:
    """Change every weight by less than is allowed, each otherwise."""
    generator = torch.Generator().manual_seed(weights.shape[2])
    return weights * (1 + 1.6e-3 * (torch.rand(weights.shape, generator=generator) - 0.5))


@pytest.mark.parametrize("name", ["snapkv", "tova"])
def test_a_token_kept_within_rounding_of_another_fails_no_output(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are rounded otherwise drop another token, which later queries read or miss."""
    kept = recorded(conformance_launches, "_kept", lambda found: found, monkeypatch)
    checked(name, torch.float32)
    exact, kept[:] = list(kept), []
    weights_are(rounded, monkeypatch)
    checked(name, torch.float32)
    assert any(not mine.equal(truth) for mine, truth in zip(kept, exact, strict=True))


@pytest.mark.parametrize("name", ["h2o", "snapkv", "tova"])
def test_weights_of_queries_rounded_otherwise_fail_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One path rounds every ninth number of a query to its other neighbour, as another way to rotate it may."""

    def of_other_queries(right: Callable[..., Any]) -> Callable[..., Any]:
        def run(q: Tensor, *given: Any, **options: Any) -> Any:
            if in_force():
                q = q.clone()
                q.view(torch.int16).flatten()[::9] += 1
            return right(q, *given, **options)

        return run

    for module, op in ((attention_weights, "__wrapped__"), (decode_attention, "decode_attention")):
        monkeypatch.setattr(module, op, of_other_queries(getattr(module, op)))
    checked(name, torch.bfloat16)
    weights_are(lambda weights: 1.1 * weights, monkeypatch)
    assert_refused(name, torch.bfloat16, f"{name} in bfloat16, .* attention weights differ by")


@pytest.mark.parametrize("name", ["h2o", "snapkv", "tova"])
def test_weights_that_rounding_does_not_explain_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest hides the others: only the least are wrong."""
    weights_are(lambda weights: torch.where(weights < 1e-4, 0.99 * weights, weights), monkeypatch)
    assert_refused(name, torch.float32, f"{name} in float32, .* attention weights differ by up to 1.00%")


def second_least(cache: Any, layer: int) -> None:
    """The least of the older half but the victim."""
    old = cache.slot_positions[layer] < cache.positions[:, None, None] // 2
    scores = torch.where(old, cache.scores[layer], torch.inf)
    cache.victims[layer] = scores.scatter(2, cache.victims[layer][..., None], torch.inf).argmin(dim=2)


def newest(cache: Any, layer: int) -> None:
    cache.victims[layer] = cache.slot_positions[layer].argmax(dim=2)


def oldest(cache: Any, layer: int) -> None:
    cache.victims[layer] = cache.slot_positions[layer].argmin(dim=2)


@pytest.mark.parametrize(
    ("name", "drop"), [("tova", second_least), ("h2o", second_least), ("tova", newest), ("h2o", newest)]
)
def test_a_token_dropped_wrongly_is_caught(name: str, drop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drops(evicting.EvictingMethod, drop, monkeypatch)
    assert_refused(name, torch.float32, f"{name} in float32, .* step 0, layer 0: .* slots hold other tokens")


def drops(method: type, drop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a method in force drop other tokens than it should."""

    def wrong(right: Any) -> Any:
        def choose(self: Any, cache: Any, layer: int, *given: Any) -> None:
            right(self, cache, layer, *given)
            if in_force():
                drop(cache, layer)

        return choose

    for hook in {"_choose_first_victims", "_choose_victims"} & set(vars(method)):
        monkeypatch.setattr(method, hook, wrong(vars(method)[hook]))


def test_a_sink_that_is_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    drops(Streaming, oldest, monkeypatch)
    with pytest.raises(GateError, match=r"streaming in float32, .* slots hold other tokens"):
        check_launches("streaming", SHAPE, {"dense_layers": 1}, 125, LONG, CPU, torch.float32)


def test_a_window_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = window_cut.latest_and_best

    def cut(scores: Tensor, lengths: Tensor, recent: int, *given: Any) -> Tensor:
        return right(scores, lengths, recent - int(in_force()), *given)

    monkeypatch.setattr(window_cut, "latest_and_best", cut)
    assert_refused("snapkv", torch.float32, r"snapkv in float32, .* slots hold other tokens")


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled here, so CPU tensors cannot run them")
@pytest.mark.parametrize("name", ["lychee", "lychee+fp8", "quest", "quest+fp8", "nosa", "tova"])
def test_triton_kernels_pass_in_the_interpreter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16, which the interpreter rounds rightly."""
    monkeypatch.setattr(dispatch, "kernel_path", lambda device, dtype=None: "triton" if in_force() else "naive")
    monkeypatch.setattr(conformance_launches, "LAYERS", 3)
    monkeypatch.setattr(conformance_launches, "STEPS", 2)
    # It rounds to e4m3 wrongly.
    monkeypatch.setattr(quantised_cache, "append_quantised", append_quantised)
    checked(name, torch.float16, LaunchSize(250, 2))


@pytest.mark.gpu
@pytest.mark.parametrize("shape", ["llama3-8b", "miniature-shape"])
@pytest.mark.parametrize("name", [*method_names(), "lychee+fp8", "quest+fp8"])
def test_launches_at_full_length_on_the_device(name: str, shape: str) -> None:
    place = LaunchSize(131_072, 1) if shape == "llama3-8b" else LaunchSize(16_384, 32)
    checked(name, torch.bfloat16, place, torch.device("cuda"), shape_config(shape, place.context))
