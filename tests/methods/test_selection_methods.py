"""oracle_topk, quest and tidal read exactly the tokens that a brute-force search names."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import Seen
from longdecode.methods import prefill_scores
from longdecode.methods.registry import get_method

LENGTHS = [33, 5, 64, 1]


def best(scores: list[float], k: int) -> list[int]:
    return sorted(sorted(range(len(scores)), key=lambda i: (-scores[i], i))[:k])


def group_of(head: int, config: ModelConfig) -> range:
    first = head // config.group_size * config.group_size
    return range(first, first + config.group_size)


@pytest.mark.parametrize("budget", [1, 7, 40])
@pytest.mark.parametrize("dense", [0, 2])
def test_oracle_topk(decode_against: Callable, config: ModelConfig, budget: int, dense: int) -> None:
    def choose(layer: int, row: int, head: int, q: Tensor, keys: Tensor) -> list[int]:
        if layer < dense:
            return list(range(len(keys)))
        mean = [0.0] * len(keys)
        for h in group_of(head, config):
            weights = [math.exp(float(q[h] @ key) / math.sqrt(len(key))) for key in keys]
            mean = [m + w / sum(weights) / config.group_size for m, w in zip(mean, weights, strict=True)]
        return sorted({*best(mean[:-1], budget - 1), len(keys) - 1})

    method = get_method("oracle_topk").from_budget(budget, config, dense_layers=dense)
    state = decode_against(method, choose, LENGTHS, 4)
    want = sum(min(33 + step + 1, budget) for step in range(4))
    assert state.kv_tokens_per_head[dense:, 0].tolist() == [want] * (7 - dense)


def page_bounds(q: Tensor, keys: Tensor, page: int) -> list[float]:
    scores = []
    for start in range(0, len(keys), page):
        inside = keys[start : start + page]
        channels = zip(q.tolist(), inside.min(0).values.tolist(), inside.max(0).values.tolist(), strict=True)
        scores.append(sum(max(x * low, x * high) for x, low, high in channels))
    return scores


def tokens_of(pages: list[int], page: int, n: int) -> list[int]:
    return [i for j in pages for i in range(j * page, min((j + 1) * page, n))]


@pytest.mark.parametrize("how", ["max", "sum", "mean"])
@pytest.mark.parametrize(("budget", "page"), [(12, 4), (23, 4), (32, 16), (100, 16)])
def test_quest_kernel(decode_against: Callable, config: ModelConfig, budget: int, page: int, how: str) -> None:
    reduce = {"max": max, "sum": sum, "mean": lambda x: sum(x) / len(x)}[how]

    def choose(layer: int, row: int, head: int, q: Tensor, keys: Tensor) -> list[int]:
        n = len(keys)
        if layer < 2:
            return list(range(n))
        bounds = [page_bounds(q[h], keys, page) for h in group_of(head, config)]
        scores = [reduce(column) for column in zip(*bounds, strict=True)]
        others = best(scores[:-1], budget // page - 1)
        return tokens_of([*others, len(scores) - 1], page, n)

    method = get_method("quest").from_budget(budget, config, page_size=page, group_score=how)
    decode_against(method, choose, LENGTHS, 6)


@pytest.mark.parametrize("budget", [12, 23, 100])
def test_quest_accuracy_script(decode_against: Callable, config: ModelConfig, budget: int) -> None:
    def choose(layer: int, row: int, head: int, q: Tensor, keys: Tensor) -> list[int]:
        if layer < 1:
            return list(range(len(keys)))
        return tokens_of(best(page_bounds(q[head], keys, 4), budget // 4), 4, len(keys))

    method = get_method("quest").from_budget(
        budget, config, page_size=4, dense_layers=1, variant="accuracy_script"
    )  # fmt: skip
    decode_against(method, choose, LENGTHS, 6)


@pytest.mark.parametrize("selection", ["kv_head", "query_head"])
@pytest.mark.parametrize("budget", [1, 9, 100])
@pytest.mark.parametrize("reselect", [None, 3, 5])
def test_tidal(
    decode_against: Callable, config: ModelConfig, budget: int, selection: str, reselect: int | None
) -> None:
    chosen: dict[tuple[int, int], list[int]] = {}

    def choose(layer: int, row: int, head: int, q: Tensor, keys: Tensor) -> list[int]:
        everything = list(range(len(keys)))
        if layer in (2, 4 if reselect is None else reselect):
            if selection == "query_head":
                chosen[row, head] = best((keys @ q[head]).tolist(), budget)
            else:
                mean = torch.stack([q[h] for h in group_of(head, config)]).mean(0)
                chosen[row, head] = [*best((keys[:-1] @ mean).tolist(), budget - 1), len(keys) - 1]
            return everything
        return everything if layer < 2 else chosen[row, head]

    method = get_method("tidal").from_budget(budget, config, selection=selection, reselect_layer=reselect)
    decode_against(method, choose, LENGTHS, 4)


@pytest.mark.parametrize(("layers", "want"), [(32, 13), (28, 11), (12, 5), (36, 15), (8, 4), (6, 4)])
def test_tidal_scales_its_reselection_layer(config: ModelConfig, layers: int, want: int) -> None:
    deep = ModelConfig(**{**{name: getattr(config, name) for name in config.__slots__}, "num_layers": layers})
    method = get_method("tidal").from_budget(8, deep)
    assert method.dense_layers() == {0, 1, 2, want}


def test_tidal_refuses_a_shallow_model(config: ModelConfig) -> None:
    shallow = ModelConfig(**{**{name: getattr(config, name) for name in config.__slots__}, "num_layers": 5})
    with pytest.raises(UnsupportedCellError, match="6 layers"):
        get_method("tidal").from_budget(8, shallow)


def test_quest_refuses_budgets_under_its_pages(config: ModelConfig) -> None:
    with pytest.raises(UnsupportedCellError, match=r"32 tokens \(2 pages of 16\)"):
        get_method("quest").from_budget(31, config)
    with pytest.raises(UnsupportedCellError, match=r"48 tokens \(3 pages of 16\)"):
        get_method("quest").from_budget(47, config, variant="accuracy_script")


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("quest", {"page_sise": 8}, "nearest valid name: 'page_size'"),
        ("quest", {"variant": "kernal"}, "variant = 'kernal'"),
        ("quest", {"page_size": 0}, "page_size = 0"),
        ("quest", {"page_size": "16"}, "page_size = '16'"),
        ("quest", {"dense_layers": True}, "dense_layers = True"),
        ("oracle_topk", {"dense_layers": -1}, "dense_layers = -1"),
        ("streaming", {"sinks": -1}, "sinks = -1"),
        ("streaming", {"positions": None}, "positions = None"),
        ("tidal", {"reselect_layer": 2}, "reselect_layer = 2"),
        ("tidal", {"reselect_layer": 7}, "has 7 layers"),
        ("full", {"anything": 1}, "full has no parameter 'anything'"),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(config: ModelConfig, name: str, overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_method(name).from_budget(None if name == "full" else 64, config, **overrides)


@pytest.mark.parametrize("name", ["quest", "oracle_topk", "streaming", "tidal"])
@pytest.mark.parametrize("budget", [None, 0, -5])
def test_a_budget_is_needed(config: ModelConfig, name: str, budget: int | None) -> None:
    with pytest.raises(ConfigError, match="budget"):
        get_method(name).from_budget(budget, config)


def test_full_takes_no_budget(config: ModelConfig) -> None:
    with pytest.raises(ConfigError, match="takes no budget"):
        get_method("full").from_budget(100, config)


def test_keeping_every_layer_dense_is_refused(config: ModelConfig) -> None:
    with pytest.raises(UnsupportedCellError, match="keeps 7 layers dense"):
        get_method("oracle_topk").from_budget(8, config, dense_layers=9)


def test_traffic_by_hand(config: ModelConfig) -> None:
    """One token's K and V: 2 x 2 heads x 8 channels = 32 elements, 64 bytes at 2 each; 7 layers; context 100."""

    def traffic(name: str, budget: int | None, **overrides: object) -> tuple[int, int]:
        got = get_method(name).from_budget(budget, config, **overrides).traffic(100, 2)
        return got.kv_bytes, got.metadata_bytes

    assert traffic("full", None) == (7 * 100 * 64, 0)
    assert traffic("streaming", 30) == (7 * 30 * 64, 0)
    assert traffic("streaming", 300) == (7 * 100 * 64, 0)
    assert traffic("oracle_topk", 30) == ((2 * 100 + 5 * 30) * 64, 5 * 100 * 32)
    # 100 tokens are 7 pages, the last with 4 tokens; a budget of 40 is 2 pages, that one and a whole one.
    assert traffic("quest", 40) == ((2 * 100 + 5 * 20) * 64, 5 * 7 * 64)
    assert traffic("quest", 200) == (7 * 100 * 64, 5 * 7 * 64)
    assert traffic("quest", 48, variant="accuracy_script") == ((2 * 100 + 5 * 3 * 48) * 64, 5 * 7 * 64)
    assert traffic("tidal", 30) == ((4 * 100 + 3 * 30) * 64, 2 * 100 * 32)
    assert traffic("tidal", 30, selection="query_head") == ((4 * 100 + 3 * 3 * 30) * 64, 2 * 100 * 32)


