"""Few files run between a variant in a configuration and its number on a page; see ``count_imports.py``."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

MOST = {"job": 90, "all": 107}
"""Files that are imported at most: by the job that scores Quest, and by job, analysis and page together."""


@pytest.mark.slow
def test_few_files_run_between_a_variant_and_its_number() -> None:
    spec = importlib.util.spec_from_file_location("count_imports", Path(__file__).with_name("count_imports.py"))
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    parts = {part: script.imported(part) for part in script.PARTS}
    assert "longdecode.methods.quest.method" in parts["job"] and "longdecode.kernels.page_score" in parts["job"]
    assert not {name for name in parts["job"] if ".methods.lychee" in name or ".reporting" in name}
    counts = {"job": len(parts["job"]), "all": len(set().union(*parts.values()))}
    assert all(0 < counts[part] <= most for part, most in MOST.items()), counts
