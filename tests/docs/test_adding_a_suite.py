"""The suite of docs/adding-a-suite.md, installed in a folder of its own: found, configured, scored and hashed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longdecode.engine.errors import ConfigError
from longdecode.evals import gate
from longdecode.evals.evaluate import evaluate_suite
from longdecode.evals.fingerprint import quality_code_hash
from longdecode.evals.records import Record
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import read_records
from longdecode.evals.tasks.registry import describe, get_task, suite_tasks

ROOT = Path(__file__).resolve().parents[2]


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
    values = {
        "profile": "p",
        "device": "cpu",
        "models": {"mini": {"path": str(ROOT / "models" / "miniature" / "weights")}},
        "methods": {"full": {}},
        "budgets": [0.5],
        "suites": {"copy_back": {"contexts": [128], "samples": 1}},
    }
    output = tmp_path / "records" / "mini" / "full" / "copy_back.parquet"
    evaluate_suite(build_run_config(values, "c"), "mini", "copy_back", {"full": output})
    assert [(r.task, r.status) for r in read_records(output, Record)] == [
        ("copy_back_heron", "ok"), ("copy_back_quartz", "ok"),
    ]  # fmt: skip
    module = type(get_task("copy_back_heron")).__module__
    before = quality_code_hash("full", module)
    (folder / "suite.py").write_text((folder / "suite.py").read_text() + "\nEDITED = 1\n", encoding="utf-8")
    assert quality_code_hash("full", module) != before


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("mine", "SUITE = 3", "SUITE must be a Suite, got 3"),
        ("passkey", "", "suite 'passkey' is defined twice"),
        ("mine", "from longdecode.evals.tasks.needles import SUITES; SUITE = SUITES['passkey']", "is in two suites"),
    ],
)
def test_a_suite_that_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, text: str, says: str
) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "suite.py").write_text(text, encoding="utf-8")
    monkeypatch.setenv("LONGDECODE_SUITE_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=says):
        get_task("passkey_depth_0")
