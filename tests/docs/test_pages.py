"""The worked examples of docs/ pass as printed: a method, a suite, a notebook; files and commands of pages exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from snakemake.cli import parse_args

from longdecode.analysis.speed import parser
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.evals import gate
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.fingerprint import quality_code_hash
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import read_records
from longdecode.evals.tasks.registry import describe, get_task, suite_tasks
from longdecode.evals.throughput.spec import OPS
from longdecode.methods.conformance import check_method
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import METHOD_PATH_VARIABLE, get_method, load_card, method_names
from longdecode.new_method import write_method
from small_run import run_values

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "adding-a-method.md"
NOTEBOOK = ROOT / "docs" / "notebooks" / "three-methods.ipynb"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's example, written to a folder that the registry searches; returns the method's name."""
    write_method("recent_only", tmp_path)
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(tmp_path))
    return "recent_only"


def test_the_example_passes_the_conformance_suite(installed: str) -> None:
    assert installed in method_names() and load_card(installed).title == "Recent tokens only"
    check_method(installed, "cpu")
    check_method(installed, "cpu", {"dense_layers": 2})


def test_the_example_passes_lint(installed: str, tmp_path: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--config", str(ROOT / "pyproject.toml"), "--no-cache", str(tmp_path)]
    subprocess.run([*ruff, "check", *rules], check=True)
    subprocess.run([*ruff, "format", "--check", *rules], check=True)


def test_the_example_refuses_what_it_cannot_do(installed: str) -> None:
    with pytest.raises(UnsupportedCellError, match="keeps 7 layers dense"):
        get_method(installed).from_budget(8, CONFIG, dense_layers=7)


@pytest.mark.parametrize("page", ["adding-a-method.md", "measuring-speed.md"])
def test_the_files_that_a_page_names_exist(page: str) -> None:
    text = PAGE.with_name(page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:engine|methods|tests|kernels|evals|reporting|config)/[\w./]+)`", text)
    paths = [name for name in named if "recent_only" not in name]
    assert paths and all((ROOT / name).exists() for name in paths), paths


def test_the_page_on_speed_names_every_op_and_command_lines_that_are_understood() -> None:
    text = PAGE.with_name("measuring-speed.md").read_text(encoding="utf-8")
    assert all(f"`{op}`" in text for op in OPS)
    lines = re.findall(r"longdecode\.analysis\.speed (.*)", text)
    assert len(lines) == 2
    for line in lines:
        assert (ROOT / parser().parse_args(line.split()).config).is_file()


def test_snakemake_understands_its_printed_commands() -> None:
    """A target after ``--resources``, say, is taken for a resource."""
    files = [*(ROOT / "docs").glob("*.md"), *(ROOT / "config").rglob("*.yaml")]
    lines = [line for f in files for line in re.findall(r"^#? *snakemake (.+?)(?: {2,}.*)?$", f.read_text(), re.M)]
    for line in lines:
        parse_args(shlex.split(line, comments=True))
    assert len(lines) > 20


def test_the_page_s_suite_is_found_and_scored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "adding-a-suite.md").read_text(encoding="utf-8")
    folder = tmp_path / "suites" / "copy_back"
    folder.mkdir(parents=True)
    for language, name in (("python", "suite.py"), ("yaml", "description.yaml")):
        (text,) = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
        (folder / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("LONGDECODE_SUITE_PATH", str(folder.parent))
    monkeypatch.setattr(gate, "check_method", lambda *given: None)
    assert suite_tasks("copy_back") == ("copy_back_heron", "copy_back_quartz")
    assert describe("copy_back")["tasks"]["copy_back_heron"] == "The word is heron."
    models = {"mini": {"path": str(ROOT / "models" / "miniature" / "weights")}}
    suites = {"copy_back": {"contexts": [128], "samples": 1}}
    output = tmp_path / "records" / "mini" / "full" / "copy_back.parquet"
    run = build_run_config(run_values(device="cpu", models=models, suites=suites), "c")
    evaluate_suite(run, "mini", "copy_back", {"full": output})
    found = [(r.task, r.status) for r in read_records(output, Record)]
    assert found == [("copy_back_heron", "ok"), ("copy_back_quartz", "ok")]
    module = type(get_task("copy_back_heron")).__module__
    before = quality_code_hash("full", module)
    (folder / "suite.py").write_text((folder / "suite.py").read_text() + "\nEDITED = 1\n", encoding="utf-8")
    assert quality_code_hash("full", module) != before


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("mine", "SUITE = 3", "SUITE must be a Suite, got 3; it needs tasks by name"),
        ("mine", "def (", "suite.py: cannot be imported: SyntaxError: invalid syntax"),
        ("passkey", "", "suite 'passkey' is defined twice"),
        ("mine", "from longdecode.evals.tasks.needles import SUITES; SUITE = SUITES['passkey']", "is in two suites"),
    ],
)
def test_a_misfit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, says: str) -> None:
    """A suite that is none, or that is there already."""
    (tmp_path / name).mkdir()
    (tmp_path / name / "suite.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("LONGDECODE_SUITE_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=says):
        get_task("passkey_depth_0")


def test_the_notebook_runs_and_orders_the_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs"
    rows = ["full", "quest", "oracle_topk", "streaming"]
    check = f"print(*table_of_methods.set_index('method')['right of 4'].loc[{rows}])"
    notebook.cells.append(nbformat.v4.new_code_cell(check))
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    full, quest, oracle, window = map(int, notebook.cells[-1].outputs[0].text.split())
    assert full == oracle == 4 and quest >= 3 and window <= 1
