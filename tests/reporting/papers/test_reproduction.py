"""The configurations that the reproduction note prints are ones that a run accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from longdecode.evals.run_config import load_run_config

NOTE = Path(__file__).parents[3] / "docs" / "reproduction-lychee.md"
BLOCKS = re.findall(r"```yaml\n(.*?)```", NOTE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("text", BLOCKS, ids=lambda text: text.split()[1])
def test_a_printed_configuration_is_accepted(text: str, tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text, encoding="utf-8")
    run = load_run_config(path)
    assert f"{run.profile}.yaml" in NOTE.read_text(encoding="utf-8")
    assert "lychee" in run.methods and "full" in run.methods