def test_traffic_per_token_shares_out_corrections_by_hand(config: ModelConfig) -> None:
    """A correction every 4 steps reads 7 layers x 100 tokens x 64 bytes once; a dense step replaces one of the 4."""

    def traffic(correction: str) -> tuple[int, int]:
        method = get_method("tidal").from_budget(30, config, correction=correction, correction_period=4)
        got = method.traffic_per_token(100, 2)
        return got.kv_bytes, got.metadata_bytes

    step, keys, everything = (4 * 100 + 3 * 30) * 64, 2 * 100 * 32, 7 * 100 * 64
    assert traffic("none") == (step, keys)
    assert traffic("rewrite") == (step + everything // 4, keys)
    assert traffic("dense_step") == ((3 * step + everything) // 4, 3 * keys // 4)


@pytest.mark.parametrize("weights", [1, 700, 1 << 26])
def test_attention_received_is_the_same_in_slices_of_any_size(
    monkeypatch: pytest.MonkeyPatch, config: ModelConfig, weights: int
) -> None:
    """Ragged rows in two pieces, slices from one query to all; the last slice reaches back and counts nothing twice."""
    monkeypatch.setattr(prefill_scores, "MAX_SCORES", weights)
    torch.manual_seed(0)
    lengths, cut = [45, 29, 8], 30
    q, keys = (
        torch.randn(3, heads, 45, config.head_dim, dtype=torch.float64)
        for heads in (config.num_heads, config.num_kv_heads)
    )
    observer = prefill_scores.AttentionReceived()
    observer.begin(CacheShape(config, 3, 45, torch.device("cpu"), torch.float64, 0), lengths)
    for start, stop in ((0, cut), (cut, 45)):
        observer.see(Seen(0, slice(0, 3), start, q[:, :, start:stop], keys[:, :, :stop], keys[:, :, :stop]))
    shared = keys.repeat_interleave(config.num_heads // config.num_kv_heads, dim=1)
    scores = (q @ shared.mT) * config.head_dim**-0.5
    given = scores.masked_fill(torch.ones(45, 45).triu(1).bool(), float("-inf")).softmax(dim=-1)
    real = torch.arange(45) < torch.tensor(lengths)[:, None]
    expected = (given * real[:, None, :, None]).sum(dim=2).unflatten(1, (config.num_kv_heads, -1)).sum(dim=2)
    torch.testing.assert_close(observer.layer(0), expected)


@pytest.mark.parametrize("size", [2, 4, 64])
def test_snapkv_refuses_an_even_pooling_kernel(size: int, config: ModelConfig) -> None:
    with pytest.raises(
        ConfigError, match=rf"snapkv: kernel_size = {size}; an odd number \(1, 3, 5, \.\.\.\) is needed"
    ):
        get_method("snapkv").from_budget(64, config, kernel_size=size)
    get_method("snapkv").from_budget(64, config, kernel_size=size + 1)
