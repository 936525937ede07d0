"""The worked example of docs/adding-a-method.md registers and passes the conformance suite as printed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from longdecode.engine.errors import UnsupportedCellError
from longdecode.methods.conformance import check_method
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import METHOD_PATH_VARIABLE, get_method, load_card, method_names

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's example, written to a folder that the registry searches; returns the method's name."""
    text = PAGE.read_text(encoding="utf-8")
    for file, language in (("method.py", "python"), ("rule.py", "python"), ("card.yaml", "yaml")):
        block = re.search(rf"`recent_only/{file}`:\n\n```{language}\n(.*?)```", text, re.DOTALL)
        assert block, f"the page shows no {file}"
        target = tmp_path / "recent_only" / file
        target.parent.mkdir(exist_ok=True)
        target.write_text(block.group(1), encoding="utf-8")
    monkeypatch.setenv(METHOD_PATH_VARIABLE, str(tmp_path))
    return "recent_only"


def test_the_example_passes_the_conformance_suite(installed: str) -> None:
    assert installed in method_names()
    assert load_card(installed).title == "Recent tokens only"
    check_method(installed, "cpu")
    check_method(installed, "cpu", {"dense_layers": 2})


def test_the_example_passes_lint(installed: str, tmp_path: Path) -> None:
    ruff = [sys.executable, "-m", "ruff"]
    rules = ["--config", str(PAGE.parents[1] / "pyproject.toml"), "--no-cache", str(tmp_path)]
    subprocess.run([*ruff, "check", *rules], check=True)
    subprocess.run([*ruff, "format", "--check", *rules], check=True)


def test_the_example_refuses_what_it_cannot_do(installed: str) -> None:
    with pytest.raises(UnsupportedCellError, match="keeps 7 layers dense"):
        get_method(installed).from_budget(8, CONFIG, dense_layers=7)


def test_the_files_that_the_page_names_exist() -> None:
    named = re.findall(r"`((?:engine|methods|tests|kernels)/[\w./]+)`", PAGE.read_text(encoding="utf-8"))
    paths = [name for name in named if "recent_only" not in name]
    assert paths and all((PAGE.parents[1] / name).exists() for name in paths), paths
