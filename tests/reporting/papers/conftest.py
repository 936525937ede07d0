"""The made-up run of LycheeDecode and its report, made once, and made-up runs of NOSA's forks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType

import pytest

from longdecode.reporting.build import build_report
from longdecode.reporting.papers.inputs import PaperInputs


def _beside(name: str) -> ModuleType:
    """Return a module of this folder, by its path: tests are no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their annotations up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def lychee_run() -> ModuleType:
    return _beside("lychee_run")


@pytest.fixture(scope="session")
def nosa_runs() -> ModuleType:
    return _beside("nosa_runs")


@pytest.fixture
def make_nosa(
    tmp_path_factory: pytest.TempPathFactory, nosa_runs: ModuleType, lychee_run: ModuleType
) -> Callable[..., PaperInputs]:
    """Return what NOSA's page draws on, for a first run, a fresh one and one of longer trainings."""
    return lambda *runs, **named: nosa_runs.made(tmp_path_factory.mktemp("nosa"), lychee_run.PROVENANCE, *runs, **named)


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
