"""Distilling attention gates on the miniature: the teacher by hand, a killed run, and whose gates they are."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longdecode.engine.errors import CheckpointError, ConfigError, UnsupportedCellError
from longdecode.engine.weights import load_decoder
from longdecode.evals import sweep
from longdecode.evals.run_config import RunConfig, build_run_config
from longdecode.learned import require_own
from longdecode.methods.registry import get_method
from longdecode.training import attention_gates, loop
from small_run import run_values

MINIATURE = Path(__file__).resolve().parents[2] / "models" / "miniature" / "weights"
ROLES = MINIATURE.parent / "roles" / "hardkuma.json"
SIZE = 8


def distil(folder: Path, **more: Any) -> list[dict[str, float]]:
    """Distil gates of the miniature into a folder, and return the log."""
    ids = np.random.default_rng(0).integers(32, 127, (4, 120))
    text = folder.with_name("text.npz")
    np.savez(text, **{f"{'train' if n else 'unseen'}/{n}": row for n, row in enumerate(ids)})
    given: dict[str, Any] = {"steps": 7, "length": 96, "sequences": 1, "block_size": SIZE, "queries": 40, "rate": 0.02}
    attention_gates.run(str(MINIATURE), str(text), folder, device="cpu", **given | more)
    return [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]


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
    whole = distil(tmp_path / "whole")
    assert whole[-1]["divergence"] < 0.9 * whole[0]["divergence"] and len(whole) == 7
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    rate = attention_gates.warmed_cosine
    with monkeypatch.context() as fault, pytest.raises(ZeroDivisionError):
        fault.setattr(attention_gates, "warmed_cosine", lambda step, *rest: rate(step, *rest) if step < 5 else 1 / 0)
        distil(tmp_path / "cut")
    with pytest.raises(CheckpointError, match="other settings"):
        distil(tmp_path / "cut", queries=41)
    assert distil(tmp_path / "cut") == whole
    config = load_decoder(MINIATURE, device="cpu", dtype=torch.float32).config
    files = [f"{tmp_path}/{name}/gates.safetensors" for name in ("whole", "cut")]
    build = partial(get_method("seerattention_r").from_budget, 16, config)
    straight, resumed = (build(gates=file, block_size=SIZE).gates.layers[3] for file in files)
    assert all(torch.equal(*pair) for pair in zip(straight.parts, resumed.parts, strict=True))
    with pytest.raises(UnsupportedCellError, match="block_size"):
        build(gates=f"{tmp_path}/cut/gates.safetensors", block_size=4)


def test_other_checkpoints_are_refused(byte_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gates and roles of another checkpoint, by its hash."""
    distil(tmp_path / "gates", steps=1)
    gates = {"gates": f"{tmp_path}/gates/gates.safetensors", "block_size": SIZE}

    def run(model: Path, method: str, params: dict[str, Any]) -> RunConfig:
        methods = {"full": {}, method: {"params": params}}
        return build_run_config(run_values(models={"m": {"path": str(model)}}, methods=methods), "c")

    for named in (("seerattention_r", gates), ("lychee", {"roles": str(ROLES)})):
        require_own(run(MINIATURE, *named))
        with pytest.raises(ConfigError, match=rf"c: methods\.{named[0]}: .* another checkpoint than m: .*miniature"):
            require_own(run(byte_checkpoint, *named))
    require_own(run(byte_checkpoint, *named), [str(ROLES)])
    (tmp_path / "number.json").write_text("3")
    with pytest.raises(ConfigError, match=r"number\.json: no JSON object"):
        require_own(run(MINIATURE, "lychee", {"roles": f"{tmp_path}/number.json"}))
    monkeypatch.setattr(sweep, "try_to_load_from_cache", lambda *_: str(byte_checkpoint / "config.json"))
    with pytest.raises(ConfigError, match="another checkpoint than m"):
        require_own(run(Path("org/name"), *named))
