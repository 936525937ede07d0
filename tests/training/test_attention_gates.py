"""Distilling attention gates on the miniature: the teacher by hand, and a killed run that ends with the same gates."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longdecode.engine.errors import CheckpointError, UnsupportedCellError
from longdecode.engine.weights import load_decoder
from longdecode.methods.registry import get_method
from longdecode.training import attention_gates, loop

MINIATURE = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"
SIZE = 8


def test_the_teacher_is_a_blocks_largest_weight(rng: torch.Generator) -> None:
    trainer = attention_gates.GateTrainer(load_decoder(MINIATURE, device="cpu", dtype=torch.float32), SIZE, 4, 0)
    q, keys = torch.randn(1, 8, 2, 32, generator=rng), torch.randn(1, 4, 30, 32, generator=rng)
    at, before = torch.tensor([29, 16]), torch.tensor([[True, True, True], [True, True, False]])
    got = trainer.attention(q, keys, at, before)
    for (place, last), head in ((both, h) for both in enumerate(at.tolist()) for h in range(4)):
        logits = q[0, 2 * head : 2 * head + 2, place] @ keys[0, head, : last + 1].T / 32**0.5
        best = logits.softmax(dim=1).amax(dim=0)[: last // SIZE * SIZE].view(-1, SIZE).amax(dim=1)
        torch.testing.assert_close(got[0, head, place, : len(best)], best / best.sum())
    assert not got[0, :, 1, 2].any()


def test_gates_learn_and_a_killed_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = np.random.default_rng(0).integers(32, 127, (4, 120))
    np.savez(tmp_path / "text.npz", **{f"{'train' if n else 'unseen'}/{n}": row for n, row in enumerate(ids)})
    settings: dict[str, Any] = {"steps": 7, "length": 96, "sequences": 1, "block_size": SIZE, "queries": 40}

    def distil(name: str, **more: Any) -> list[dict[str, float]]:
        given = settings | {"rate": 0.02, "device": "cpu"} | more
        attention_gates.run(str(MINIATURE), str(tmp_path / "text.npz"), tmp_path / name, **given)
        return [json.loads(line) for line in (tmp_path / name / "log.jsonl").read_text().splitlines()]

    whole = distil("whole")
    assert whole[-1]["divergence"] < 0.9 * whole[0]["divergence"] and len(whole) == 7
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    rate = attention_gates.warmed_cosine
    with monkeypatch.context() as fault, pytest.raises(ZeroDivisionError):
        fault.setattr(attention_gates, "warmed_cosine", lambda step, *rest: rate(step, *rest) if step < 5 else 1 / 0)
        distil("cut")
    with pytest.raises(CheckpointError, match="other settings"):
        distil("cut", queries=41)
    assert distil("cut") == whole
    config = load_decoder(MINIATURE, device="cpu", dtype=torch.float32).config
    files = [f"{tmp_path}/{name}/gates.safetensors" for name in ("whole", "cut")]
    build = partial(get_method("seerattention_r").from_budget, 16, config)
    straight, resumed = (build(gates=file, block_size=SIZE).gates.layers[3] for file in files)
    assert all(torch.equal(*pair) for pair in zip(straight.parts, resumed.parts, strict=True))
    with pytest.raises(UnsupportedCellError, match="block_size"):
        build(gates=f"{tmp_path}/cut/gates.safetensors", block_size=4)
