"""Show NOSA's fork on fresh prompts beside the first run, rival by rival."""

from __future__ import annotations

from longdecode.reporting import wording
from longdecode.reporting.papers.blocks import Block, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.nosa.rerun import Rerun
from longdecode.reporting.staleness import older_scores


def fresh(inputs: PaperInputs) -> list[Block]:
    """Return NOSA's fork minus each rival on fresh prompts beside the first run's difference, and plain scores."""
    words, again = inputs.words("fresh"), inputs.fresh
    if again is None:
        return [Prose(words["text"]), inputs.missing(words["missing"], "fresh")]
    rerun = Rerun("fresh", again, [(inputs, "")], "Fresh prompts", "First run")
    tables = rerun.tables()
    if not tables:
        return [Prose(words["text"]), again.missing(words["unscored"], "fresh")]
    older = [Prose(text) for text in older_scores(again.results)]
    return [Prose(f"{words['text']} {_what(inputs, rerun)}"), *older, *tables]


def _what(inputs: PaperInputs, rerun: Rerun) -> str:
    """Say what is fresh, and what was not run again."""
    words, again = inputs.words("fresh"), rerun.run.results
    text: str = words["what"].format(
        profile=again.profile, seed=again.config.get("seed", 0), before=inputs.results.config.get("seed", 0),
        counts=rerun.counts(),
    )  # fmt: skip
    left = rerun.left(inputs)
    return text + (" " + words["left"].format(forks=wording.listing(left)) if left else "")
