"""Forks of a tiny checkpoint: attention and its gradient, learning, resuming, and the merged model in the engine."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from longdecode.adaptation import train as training
from longdecode.adaptation.attention import flex_sparse_attention, sparse_attention
from longdecode.adaptation.documents import Document, Maker, makers
from longdecode.adaptation.train import Trainer, train_fork
from longdecode.engine.errors import CheckpointError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.weights import load_decoder
from longdecode.evals.adaptation_spec import AdaptationRun
from longdecode.methods.registry import get_method
from longdecode.miniature.checkpoint import save_checkpoint
from longdecode.miniature.model import Miniature, MiniatureShape

pytest.importorskip("peft", reason="peft trains the factors")

CPU = torch.device("cpu")
SHAPE = MiniatureShape(
    hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16
)
RUN = AdaptationRun(
    "nosa", "tiny", "nosa", data="miniature", budget=64, length=256, rows=2, steps=6, lr=4e-3, rank=4, warmup=2,
    log_every=2, held_out=1,
)  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(5)
    folder = tmp_path_factory.mktemp("base")
    save_checkpoint(Miniature(SHAPE, compiled=False), folder)
    return folder


@pytest.fixture
def sources(base: Path, tmp_path: Path) -> tuple[Maker, Maker]:
    return makers(RUN, base, {}, tmp_path)


def given(rng: torch.Generator, tokens: int, dim: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    q = torch.randn(1, 6, tokens, dim, generator=rng)
    k, v = (torch.randn(1, 2, tokens, dim, generator=rng) for _ in range(2))
    bias = torch.randn(1, 2, tokens, generator=rng)
    read = torch.rand(1, 2, tokens, tokens // 16, generator=rng) < 0.2
    own = torch.arange(tokens) // 16
    read[:, :, torch.arange(tokens), own] = True
    return q, k, v, bias, read


def test_attention_and_its_gradient(rng: torch.Generator) -> None:
    """Row by row in float64 over the listed tokens alone; the bias gets its gradient."""
    q, k, v, bias, read = given(rng, 64, 8)
    leaves = [x.double().requires_grad_() for x in (q, k, v, bias)]
    rows = []
    for head in range(6):
        for t in range(64):
            seen = [i for i in range(t + 1) if read[0, head // 3, t, i // 16]]
            logits = leaves[1][0, head // 3, seen] @ leaves[0][0, head, t] * 0.3 + leaves[3][0, head // 3, seen]
            rows.append(logits.softmax(0) @ leaves[2][0, head // 3, seen])
    want = torch.stack(rows).view(1, 6, 64, 8)
    mine = [x.clone().requires_grad_() for x in (q, k, v, bias)]
    got = sparse_attention(*mine[:3], read, 16, mine[3], 0.3)
    torch.testing.assert_close(got, want.float(), atol=1e-5, rtol=1e-5)
    probe = torch.randn(want.shape, generator=rng)
    (got * probe).sum().backward()
    (want * probe).sum().backward()
    for leaf, double in zip(mine, leaves, strict=True):
        torch.testing.assert_close(leaf.grad, double.grad.float(), atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_the_same(rng: torch.Generator) -> None:
    """The tiles that it skips, the mask within tiles and the bias in channels of its own; forward alone on a CPU."""
    q, k, v, bias, read = given(rng, 384, 16)
    read[:, :, 256:, 8:12] = False  # so that a tile of keys is skipped whole
    want = sparse_attention(q, k, v, read, 16, bias, 0.25)
    torch.testing.assert_close(flex_sparse_attention(q, k, v, read, 16, bias, 0.25), want, atol=2e-5, rtol=1e-5)
    plain = sparse_attention(q, k, v, read, 16, None, 0.25)
    torch.testing.assert_close(flex_sparse_attention(q, k, v, read, 16, None, 0.25), plain, atol=2e-5, rtol=1e-5)


def test_killed_and_resumed_ends_with_the_same_numbers(
    base: Path, sources: tuple[Maker, Maker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_SAVE_SECONDS", 0.0)
    train_fork(RUN, base, CPU, tmp_path / "whole", sources)
    made = 0

    def killed(rng: random.Random, length: int, lookups: float) -> Document:
        nonlocal made
        made += 1
        if made > 10:
            raise KeyboardInterrupt
        return sources[0](rng, length, lookups)

    with pytest.raises(KeyboardInterrupt):
        train_fork(RUN, base, CPU, tmp_path / "killed", (killed, sources[1]))
    assert (tmp_path / "killed" / "state.pt").exists() and not (tmp_path / "killed" / "model").exists()
    with pytest.raises(CheckpointError, match="other settings"):
        train_fork(replace(RUN, rank=2), base, CPU, tmp_path / "killed", sources)
    train_fork(RUN, base, CPU, tmp_path / "killed", sources)
    files = ("adaptor/adapter_model.safetensors", "adaptor/importance.safetensors", "model/model.safetensors")
    for file in files:
        one, other = (load_file(tmp_path / name / file) for name in ("whole", "killed"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    curves = [list(csv.DictReader((tmp_path / name / "curve.csv").open())) for name in ("whole", "killed")]
    for one, other in zip(*curves, strict=True):
        assert {**one, "seconds": ""} == {**other, "seconds": ""}


@pytest.mark.parametrize("attention", ["nosa", "dma", "infllm2", "full"])
def test_a_fork_learns_and_runs_in_the_engine_as_it_was_trained(
    base: Path, sources: tuple[Maker, Maker], tmp_path: Path, attention: str
) -> None:
    """Importance heads move by the loss alone; the merged checkpoint, prefilled by the method, gives its losses."""
    run = replace(RUN, name=attention, attention=attention, head="s_dma" if attention == "dma" else "ed_dma")
    trainer = Trainer(run, base, CPU)
    fresh = None if trainer.fork.heads is None else [p.detach().clone() for p in trainer.fork.heads.parameters()]
    train_fork(run, base, CPU, tmp_path, sources)
    if fresh is not None:
        heads = load_file(tmp_path / "model" / "importance.safetensors")
        assert all((a - heads[name]).abs().max() > 1e-4 for a, name in zip(fresh, ("delta", "scale"), strict=True))
    curve = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert [int(row["step"]) for row in curve] == [2, 4, 6]
    assert float(curve[-1]["loss"]) < float(curve[0]["loss"])
    if attention == "nosa":
        assert float(curve[-1]["gamma"]) >= 0.7

    ids, _ = sources[1](random.Random(3), 200, 0.0)
    trainer = Trainer(run, base, CPU)
    factors, heads_file = load_file(tmp_path / "adaptor" / "adapter_model.safetensors"), tmp_path / "adaptor"
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(trainer.model, {name: x.float() for name, x in factors.items()})
    if trainer.fork.heads is not None:
        trainer.fork.heads.load_state_dict(load_file(heads_file / "importance.safetensors"))
    with torch.no_grad():
        _, losses, _ = trainer.loss((ids, np.ones(len(ids), dtype=np.float32)))
    decoder = load_decoder(tmp_path / "model", device="cpu", dtype=torch.float32)
    method = get_method(attention).from_budget(None if attention == "full" else run.budget, decoder.config)
    prompt, forced = tuple(ids[:150].tolist()), tuple(ids[150:].tolist())
    (done,) = Generator(decoder).run([Request(prompt, 0, forced)], method)
    # The merged weights are bfloat16.
    torch.testing.assert_close(-torch.tensor(done.forced_logprobs), losses[149:], atol=0.05, rtol=0.02)
    assert F.cosine_similarity(-torch.tensor(done.forced_logprobs), losses[149:], dim=0) > 0.9999
