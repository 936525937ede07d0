"""Training end to end on a tiny model: artefacts, determinism, the heads that matter, role maps drawn and compared."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from longdecode.engine.errors import ConfigError, ContextLimitError
from longdecode.engine.weights import load_decoder
from longdecode.evals.training_spec import RoleTraining
from longdecode.methods.head_roles import read_role_file, resolve_roles
from longdecode.training.roles import train
from longdecode.training.roles.artefacts import CURVE_COLUMNS, GATE_COLUMNS
from longdecode.training.roles.data.miniature import MiniPasskey
from longdecode.training.roles.roles import projected
from longdecode.training.roles.trainer import Trainer

CPU = torch.device("cpu")
RUN = RoleTraining(
    "r", "tiny", 4, (128, 160), steps=6, batch=2, context_count=2, questions=2, ratio=0.1, sink=2, recent=4, lr=0.1,
)  # fmt: skip
HOTPOT = {
    "question": "Which town?",
    "answer": "Aldwick, surely",
    "supporting_facts": [["A", 0], ["B", 0]],
    "context": [["A", ["One fact."]], ["C", ["No fact."]], ["B", ["Another fact."]]],
}
CODE = {"objective": "code", "inherit": "previous_layer", "selection": "code"}
KINDS = {
    "hardkuma": RUN, "code": replace(RUN, **CODE),
    "hard_concrete": replace(RUN, kind="hard_concrete", data="mini_two_hop"), "direct": replace(RUN, kind="direct"),
    "passkey": replace(RUN, data="passkey", batch=1, passkey_words=3, contexts=(400, 450)),
    "hotpotqa": replace(RUN, data="hotpotqa", batch=1, contexts=(300, 350)),
    "duo": replace(RUN, kind="direct", objective="l1", sparse="streaming"),
}  # fmt: skip


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
def test_a_run_writes_its_artefacts(run: RoleTraining, byte_model: Path, tmp_path: Path) -> None:
    (tmp_path / "hotpot.json").write_text(json.dumps([HOTPOT] * 8), encoding="utf-8")
    train.train_roles(run, byte_model, CPU, tmp_path / "out", data={"hotpotqa": tmp_path / "hotpot.json"})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"roles.json", "curve.csv", "gates.csv", "run.json"}
    roles = read_role_file(tmp_path / "out" / "roles.json")
    assert (roles.model, roles.layers, roles.kv_heads, roles.kind) == ("tiny", 3, 2, run.role_kind)
    assert sum(map(sum, roles.roles)) == 4
    if run.sparse == "inherited":
        assert roles.roles[0] == [1, 1] and roles.scores[0] == [1.0, 1.0]
    config = load_decoder(byte_model, device=CPU, dtype=torch.float32).config
    source = str(tmp_path / "out" / "roles.json")
    resolved = resolve_roles(source, 4, 0, config, layer0=run.sparse == "inherited")
    assert [list(map(int, row)) for row in resolved] == roles.roles
    with (tmp_path / "out" / "curve.csv").open() as stream:
        curve = list(csv.DictReader(stream))
    assert tuple(curve[0]) == CURVE_COLUMNS and {row["step"] for row in curve} >= {"0", "1", "5"}
    assert all(float(row["distill"]) >= 0 and 0 <= float(row["density"]) <= 1 for row in curve)
    with (tmp_path / "out" / "gates.csv").open() as stream:
        gates = list(csv.DictReader(stream))
    assert tuple(gates[0]) == GATE_COLUMNS and len(gates) == 6 * 3 * 2
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    assert about["heads"]["stored"] == 4 and about["settings"]["steps"] == 6 and about["seed"] == 0
    assert [text.split(",")[0] for text in about["read"]] == ["6 questions"] * (run.data == "hotpotqa")


def scores(run: RoleTraining, folder: Path) -> torch.Tensor:
    trainer = Trainer(run, load_decoder(folder, device=CPU, dtype=torch.float32), MiniPasskey(run.questions))
    trainer.fit()
    return trainer.gates.score()


def test_a_seed_decides_everything(byte_model: Path) -> None:
    first = scores(RUN, byte_model)
    assert torch.equal(first, scores(RUN, byte_model))
    assert not torch.equal(first, scores(replace(RUN, seed=1), byte_model))
    assert (first[0] == 0.5).all() and (first[1:] != 0.5).all()


def test_training_finds_the_heads_that_matter(byte_model: Path) -> None:
    """Output projections of all but two learnable heads are silenced: those two must be the roles found."""
    decoder = load_decoder(byte_model, device=CPU, dtype=torch.float32)
    planted = {(1, 1), (2, 0)}
    for layer, weights in enumerate(decoder.weights.layers):
        for head in range(2):
            if layer and (layer, head) not in planted:
                weights.o[:, 16 * head : 16 * (head + 1)] = 0.0
    for kind in ("hardkuma", "hard_concrete", "direct"):
        trainer = Trainer(replace(RUN, kind=kind, steps=40, lr=0.2), decoder, MiniPasskey(2))
        trainer.fit()
        found = projected(trainer.gates.score().tolist(), 4, 1)
        assert {(layer, head) for layer in (1, 2) for head in (0, 1) if found[layer][head]} == planted, kind


def test_roles_are_projected() -> None:
    table = [[0.1, 0.2], [0.9, 0.5], [0.5, 0.7]]
    assert projected(table, 4, 1) == ((True, True), (True, False), (False, True))
    assert projected(table, 5, 1) == ((True, True), (True, True), (False, True))  # a tie goes to the lower layer
    assert projected(table, 2, 0) == ((False, False), (True, False), (False, True))


def test_runs_that_do_not_fit_the_model_are_refused(byte_model: Path) -> None:
    decoder = load_decoder(byte_model, device=CPU, dtype=torch.float32)
    for run, error, message in (
        (replace(RUN, target_heads=2), ConfigError, "more than 2 and fewer than 6"),
        (replace(RUN, target_heads=6), ConfigError, "3 layers of 2 KV heads"),
        (replace(RUN, contexts=(128, 4096)), ContextLimitError, "limit is 1024"),
    ):
        with pytest.raises(error, match=message):
            Trainer(run, decoder, MiniPasskey(2))


def test_the_command_trains_named_runs(byte_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        f"profile: t\ndevice: cpu\nmodels: {{tiny: {{path: {byte_model}}}}}\n"
        "methods: {full: {}}\nbudgets: [0.5]\nsuites: {mini_recall: {contexts: [256], samples: 1}}\n"
        "training: {a: {recipe: hardkuma, model: tiny, heads: 4, contexts: [384], steps: 2, ratio: 0.1, "
        "window: [2, 4], seeds: [0, 1]}}\n",
        encoding="utf-8",
    )
    out = tmp_path / "roles"
    train.run(config, "a1", out)
    assert (out / "a1" / "roles.json").is_file() and not (out / "a0").exists()
    shown = capsys.readouterr()
    assert "a1 2/2" in shown.err and str(out / "a1" / "roles.json") in shown.out
    # Where a run's steps do not fit the time, it has fewer; too few are refused.
    with pytest.raises(ConfigError, match="1e-05 minutes leave time for 0 steps"):
        train.run(config, "a1", out, minutes=1e-5)
    with pytest.raises(ConfigError, match="unknown identification run 'a2'; nearest valid name: 'a1'"):
        train.run(config, "a2", out)
