"""Forks of a tiny checkpoint: learning, resuming, and the merged model in the engine."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from longdecode.engine.errors import CheckpointError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.weights import load_decoder
from longdecode.evals.training_spec import ForkTraining
from longdecode.methods.nosa.method import Nosa
from longdecode.methods.registry import get_method
from longdecode.training import loop
from longdecode.training.forks import train as training
from longdecode.training.forks.documents import Document, Maker, makers
from longdecode.training.forks.shipping import attach, ship
from longdecode.training.forks.train import Trainer, train_fork
from longdecode.training.miniature.checkpoint import save_checkpoint
from longdecode.training.miniature.model import Miniature, MiniatureShape


@pytest.fixture(scope="module", autouse=True)
def _peft() -> None:
    """Import peft, which takes seconds, in the worker that needs it and not when tests are collected."""
    pytest.importorskip("peft", reason="peft trains the factors")


CPU = torch.device("cpu")
SHAPE = MiniatureShape(
    hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16
)
RUN = ForkTraining(
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


@pytest.mark.gpu
@pytest.mark.parametrize("attention", ["full", "infllm2", "dma", "nosa"])
def test_a_captured_step_learns_what_an_eager_one_learns(
    base: Path, sources: tuple[Maker, Maker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attention: str
) -> None:
    run, curves = replace(RUN, attention=attention, steps=12, log_every=4), []
    for eager in (2, 100):
        monkeypatch.setattr(training, "_EAGER_STEPS", eager)
        trainer = Trainer(run, base, torch.device("cuda"))
        trainer.fit(*sources, tmp_path / f"{eager}.pt")
        curves.append(torch.tensor(trainer.curve)[:, 1:4])
    torch.testing.assert_close(*curves, atol=0.02, rtol=0.01)
    assert (curves[0][0] - curves[0][-1]).abs().max() > 0.05, "nothing was learned"


@pytest.mark.parametrize(
    ("device", "attention"),
    [("cpu", "nosa"), *(pytest.param("cuda", a, marks=pytest.mark.gpu) for a in ("nosa", "infllm2", "dma", "full"))],
)
def test_killed_and_resumed_ends_with_the_same_numbers(
    base: Path, sources: tuple[Maker, Maker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str,
    attention: str,
) -> None:  # fmt: skip
    """To the last bit; on a GPU it goes on with three eager steps and captures the next anew."""
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    place, run = torch.device(device), replace(RUN, attention=attention, steps=6 if device == "cpu" else 12)
    train_fork(run, base, place, tmp_path / "whole", sources)
    made = 0

    def killed(rng: random.Random, length: int, lookups: float, number: int) -> Document:
        nonlocal made
        made += 1
        if made > 10:
            raise KeyboardInterrupt
        return sources[0](rng, length, lookups, number)

    with pytest.raises(KeyboardInterrupt):
        train_fork(run, base, place, tmp_path / "killed", (killed, sources[1]))
    assert (tmp_path / "killed" / "state.pt").exists() and not (tmp_path / "killed" / "model").exists()
    with pytest.raises(CheckpointError, match="other settings"):
        train_fork(replace(run, rank=2), base, place, tmp_path / "killed", sources)
    train_fork(run, base, place, tmp_path / "killed", sources)
    files = ["adaptor/adapter_model.safetensors", "model/model.safetensors"]
    files += ["adaptor/importance.safetensors"] if attention in ("nosa", "dma") else []
    for file in files:
        one, other = (load_file(tmp_path / name / file) for name in ("whole", "killed"))
        assert one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
    curves = [list(csv.DictReader((tmp_path / name / "curve.csv").open())) for name in ("whole", "killed")]
    for one, other in zip(*curves, strict=True):
        assert {**one, "seconds": ""} == {**other, "seconds": ""}


@pytest.mark.parametrize("attention", ["nosa", "dma", "infllm2", "full"])
def test_a_fork_learns_and_runs_in_the_engine_as_it_was_trained(
    base: Path, sources: tuple[Maker, Maker], tmp_path: Path, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importance heads move by the losses; the merged checkpoint, prefilled by the method, gives its losses."""
    monkeypatch.setattr("longdecode.training.forks.fork._STRETCH", 100)
    monkeypatch.setattr("longdecode.training.forks.fork._KEPT_TOKENS", 0)
    run = replace(RUN, name=attention, attention=attention, head="s_dma" if attention == "dma" else "ed_dma")
    run = replace(run, distil=0.5, received=0.1, targets="attention") if attention == "nosa" else run
    trainer = Trainer(run, base, CPU)
    fresh = None if trainer.fork.heads is None else [p.detach().clone() for p in trainer.fork.heads.parameters()]
    train_fork(run, base, CPU, tmp_path, sources)
    if fresh is not None:
        heads = load_file(tmp_path / "model" / "importance.safetensors")
        assert all((a - heads[name]).abs().max() > 1e-4 for a, name in zip(fresh, ("delta", "scale"), strict=True))
    curve = list(csv.DictReader((tmp_path / "curve.csv").open()))
    assert [int(row["step"]) for row in curve] == [2, 4, 6] and float(curve[-1]["loss"]) < float(curve[0]["loss"])
    if attention == "nosa":
        assert float(curve[-1]["gamma"]) >= 0.7

    ids, _ = sources[1](random.Random(3), 200, 0.0, 0)
    trainer = Trainer(run, base, CPU)
    factors, heads_file = load_file(tmp_path / "adaptor" / "adapter_model.safetensors"), tmp_path / "adaptor"
    from peft import set_peft_model_state_dict

    set_peft_model_state_dict(trainer.model, {name: x.float() for name, x in factors.items()})
    if trainer.fork.heads is not None:
        trainer.fork.heads.load_state_dict(load_file(heads_file / "importance.safetensors"))
    with torch.no_grad():
        _, (losses,) = trainer.loss(torch.from_numpy(ids)[None], torch.ones(1, len(ids)))
    decoder = load_decoder(tmp_path / "model", device="cpu", dtype=torch.float32)
    method = get_method(attention).from_budget(None if attention == "full" else run.budget, decoder.config)
    prompt, forced = tuple(ids[:150].tolist()), tuple(ids[150:].tolist())
    (done,) = Generator(decoder).run([Request(prompt, 0, forced)], method)
    # The merged weights are bfloat16.
    torch.testing.assert_close(-torch.tensor(done.forced_logprobs), losses[149:], atol=0.05, rtol=0.02)
    assert F.cosine_similarity(-torch.tensor(done.forced_logprobs), losses[149:], dim=0) > 0.9999

    if attention == "infllm2":
        with pytest.raises(CheckpointError, match=r"no importance.safetensors"):
            ship(tmp_path, tmp_path / "shipped")
    if attention == "nosa":
        ship(tmp_path, tmp_path / "shipped")
        attach(tmp_path / "shipped", base, tmp_path / "laid")
        laid = load_decoder(tmp_path / "laid", device="cpu", dtype=torch.float32)
        heads = Nosa.from_budget(run.budget, laid.config).heads
        trained = load_file(heads_file / "importance.safetensors")
        assert all(torch.equal(getattr(heads, name), x) for name, x in trained.items())
        save_checkpoint(Miniature(replace(SHAPE, num_hidden_layers=3), compiled=False), tmp_path / "deeper")
        with pytest.raises(CheckpointError, match="this model needs"):
            attach(tmp_path / "shipped", tmp_path / "deeper", tmp_path / "not laid")
