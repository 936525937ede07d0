"""Name the pairs of cells that are compared: every variant against full attention, and what papers ask for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pydantic import BaseModel, ConfigDict, Field

from longdecode.evals.analysis.cells import Cell, Cells, method_of
from longdecode.evals.run_config import REFERENCE_METHOD


class PairRequest(BaseModel):
    """Ask for one variant against another wherever both ran the same task.

    Args:
        a: variants that are compared.
        b: the variant that each is compared with.
        a_model: model of ``a``; every model where it is left out.
        b_model: model of ``b``; that of ``a`` where it is left out.
        suites: suites; all where it is left out.
        any_budget: also pair different budgets, as where a budget was chosen so that both read alike.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    a: tuple[str, ...] = Field(min_length=1)
    b: str
    a_model: str | None = None
    b_model: str | None = None
    suites: tuple[str, ...] = ()
    any_budget: bool = False


def against_full(cells: Cells) -> Iterator[tuple[Cell, Cell]]:
    """Yield every cell of another variant with the cell of full attention at the same place."""
    fulls = {cell[:5]: cell for cell, samples in cells.items() if method_of(samples) == REFERENCE_METHOD}
    for cell, samples in cells.items():
        if method_of(samples) != REFERENCE_METHOD and cell[:5] in fulls:
            yield cell, fulls[cell[:5]]


def requested(cells: Cells, requests: Iterable[PairRequest]) -> Iterator[tuple[Cell, Cell]]:
    """Yield the pairs of cells that requests ask for, at the same suite, task, context and batch."""
    places: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        places.setdefault(cell[1:5], []).append(cell)
    for request in requests:
        for here in places.values():
            yield from _pairs_at(here, request)


def _pairs_at(here: Sequence[Cell], request: PairRequest) -> Iterator[tuple[Cell, Cell]]:
    for a in here:
        if a.variant not in request.a or request.a_model not in (None, a.model):
            continue
        if request.suites and a.suite not in request.suites:
            continue
        for b in here:
            same_model = b.model == (request.b_model or a.model)
            if b.variant == request.b and same_model and (request.any_budget or b.budget in (a.budget, "full")):
                yield a, b
