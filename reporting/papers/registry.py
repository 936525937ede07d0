"""The papers that have a page: folders beside this file with ``published.yaml`` and ``page.py``."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from longdecode.reporting.papers.blocks import Section
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.published import Published, load_published

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Paper:
    """A page's content, as a folder's ``page.py`` declares it in ``PAPER``.

    Args:
        title: the page's heading and its name in the navigation.
        summary: one sentence under the heading.
        concerns: whether a run has anything that belongs on the page; a run that has nothing gets none.
        sections: the page's parts, from what the run left behind.
    """

    title: str
    summary: str
    concerns: Callable[[PaperInputs], bool]
    sections: Callable[[PaperInputs], Sequence[Section]]


def paper_names() -> list[str]:
    """Folders of papers, in order."""
    return sorted(path.parent.name for path in _HERE.glob("*/page.py"))


def load_paper(name: str) -> tuple[Paper, Published]:
    """A paper's page and its published figures.

    Raises:
        PublishedError: its published.yaml is malformed.
    """
    page = importlib.import_module(f"longdecode.reporting.papers.{name}.page")
    paper: Paper = page.PAPER
    return paper, load_published(_HERE / name / "published.yaml")
