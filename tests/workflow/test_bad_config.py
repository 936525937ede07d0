"""A wrong configuration ends at parse time with its own message; a method that fails the gate is named with why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from longdecode.engine.errors import ConfigError
from longdecode.evals.config_values import retyped
from longdecode.evals.plan import Plan, checked

ROOT = Path(__file__).resolve().parents[2]


def message(path: Path, given: dict[str, Any] | None = None) -> str:
    """The text that a workflow ends with, as the Snakefile reads a file and the command line's values."""
    values = yaml.safe_load(path.read_text()) | retyped(given or {})
    with pytest.raises(ConfigError) as caught:
        checked(values, [path], given or {})
    return str(caught.value)


def test_snakemake_ends_with_the_message_alone(snakemake: Any, write_config: Any) -> None:
    """The one real process: values of the command line keep their types, and the error comes without a traceback."""
    path = write_config()
    done = snakemake("-n", "--configfile", str(path), "--config", "budgets=[0.1, 0]")
    assert done.returncode != 0
    assert f"{path.name} with --config budgets: budgets: 0;" in done.stdout.strip().splitlines()[-1]
    assert "Traceback" not in done.stdout and "Error in file" not in done.stdout


def test_no_cores_is_one_line(snakemake: Any, write_config: Any) -> None:
    done = snakemake("--cores", "0", "-n", "--configfile", str(write_config()), "--", "all")
    assert done.returncode != 0 and "Traceback" not in done.stdout
    assert "--cores 0: no job could run" in done.stdout.strip().splitlines()[-1], done.stdout


METHOD, RULE = "METHOD = Mine", "RULE = MineRule"


@pytest.mark.parametrize(
    ("file", "line", "instead", "expected"),
    [
        ("method.py", METHOD, "", "METHOD must be a subclass of AttentionMethod, got None"),
        ("method.py", METHOD, "METHOD = 3", "METHOD must be a subclass of AttentionMethod, got 3"),
        ("method.py", METHOD, "def (:", "cannot be imported: SyntaxError: invalid syntax"),
        ("method.py", METHOD, "import nothing_of_this_name", "cannot be imported: ModuleNotFoundError: No module"),
        ("rule.py", RULE, "", "RULE must be a subclass of Rule, got None"),
        ("rule.py", RULE, "1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
    ],
)
def test_a_method_that_its_folder_does_not_define_is_refused_at_parse_time(
    write_config: Any, own_method: Path, file: str, line: str, instead: str, expected: str
) -> None:
    path = write_config(methods={"full": {}, "mine": {}})
    checked(yaml.safe_load(path.read_text()), [path], [])
    forget(own_method)
    (own_method / file).write_text((own_method / file).read_text().replace(line, instead))
    said = message(path)
    assert f"{path.name}: methods.mine: {own_method / file}: {expected}" in said and "\n" not in said


@pytest.fixture
def own_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of a method of one's own, which LONGDECODE_METHOD_PATH names: StreamingLLM under another name."""
    folder = tmp_path / "own" / "mine"
    folder.mkdir(parents=True)
    code = "from longdecode.methods.streaming.method import Streaming\n\n\nclass Mine(Streaming):\n    name = 'mine'\n"
    (folder / "method.py").write_text(f"{code}\n\n{METHOD}\n")
    rule = "from longdecode.methods.streaming.rule import RULE as Base\n\n\nclass MineRule(Base):\n    pass\n"
    (folder / "rule.py").write_text(f"{rule}\n\n{RULE}\n")
    card = (ROOT / "methods" / "streaming" / "card.yaml").read_text()
    (folder / "card.yaml").write_text(card.replace("name: streaming", "name: mine", 1))
    monkeypatch.setenv("LONGDECODE_METHOD_PATH", str(folder.parent))
    forget(folder)
    yield folder
    forget(folder)


def forget(folder: Path) -> None:
    """Drop the modules of a folder, which are kept once they were imported."""
    for name in [name for name in sys.modules if name.startswith(f"longdecode_methods_extra.{folder.name}.")]:
        del sys.modules[name]


def test_what_is_refused_before_the_first_job_leaves_nothing(snakemake: Any, write_config: Any, tmp_path: Path) -> None:
    path = write_config(methods={"full": {}, "lychee": {"params": {"roles": "roles.txt"}}})
    done = snakemake("--cores", "1", "--configfile", str(path), "--", "results/trial/config.yaml")
    assert done.returncode != 0
    assert "methods.lychee: roles = 'roles.txt'" in done.stdout.strip().splitlines()[-1], done.stdout
    assert not (tmp_path / "results").exists()


def test_cuda_without_a_gpu_limit_is_refused(write_config: Any) -> None:
    run = checked(yaml.safe_load(write_config(device="cuda").read_text()), ["c.yaml"], [])
    Plan(run, ROOT).require_gpu_limit(["gpu", "mem_mb"])
    with pytest.raises(ConfigError, match="--resources gpu=1"):
        Plan(run, ROOT).require_gpu_limit(["mem_mb"])


def test_refusals_are_named(snakemake: Any, write_config: Any, environment: dict[str, str], tmp_path: Path) -> None:
    """A refused variant, with the reason."""
    folder = tmp_path / "mine" / "wrong"
    folder.mkdir(parents=True)
    for file in ("method.py", "card.yaml", "rule.py"):
        text = (ROOT / "methods" / "oracle_topk" / file).read_text("utf-8").replace("oracle_topk", "wrong")
        (folder / file).write_text(text.replace("default: 2", "default: 3"), "utf-8")
    environment["LONGDECODE_METHOD_PATH"] = str(folder.parent)
    environment["PYTHONPATH"] = str(ROOT / "src")
    config = write_config(methods={"full": {}, "wrong": {}})
    said = snakemake("results/trial/gate/wrong.json", "--configfile", config, "--cores", 1, check=True).stdout
    reason = "wrong on random (failed_gate), no cells: wrong with defaults: card_names_the_parameters"
    assert reason in said and reason in (tmp_path / "results/trial/logs/gate.log").read_text("utf-8")
