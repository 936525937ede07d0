"""A job of the gate says what it refuses, on the console and in its log, and does not stop the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from longdecode.methods.registry import METHOD_PATH_VARIABLE

METHODS = Path(__file__).resolve().parents[2] / "methods"


def test_a_refused_variant_is_named_with_the_reason(
    snakemake: Any, write_config: Any, environment: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "mine" / "wrong"
    folder.mkdir(parents=True)
    for file in ("method.py", "card.yaml", "rule.py"):
        text = (METHODS / "oracle_topk" / file).read_text("utf-8").replace("oracle_topk", "wrong")
        (folder / file).write_text(text.replace("default: 2", "default: 3"), "utf-8")
    environment[METHOD_PATH_VARIABLE] = str(folder.parent)
    environment["PYTHONPATH"] = str(METHODS.parent / "src")
    config = write_config(methods={"full": {}, "wrong": {}})
    said = snakemake("results/trial/gate/wrong.json", "--configfile", config, "--cores", 1, check=True).stdout
    reason = "wrong on random (failed_gate), no cells: wrong with defaults: card_names_the_parameters"
    assert reason in said
    assert reason in (tmp_path / "results/trial/logs/gate.log").read_text("utf-8")
