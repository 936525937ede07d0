"""oracle_topk, omnikv, quest and tidal read exactly the tokens that a brute-force search names; tidal corrects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from decoding import random_prompt, reads_follow_the_rule
from harm import Harm
from longdecode.engine.correction import Correction
from longdecode.engine.errors import CheckpointError, ConfigError, UnsupportedCellError
from longdecode.engine.generation import Completion, Generator, Request
from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import Seen
from longdecode.engine.rope import RopeTable
from longdecode.kernels.rms_norm import rms_norm
from longdecode.kernels.rope import rotate
from longdecode.methods import prefill_scores
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.conformance_model import CONFIG, OTHER_SHAPES, Shape
from longdecode.methods.registry import get_method
from longdecode.methods.seerattention_r.gates import read_gates

KNOBS: list[tuple[str, dict[str, Any]]] = [
    ("oracle_topk", {"dense_layers": 0}), ("streaming", {"sinks": 0}), ("streaming", {"sinks": 1}),
    *(("quest", {"page_size": 4, "group_score": how}) for how in ("sum", "mean")),
    ("quest", {"page_size": 4, "dense_layers": 1, "variant": "accuracy_script"}),
    *(("tidal", {"selection": lists, "reselect_layer": at}) for lists in ("kv_head", "query_head") for at in (3, 5)),
    ("duo", {"sink_tokens": 2}), ("duo", {"sink_tokens": 0}),
    ("omnikv", {"filter_layers": None}), ("omnikv", {"filter_layers": "0,5", "wait_layers": 0, "recent_tokens": 5}),
    ("seerattention_r", {"gates": "random:1", "block_size": 8, "dense_layers": 1, "block_position": "released"}),
    ("omnikv", {"filter_layers": "0, 1,5", "selection": "kv_head", "score": "probability", "sink_tokens": 3}),
]  # fmt: skip
"""Parameters that no variant of a card stands for."""


@pytest.mark.parametrize(("name", "params"), KNOBS, ids=str)
@pytest.mark.parametrize("shape", [None, OTHER_SHAPES[2]], ids=str)
def test_reads_are_those_of_the_rule(name: str, params: dict[str, Any], shape: Shape | None) -> None:
    """Against a search by hand in float64, row by row: around the budget, and much shorter."""
    reads_follow_the_rule(name, params, shape)


@pytest.mark.parametrize(("layers", "want"), [(32, 13), (28, 11), (12, 5), (36, 15), (8, 4), (6, 4)])
def test_tidal_scales_its_reselection_layer(config: ModelConfig, layers: int, want: int) -> None:
    assert get_method("tidal").from_budget(8, replace(config, num_layers=layers)).dense_layers() == {0, 1, 2, want}
    with pytest.raises(UnsupportedCellError, match="6 layers"):
        get_method("tidal").from_budget(8, replace(config, num_layers=5))


@pytest.mark.parametrize(
    ("layers", "dense"), [(32, {0, 1, 2, 3, 8, 9, 18, 19}), (28, {0, 1, 2, 3, 7, 8, 16, 17}), (6, {0, 1, 2, 3, 4})]
)
def test_omnikv_scales_its_filter_layers(config: ModelConfig, layers: int, dense: set[int]) -> None:
    method = get_method("omnikv")
    assert method.from_budget(8, replace(config, num_layers=layers)).dense_layers() == dense
    shares = method.from_budget(8, replace(config, num_layers=layers), filter_layers="1/16, 1/4,9/16")
    assert shares.dense_layers() == dense
    with pytest.raises(UnsupportedCellError, match="keeps 5 layers dense"):
        method.from_budget(8, replace(config, num_layers=5))


def test_seerattention_r_takes_released_gates(tmp_path: Path) -> None:
    """Equation 1 on the keys as they were before YaRN rotated them, and files that are refused."""
    rng, size = torch.Generator().manual_seed(0), 4
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024}
    config, file = replace(CONFIG, num_layers=1, rope=yarn), tmp_path / "attn_gate_weights.pth"
    shapes = {"linear_q": (2, 2, 32, 32), "linear_k": (2, 96, 32), "qnorm": (32,), "knorm": (32,)}
    weights = {name: torch.randn(shape, generator=rng) for name, shape in shapes.items()}
    released = {f"model.layers.0.self_attn.attn_gate.attngate_{n}.weight": weights[n] for n in weights}
    torch.save(released, file)
    prompt, table = random_prompt(rng, config, [11, 8], 20, torch.float64), RopeTable(config, torch.device("cpu"))
    plain = torch.randn(2, 2, 12, 32, generator=rng, dtype=torch.float64)
    prompt.cache.k[0, :, :, :12] = rotate(plain, *table.at(torch.arange(12)[None]))
    params = {"gates": str(file), "block_size": size}
    method = get_method("seerattention_r").from_budget(8, config, **params)
    blocks = plain[:, :, :8].unflatten(2, (2, size))
    pooled = torch.cat((blocks.amax(3), blocks.amin(3), blocks.mean(3)), dim=3)
    want = rms_norm(pooled @ weights["linear_k"].double(), weights["knorm"].double(), 1e-6)
    want = rotate(want, *table.at(torch.tensor([[0, size]])))
    made = method.start(prompt).method_state.layers[0]
    torch.testing.assert_close(made[:, :, :2], want, rtol=1e-5, atol=1e-5)
    assert made.shape[2] == 5 and not made[:, :, 2:].any()
    (tmp_path / "config.json").write_text('{"seerattn_gate_block_size": 64}')
    with pytest.raises(UnsupportedCellError, match="gate_block_size is 64"):
        get_method("seerattention_r").from_budget(8, config, **params)
    harm = Harm(planted := tmp_path / "planted")
    for broken in (released | {"model.layers.1.more": file}, dict(list(released.items())[1:]), [Path], harm):
        torch.save(broken, file)
        with pytest.raises(CheckpointError):
            read_gates(file, config)
    assert not planted.exists()


def test_quest_refuses_budgets_under_its_pages(config: ModelConfig) -> None:
    with pytest.raises(UnsupportedCellError, match=r"32 tokens \(2 pages of 16\)"):
        get_method("quest").from_budget(31, config)
    with pytest.raises(UnsupportedCellError, match=r"48 tokens \(3 pages of 16\)"):
        get_method("quest").from_budget(47, config, variant="accuracy_script")


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("quest", {"page_sise": 8}, "nearest valid name: 'page_size'"),
        ("quest", {"variant": "kernal"}, "variant = 'kernal'"), ("quest", {"page_size": 0}, "page_size = 0"),
        ("quest", {"page_size": "16"}, "page_size = '16'"),
        ("quest", {"dense_layers": True}, "dense_layers = True"),
        ("oracle_topk", {"dense_layers": -1}, "dense_layers = -1"), ("streaming", {"sinks": -1}, "sinks = -1"),
        ("streaming", {"positions": None}, "positions = None"),
        ("tidal", {"reselect_layer": 2}, "reselect_layer = 2"), ("tidal", {"reselect_layer": 7}, "has 7 layers"),
        *(
            ("omnikv", {"filter_layers": at}, f"filter_layers = '{at}'")
            for at in ("", "2,x", "3,3", "4,2", "2,7", "1/0", "3/2", "1/4,5")
        ),
        *(("snapkv", {"kernel_size": n}, rf"= {n}; an odd number \(1, 3, 5, \.\.\.\) is needed") for n in (2, 4, 64)),
        ("full", {"anything": 1}, "full has no parameter 'anything'"),
    ],
)  # fmt: skip
def test_bad_parameters_are_refused(config: ModelConfig, name: str, overrides: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_method(name).from_budget(None if name == "full" else 64, config, **overrides)


@pytest.mark.parametrize("name", ["quest", "oracle_topk", "streaming", "tidal", "omnikv"])
@pytest.mark.parametrize("budget", [None, 0, -5])
def test_a_budget_is_needed(config: ModelConfig, name: str, budget: int | None) -> None:
    with pytest.raises(ConfigError, match="budget"):
        get_method(name).from_budget(budget, config)


def test_traffic_by_hand(config: ModelConfig) -> None:
    """One token's K and V: 2 x 2 heads x 8 channels = 32 elements, 64 bytes at 2 each; 7 layers; context 100."""

    def traffic(name: str, budget: int | None, **overrides: object) -> tuple[int, int]:
        got = get_method(name).from_budget(budget, config, **overrides).traffic(100, 2)
        return got.kv_bytes, got.metadata_bytes

    assert traffic("full", None) == (7 * 100 * 64, 0) and traffic("streaming", 30) == (7 * 30 * 64, 0)
    assert traffic("streaming", 300) == (7 * 100 * 64, 0)
    assert traffic("oracle_topk", 30) == ((2 * 100 + 5 * 30) * 64, 5 * 100 * 32)
    # 100 tokens are 7 pages, the last with 4 tokens; a budget of 40 is 2 pages, that one and a whole one.
    assert traffic("quest", 40) == ((2 * 100 + 5 * 20) * 64, 5 * 7 * 64)
    # One byte a number in the sparse layers, bounds too; nine scales of four bytes for each of two heads.
    assert traffic("quest", 40, kv_cache_dtype="fp8") == (2 * 100 * 64 + 5 * 20 * 32, 5 * 7 * 32 + 5 * 2 * 9 * 4)
    assert traffic("quest", 200) == (7 * 100 * 64, 5 * 7 * 64)
    assert traffic("quest", 48, variant="accuracy_script") == ((2 * 100 + 5 * 3 * 48) * 64, 5 * 7 * 64)
    assert traffic("tidal", 30) == ((4 * 100 + 3 * 30) * 64, 2 * 100 * 32)
    # Layer 3 reads a choice, that of layer 1; a filter layer that no sparse layer follows reads no key twice.
    assert traffic("omnikv", 30, filter_layers="1,4,6") == ((6 * 100 + 30) * 64, 100 * 32)
    assert traffic("tidal", 30, selection="query_head") == ((4 * 100 + 3 * 3 * 30) * 64, 2 * 100 * 32)


