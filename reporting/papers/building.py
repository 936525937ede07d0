"""From a run to the papers that it has anything for, each with what its sections draw on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from longdecode.reporting.figure import FigureWriter
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.published import Published
from longdecode.reporting.papers.registry import Paper, load_paper, paper_names
from longdecode.reporting.results import Results
from longdecode.reporting.speed import page as speed_page
from longdecode.reporting.speed import targets as speed_targets


@dataclass(frozen=True, slots=True)
class PaperPage:
    """One paper's page to be written; ``name`` is its folder and the method it is about."""

    name: str
    paper: Paper
    published: Published
    inputs: PaperInputs

    @property
    def title(self) -> str:
        """The page's name in the navigation."""
        return self.paper.title


def papers_of(
    results: Results,
    folder: Path,
    writer: FigureWriter,
    about: Callable[[str, str | None], str],
    name: Callable[[str], str],
    pages: Mapping[str, str],
) -> list[PaperPage]:
    """The papers that a run concerns, in order.

    Args:
        results: the run, ablations among its labels.
        folder: its results folder.
        writer: where figures go.
        about: the end of a caption on scores: a model, and perhaps a suite, to its words.
        name: a timed model's name in words.
        pages: labels that have a page, and the registered method behind each.
    """
    speed = results.speed

    def timed(model: str) -> str:
        return "" if speed is None else speed_page.about(speed, model, name)

    found = []
    for paper_name in paper_names():
        paper, published = load_paper(paper_name)
        targets = [] if speed is None else speed_targets.judge(speed, paper=paper_name)
        inputs = PaperInputs(results, folder, writer, published, about, timed, targets, pages)
        if paper.concerns(inputs):
            found.append(PaperPage(paper_name, paper, published, inputs))
    return found
