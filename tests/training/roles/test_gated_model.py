"""Teacher and student against the engine and against an independent float64 reference."""

from __future__ import annotations

import pytest
import torch

from longdecode.training.roles.gated_model import GatedModel
from longdecode.training.roles.token_sets import SparseBranch, causal_mask, chosen_sets, streaming_mask
from student_reference import student_reference

SMALL = {"ratio": 0.35, "sink": 2, "recent": 3}


@pytest.mark.parametrize("name", ["llama2", "llama3", "qwen2", "qwen3"])
def test_teacher_equals_the_engine(name: str, rows) -> None:
    made = rows(name)
    model = GatedModel(made.decoder, SparseBranch(**SMALL))
    logits = made.decoder.logits(model.hidden(made.targets, made.cache, made.start))
    for last in (made.start + 1, made.tokens.shape[1]):
        expected, _ = made.decoder.prefill(list(made.tokens[:, :last]), made.decoder.new_cache(2, last), 64)
        torch.testing.assert_close(logits[:, last - made.start - 1], expected, atol=2e-4, rtol=2e-4)


BRANCHES = {
    "chain": SparseBranch(**SMALL),
    "previous_layer": SparseBranch(inherit="previous_layer", **SMALL),
    "code": SparseBranch(inherit="previous_layer", selection="code", **SMALL),
    "streaming": SparseBranch(branch="streaming", **SMALL),
}


@pytest.mark.parametrize("branch", BRANCHES.values(), ids=BRANCHES)
@pytest.mark.parametrize("name", ["llama3", "qwen3"])
def test_student_equals_the_reference(name: str, branch: SparseBranch, rows, seed: int) -> None:
    made = rows(name)
    config, generator = made.decoder.config, torch.Generator().manual_seed(seed + 1)
    gates = torch.rand(2, config.num_layers, config.num_kv_heads, generator=generator)
    gates[gates < 0.3] = 0.0
    gates[gates > 0.8] = 1.0
    gates[:, -1] = 0.0
    closed = [False] * (config.num_layers - 1) + [True]  # its full attention is left out
    found = GatedModel(made.decoder, branch).hidden(made.targets, made.cache, made.start, gates, closed)
    for row in range(2):
        expected = student_reference(made.decoder, made.tokens[row], made.start, gates[row], branch)
        torch.testing.assert_close(found[row].double(), expected, atol=5e-4, rtol=5e-4)


@pytest.mark.parametrize("branch", BRANCHES.values(), ids=BRANCHES)
def test_open_gates_are_the_teacher_and_closed_ones_are_not(branch: SparseBranch, rows) -> None:
    made = rows("llama3", total=61, start=51)
    model = GatedModel(made.decoder, branch)
    shape = (2, made.decoder.config.num_layers, made.decoder.config.num_kv_heads)
    teacher = model.hidden(made.targets, made.cache, made.start)
    torch.testing.assert_close(model.hidden(made.targets, made.cache, made.start, torch.ones(shape)), teacher)
    assert (model.hidden(made.targets, made.cache, made.start, torch.zeros(shape)) - teacher).abs().max() > 0.05


def test_gradients_equal_finite_differences_and_no_weight_has_one(rows, seed: int) -> None:
    made = rows("llama3")
    config, generator = made.decoder.config, torch.Generator().manual_seed(seed + 2)
    # Away from 0.5, where the chain's sets jump.
    start = torch.rand(2, config.num_layers, config.num_kv_heads, generator=generator)
    start = torch.where(start < 0.5, 0.1 + 0.6 * start, 0.3 + 0.6 * start)
    weight = torch.randn(2, made.targets.shape[1], config.hidden_size, generator=generator)
    gates = start.clone().requires_grad_()
    model = GatedModel(made.decoder, SparseBranch(**SMALL))
    (model.hidden(made.targets, made.cache, made.start, gates) * weight).sum().backward()
    assert (gates.grad[:, 0] == 0).all()  # layer 0 has nothing to inherit
    assert made.decoder.weights.embedding.grad is None and made.decoder.weights.layers[0].qkv.grad is None

    def value(found: torch.Tensor, row: int) -> float:
        hidden = student_reference(made.decoder, made.tokens[row], made.start, found, SparseBranch(**SMALL))
        return float((hidden * weight[row].double()).sum())

    step = 1e-4
    for layer in range(1, config.num_layers):
        for head in range(config.num_kv_heads):
            up, down = start[1].double().clone(), start[1].double().clone()
            up[layer, head] += step
            down[layer, head] -= step
            expected = (value(up, 1) - value(down, 1)) / (2 * step)
            assert gates.grad[1, layer, head].item() == pytest.approx(expected, abs=2e-3, rel=2e-3)


def test_sets_keep_to_size_window_and_causality(seed: int) -> None:
    start, tokens = 37, 9
    branch = SparseBranch(ratio=0.4, sink=3, recent=5)
    causal = causal_mask(start, tokens, torch.device("cpu"))
    logits = torch.randn(2, 3, 1, tokens, start + tokens, generator=torch.Generator().manual_seed(seed))
    sets = chosen_sets(logits, branch, causal)
    assert sets.shape == (2, 3, 1, tokens, start + tokens)
    assert (sets.sum(-1) == branch.size(start + tokens)).all() and not (sets & ~causal).any()
    window = streaming_mask(start, tokens, branch, torch.device("cpu"))
    assert sets[..., window].all() and (window.sum(-1) == 8).all()
    # A later target's logits change nothing for an earlier one; in the released order they use up slots.
    changed = logits.clone()
    changed[..., start + 1 :] += 100.0
    assert torch.equal(chosen_sets(changed, branch, causal)[..., 0, :], sets[..., 0, :])
    code = SparseBranch(ratio=0.4, sink=3, recent=1, selection="code")
    assert (chosen_sets(changed, code, causal)[..., 0, :].sum(-1) < code.size(start + tokens)).all()
