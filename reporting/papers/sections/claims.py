"""Set a paper's headline claims beside what was measured for each, in one table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longdecode.reporting.papers.blocks import Block, Compared, Comparison, Prose, compared
from longdecode.reporting.papers.inputs import PaperInputs


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim.

    Args:
        what: the claim in words, without its number.
        table: the published table that has the number.
        column: its column there.
        keys: its row there.
        measured: our row for it; only what was measured, how sure it is and the verdict are read.
        part: the part that measures it; a run that leaves this part to another one leaves the claim to it too.
    """

    what: str
    table: str
    column: str
    keys: Mapping[str, Any]
    measured: Callable[[PaperInputs], Compared | None]
    part: str = ""


@dataclass(frozen=True, slots=True)
class Claims:
    """Fill the part with the claims."""

    claims: Sequence[Claim]

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return one row a claim."""
        words = inputs.words("claims")
        rows, links = [], dict[str, None]()
        for claim in self.claims:
            if link := inputs.elsewhere(claim.part):
                links[link] = None
                continue
            printed = inputs.published.figure(claim.table, claim.column, **claim.keys)
            found = claim.measured(inputs)
            seen = () if found is None else (found.measured, found.interval, found.verdict, found.level, found.reason)
            rows.append(compared([claim.what], printed, *seen))
        more = [Prose(words["elsewhere"].format(parts=", ".join(links)))] if links else []
        return [Prose(words["text"]), Comparison(words["caption"], ("Claim",), rows), *more]
