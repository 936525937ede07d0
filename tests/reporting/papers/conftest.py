"""The made-up run of LycheeDecode and its report, made once; loaded by path, as tests are no package."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import pytest

from longdecode.reporting.build import build_report


@pytest.fixture(scope="session")
def lychee_run() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lychee_run", Path(__file__).with_name("lychee_run.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def paper_run(lychee_run: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole made-up run."""
    folder: Path = lychee_run.write_run(tmp_path_factory.mktemp("lychee"))
    return folder


@pytest.fixture(scope="session")
def paper_report(paper_run: Path, papers_drawn: Callable[[], AbstractContextManager[None]]) -> Path:
    """Its report."""
    with papers_drawn():
        build_report(paper_run / "config.yaml", paper_run, paper_run / "report")
    return paper_run / "report"
