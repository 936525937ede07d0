"""Declare a paper's page: the method, its rivals, what is compared, what is in print, and the sections in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from longdecode.reporting.papers.blocks import Block, Prose, Section
from longdecode.reporting.papers.printed import printed_tables
from longdecode.reporting.papers.published import Published, load_published

if TYPE_CHECKING:
    from longdecode.reporting.papers.inputs import PaperInputs

Maker = Callable[["PaperInputs"], Sequence[Block]]


@dataclass(frozen=True, slots=True)
class PaperSpec:
    """One page, as a folder's ``page.py`` declares it in ``PAPER``.

    Args:
        folder: the paper's folder; it holds ``published.yaml`` and ``words.yaml``.
        title: heading of the page and its name in the navigation.
        method: registered method that the paper is about; the folder's name too.
        rivals: registered methods that it is compared with.
        suites: suites of the miniature on which it is compared with them.
        parts: sections by the key of their words and anchor, each with what fills it.
        published: the paper's own figures.
        words: texts by part; each part has a ``title``.
        kernel: ops that start with this were made for this paper.
        evidence: a file or folder of a run's results that is about this paper.
        held: part to the profile whose run holds it, where two runs share the page; elsewhere that part is a link.
    """

    folder: Path
    title: str
    method: str
    rivals: tuple[str, ...]
    suites: tuple[str, ...]
    parts: Mapping[str, Sequence[Maker]]
    published: Published
    words: Mapping[str, Any]
    kernel: str = ""
    evidence: str = ""
    held: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """The paragraph under the heading."""
        return str(self.words["summary"])

    def concerns(self, inputs: PaperInputs) -> bool:
        """Return true where a run scored or timed the method, timed its kernel, or holds other evidence."""
        speed = inputs.speed
        if self.evidence and (inputs.folder / self.evidence).exists():
            return True
        if speed is None:
            return bool(inputs.labels(self.method))
        ops = speed.table["subject"].astype(str)
        timed = bool((ops == self.method).any())
        return timed or bool(inputs.labels(self.method)) or bool(self.kernel and ops.str.startswith(self.kernel).any())

    def sections(self, inputs: PaperInputs) -> Sequence[Section]:
        """Return the page's sections; a part that was not run says so and how to run it.

        Parts that another run holds are one section of links, at the place of the first.
        """
        links = {name: link for name in self.parts if (link := inputs.elsewhere(name))}
        found = []
        for name, makers in self.parts.items():
            if name not in links:
                blocks = [block for maker in makers for block in maker(inputs)]
                found.append(Section(self.words[name]["title"], name, blocks))
            elif name == next(iter(links)):
                words = self.words["elsewhere"]
                text = words["text"].format(run=self.held[name], parts=", ".join(links.values()))
                found.append(Section(words["title"], "elsewhere", [Prose(text)]))
        printed = [Prose(self.published.note), *printed_tables(self.published)]
        return [*found, Section("Every published figure used here", "in-print", printed)]


def declare(page: str, **given: Any) -> PaperSpec:
    """Return a spec with the published figures and words that lie beside its ``page.py``.

    Args:
        page: the ``__file__`` of that module.
        given: the other fields of :class:`PaperSpec`.

    Raises:
        PublishedError: published.yaml is malformed.
    """
    folder = Path(page).parent
    words = yaml.safe_load((folder / "words.yaml").read_text(encoding="utf-8"))
    return PaperSpec(folder, published=load_published(folder / "published.yaml"), words=words, **given)
