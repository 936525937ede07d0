"""The papers that have a page: folders beside this file with ``page.py``, ``published.yaml`` and ``words.yaml``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.published import Published
from longdecode.reporting.papers.spec import PaperSpec
from longdecode.reporting.results import Results
from longdecode.reporting.speed import page as speed_page

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class PaperPage:
    """One paper's page to be written; ``name`` is its folder and the method it is about."""

    name: str
    paper: PaperSpec
    inputs: PaperInputs

    @property
    def title(self) -> str:
        """The page's name in the navigation."""
        return self.paper.title

    @property
    def published(self) -> Published:
        """The paper's own figures."""
        return self.paper.published


def paper_names() -> list[str]:
    """Return the folders of papers, in order."""
    return sorted(path.parent.name for path in _HERE.glob("*/page.py"))


def load_paper(name: str) -> PaperSpec:
    """Return a paper's declaration.

    Raises:
        PublishedError: its published.yaml is malformed.
    """
    paper: PaperSpec = importlib.import_module(f"longdecode.reporting.papers.{name}.page").PAPER
    return paper


def papers_of(
    results: Results,
    folder: Path,
    writer: FigureWriter,
    about: Callable[[str, str | None], str],
    name: Callable[[str], str],
    pages: Mapping[str, str],
) -> list[PaperPage]:
    """Return the papers that a run concerns, in order.

    Args:
        results: the run, ablations among its labels.
        folder: its results folder.
        writer: where figures go.
        about: a model, and perhaps a suite, to the end of a caption on scores.
        name: a timed model to its name in words.
        pages: labels that have a page, and the registered method behind each.
    """
    speed = results.speed

    def timed(model: str) -> str:
        return "" if speed is None else speed_page.about(speed, model, name)

    found = []
    for paper_name in paper_names():
        paper = load_paper(paper_name)
        inputs = PaperInputs(paper, results, folder, writer, about, timed, pages)
        if paper.concerns(inputs):
            found.append(PaperPage(paper_name, paper, inputs))
    return found
