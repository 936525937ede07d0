"""RetroAttention against loops over sets of pages, and what must hold of it whatever its knobs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.generation import Generator
from longdecode.engine.sampling import Sampling
from longdecode.methods.conformance_bench import Inputs, make_inputs
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import get_method
from retro_reference import Reference

BUDGET = 64
STEPS = 20
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """A tiny model, three ragged prompts, and more steps than a page has tokens."""
    return make_inputs(CPU, torch.float64, 3, BUDGET, STEPS)


def build(name: str, budget: int = BUDGET, **params: Any) -> AttentionMethod:
    return get_method(name).from_budget(budget, CONFIG, **params)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "two": ({"window": 2}, {"window": 2}),
    "eight": ({"window": 8}, {"window": 8}),
    "over a page": ({"window": 19}, {"window": 19}),
    "old queries, sums": (
        {"window": 4, "retro_query": "old", "group_score": "sum"},
        {"window": 4, "old_query": True, "join": "sum"},
    ),
    "exact page": ({"window": 5, "exact_page": True}, {"window": 5, "exact": True}),
    "keys alone": ({"window": 4, "overwrite": "keys"}, {"window": 4, "overwrite": "keys"}),
    "values alone": ({"window": 4, "overwrite": "values"}, {"window": 4, "overwrite": "values"}),
    "shared lists": ({"window": 3, "layers_per_list": 2, "dense_layers": 1}, {"window": 3, "every": 2, "dense": 1}),
    "large pages": ({"window": 4, "page_size": 32, "dense_layers": 0}, {"window": 4, "page": 32, "dense": 0}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_step_is_that_of_the_loops(inputs: Inputs, case: str) -> None:
    params, wanted = CASES[case]
    rows = [1, 2]  # the shortest prompt is read whole, its window begins in the page that its prompt ends in
    got, page = inputs.trace(build("retro", **params), rows), wanted.get("page", 16)
    for at, row in enumerate(rows):
        reference = Reference(inputs.decoder, pages=BUDGET // page, **wanted)
        reference.prefill(inputs.prompts[row].tolist())
        for step, token in enumerate(inputs.fed[row].tolist()):
            logits = reference.step(token)  # the engine hands out logits in float32
            torch.testing.assert_close(got.logits[at, step], logits.float(), atol=1e-5, rtol=0)
        for layer in range(CONFIG.num_layers):
            for head in range(CONFIG.num_kv_heads):
                keys, values = got.cache.stored_kv(layer, at, head)
                torch.testing.assert_close(keys, reference.keys[layer][head], atol=1e-6, rtol=0)
                torch.testing.assert_close(values, reference.values[layer][head], atol=1e-6, rtol=0)


def test_a_window_of_one_is_quest_token_for_token(inputs: Inputs) -> None:
    assert inputs.trace(build("retro", window=1)).equals(inputs.trace(build("quest")))
    generator = Generator(inputs.decoder, Sampling(temperature=1.0))
    requests = inputs.requests(new_tokens=6)
    retro, quest = (generator.run(requests, build(*which)) for which in (("retro",), ("quest",)))
    assert [c.output_ids for c in generator.run(requests, build("retro", window=1))] == [c.output_ids for c in quest]
    assert [c.read_tokens_mean for c in retro] == [c.read_tokens_mean for c in quest]


@pytest.mark.parametrize("window", [3, 18])
def test_a_whole_budget_is_full_attention(inputs: Inputs, window: int) -> None:
    got = inputs.trace(build("retro", 5 * BUDGET, window=window))
    torch.testing.assert_close(got.logits, inputs.full.logits, atol=1e-5, rtol=0)


def test_neither_part_alone_changes_a_logit_and_both_do(inputs: Inputs) -> None:
    """Writing unchanged rows over themselves is a no-op; correcting rows that nobody reads again is one too."""
    quest = inputs.trace(build("quest"))
    for alone in ({"supplement": False}, {"overwrite": "none"}):
        got = inputs.trace(build("retro", window=4, **alone))
        torch.testing.assert_close(got.logits, quest.logits, atol=1e-5, rtol=0)
    both = inputs.trace(build("retro", window=4))
    assert float((both.logits - quest.logits)[0].abs().max()) > 1e-4
    # A step loads what Quest's loads, in every layer and row.
    assert both.kv_tokens_read.equal(quest.kv_tokens_read)


@pytest.mark.parametrize("window", [2, 8])
def test_the_window_keeps_what_the_paper_says(inputs: Inputs, window: int) -> None:
    """``(w - 1, B, L, Hq * D)`` elements, and a normaliser for each ``D`` of them."""
    method = build("retro", window=window)
    state = method.start(Generator(inputs.decoder).prefill(inputs.requests(), [method]))
    kept = state.method_state
    heads = (window - 1) * 3 * CONFIG.num_layers * CONFIG.num_heads
    assert kept.outputs.numel() == heads * CONFIG.head_dim and kept.lse.numel() == heads
    method.settle(state)  # as a step is timed: every row of the window works
    state.begin(method.step_block(inputs.fed[:, 0], state), method)
    assert bool((kept.limits > 0).all()) and bool((state.dense.slot_mapping >= 0).all())
    both = method.traffic(200, 2).metadata_bytes - build("quest").traffic(200, 2).metadata_bytes
    assert both == heads // 3 * (2 * CONFIG.head_dim + 4)
    assert method.traffic(200, 2).kv_bytes == build("quest").traffic(200, 2).kv_bytes


def test_what_it_cannot_do_is_refused() -> None:
    for window in (0, 33, 2.0):
        with pytest.raises(ConfigError, match=f"retro: window = {window}"):
            build("retro", window=window)
    with pytest.raises(ConfigError, match="exact_page = true"):
        build("retro", exact_page=True, supplement=False)
    with pytest.raises(ConfigError, match="'window'"):
        build("tova", window=2)
    with pytest.raises(UnsupportedCellError, match="writes over"):
        build("speculate", drafter="retro")
    with pytest.raises(UnsupportedCellError, match="floor is 256 tokens, the context 200"):
        build("retro", 256, share=0.15).refuse_context(200)