def test_traffic_per_token_shares_out_corrections_by_hand(config: ModelConfig) -> None:
    """A correction every 4 steps reads 7 layers x 100 tokens x 64 bytes once; a dense step replaces one of the 4."""

    def traffic(correction: str) -> tuple[int, int]:
        method = get_method("tidal").from_budget(30, config, correction=correction, correction_period=4)
        got = method.traffic_per_token(100, 2)
        return got.kv_bytes, got.metadata_bytes

    step, keys, everything = (4 * 100 + 3 * 30) * 64, 2 * 100 * 32, 7 * 100 * 64
    assert traffic("none") == (step, keys) and traffic("rewrite") == (step + everything // 4, keys)
    assert traffic("dense_step") == ((3 * step + everything) // 4, 3 * keys // 4)


@pytest.mark.parametrize("weights", [1, 700, 1 << 26])
def test_slices_receive_the_same_attention(monkeypatch: pytest.MonkeyPatch, config: ModelConfig, weights: int) -> None:
    """Ragged rows in two pieces, slices from one query to all; the last slice reaches back and counts nothing twice."""
    monkeypatch.setattr(prefill_scores, "MAX_SCORES", weights)
    torch.manual_seed(0)
    lengths, cut = [45, 29, 8], 30
    shapes = [(3, heads, 45, config.head_dim) for heads in (config.num_heads, config.num_kv_heads)]
    q, keys = (torch.randn(shape, dtype=torch.float64) for shape in shapes)
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


BUDGET = 8


@pytest.fixture
def decode(seed: int):
    """A function of a method's name, budget and parameters: what it makes of two prompts of ragged lengths."""
    bench = make_bench("tidal", "cpu", {}, dtype=torch.float64, seed=seed % 2**31)
    prompts = [bench.prompts[0][:length] for length in (80, 30)]
    fed = [tuple(bench.prompts[1][first : first + 12].tolist()) for first in (0, 12)]

    def run(name: str, budget: int | None, **params: object) -> list[Completion]:
        method = get_method(name).from_budget(budget, CONFIG, **params)
        requests = [Request(tuple(p.tolist()), 3, f) for p, f in zip(prompts, fed, strict=True)]
        return Generator(bench.decoder).run(requests, method)

    return run


@pytest.mark.parametrize("name", ["tidal", "lychee"])
def test_parameters_become_a_correction(name: str) -> None:
    method = get_method(name)
    assert method.from_budget(64, CONFIG).correction is None
    assert method.from_budget(64, CONFIG, correction="rewrite").correction == Correction("rewrite", 32)
    corrected = method.from_budget(64, CONFIG, correction="dense_step", correction_period=5)
    assert corrected.correction == Correction("dense_step", 5)
    for wrong in ({"correction": "always"}, {"correction_period": 0}):
        with pytest.raises(ConfigError, match=f"{name}: correction"):
            method.from_budget(64, CONFIG, **wrong)


@pytest.mark.parametrize("selection", ["kv_head", "query_head"])
def test_a_rewrite_brings_the_cache_back_to_what_full_attention_stores(decode, selection: str) -> None:
    """With a rewrite after every step each one starts from full attention's cache, so that errors do not add up."""
    full, params = decode("full", None), {"selection": selection}
    plain = decode("tidal", BUDGET, **params)
    corrected = decode("tidal", BUDGET, correction="rewrite", correction_period=1, **params)
    for row in range(2):
        assert corrected[row].forced_logprobs[:2] == plain[row].forced_logprobs[:2]
        assert corrected[row].forced_logprobs[2:] != plain[row].forced_logprobs[2:]
        assert corrected[row].forced_logprobs != full[row].forced_logprobs
        # 14 steps, and a rewrite of all visible tokens after each but the last.
        visible = [[80, 30][row] + step for step in range(1, 15)]
        steps = plain[row].decode_steps
        extra = corrected[row].read_tokens_sparse - plain[row].read_tokens_sparse
        assert steps == 14 and extra * steps == pytest.approx(sum(visible[:-1]))


def test_a_correction_that_is_never_due_changes_nothing(decode) -> None:
    plain = decode("tidal", BUDGET)
    for mode in ("rewrite", "dense_step"):
        late = decode("tidal", BUDGET, correction=mode)
        assert [c.forced_logprobs for c in late] == [c.forced_logprobs for c in plain]
        assert [c.read_tokens_mean for c in late] == [c.read_tokens_mean for c in plain]
