"""Hold one site: its runs, its figures with their data, and the files that its pages are written to."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import vl_convert
from markupsafe import Markup

from longdecode.analysis.declaration import (
    AmbiguousQueryError,
    Declaration,
    Found,
    Query,
    Tables,
    load_declarations,
)  # fmt: skip
from longdecode.reporting import charts, looks, wording
from longdecode.reporting.runs import Run, able, each, in_order, joined
from longdecode.reporting.tradeoff import smallest_budgets

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """A figure on a page: its finding as the title, a picture for readers without scripts, and a table of its data."""

    name: str
    title: str
    picture: Markup
    data: str
    note: str


@dataclass
class Page:
    """A page while it is made: its figures' specifications go into the page for its script."""

    name: str
    specs: dict[str, Any] = field(default_factory=dict)
    views: dict[str, Any] | None = None


class Site:
    """One site over one run or several.

    Args:
        runs: in the order in which they are listed.
        out: the folder that holds index.html.
    """

    def __init__(self, runs: Sequence[Run], out: Path) -> None:
        self.runs, self.out = runs, out
        self.written_papers: list[str] = []
        (out / "data").mkdir(parents=True, exist_ok=True)
        loader = jinja2.FileSystemLoader(HERE / "templates")
        self._environment = jinja2.Environment(
            loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
        )
        self._environment.globals |= {
            "w": wording,
            "families": looks.FAMILY_TITLES,
            "shapes": looks.SHAPES,
            "missing": wording.missing,
        }
        self._environment.filters |= {"slug": wording.slug}

    @cached_property
    def current(self) -> list[Run]:
        """The runs that have pages: all but those behind one paper, which are shown where there is nothing else."""
        return [run for run in self.runs if not run.older] or list(self.runs)

    @cached_property
    def settled(self) -> list[Run]:
        """The current runs whose numbers enter verdicts; pilots where there is nothing else."""
        return [run for run in self.current if not run.pilot] or self.current

    @cached_property
    def joined(self) -> pd.DataFrame:
        """Quality and speed of settled runs, row by row of the same variant; of small models where no other has any."""
        found = [rows for rows in map(joined, self.settled) if len(rows)]
        return able(pd.concat(found)).reset_index(drop=True) if found else pd.DataFrame(columns=["model"])

    @cached_property
    def passed(self) -> set[str]:
        """The small models, which have no verdict where another model was scored; else none."""
        small, scored = {*wording.TITLES["small"]}, {m for run in self.current for m in run.summary.get("model", ())}
        return small if scored - small else set()

    @cached_property
    def papers(self) -> dict[str, Declaration]:
        """The declared papers by name."""
        return load_declarations(HERE / "papers")

    @cached_property
    def held(self) -> dict[str, pd.DataFrame]:
        """By run, the smallest budgets within the margin; of small models where no other has any."""
        found = {run.name: smallest_budgets(run) for run in self.current}
        models = able(pd.concat(found.values())).get("model", pd.Series(dtype=str))
        return {name: cells[cells.model.isin(models)] if len(cells) else cells for name, cells in found.items()}

    @cached_property
    def _tables(self) -> dict[str, Tables]:
        """The tables of runs by name, which know after a query what their columns hold."""
        return {run.name: Tables(run.tables) for run in self.runs}

    def find(self, paper: str, query: Query) -> Found | None:
        """Return the number of a query from the run named, a paper's or another, else from the first other that has it.

        A pilot answers only where no other run does. ``budget_words`` of the row is its budget in words.
        """
        for run in sorted(self.runs, key=lambda run: (run.name != paper, run.pilot)):
            with suppress(AmbiguousQueryError):
                if len(run.tables[query.table]) and (found := self._tables[run.name].find(query)):
                    budget = found.row["budget"]
                    words = "" if wording.missing(budget) else run.budget(found.variant, budget)
                    return replace(found, row={**found.row, "budget_words": words})
        return None

    @cached_property
    def claims(self) -> pd.DataFrame:
        """One row a claim, with its ``run``: the run named after the paper answers first, then the others in order."""
        found = [run.claims.assign(run=run.name) for run in self.runs if len(run.claims)]
        if not found:
            return pd.DataFrame()
        rows = pd.concat(found, ignore_index=True)
        rows["answered"] = rows.like_for_like.notna()
        rows["own"] = rows.run == rows.paper
        rows["place"] = range(len(rows))
        first = rows.sort_values(["answered", "own", "place"], ascending=[False, False, True]).drop_duplicates(
            ["paper", "claim"]
        )
        order = {
            claim.claim: (number, at)
            for number, (_, paper) in enumerate(self.papers.items())
            for at, claim in enumerate(paper.claims)
        }
        first = first[first.claim.isin(order)]
        places = [order[claim] for claim in first.claim]
        first = first.iloc[sorted(range(len(first)), key=lambda at: places[at])]
        anchors = [wording.slug("claim", row.paper, order[row.claim][1] + 1) for row in first.pipe(each)]
        return first.assign(anchor=anchors)

    def run(self, name: str) -> Run:
        """Return a run by name."""
        return next(run for run in self.runs if run.name == name)

    @cached_property
    def methods(self) -> list[str]:
        """Methods with a card that current runs measured, full attention first."""
        ran = in_order(method for run in self.current for method in run.methods.values())
        return sorted(
            (m for m in ran if wording.card(m)),
            key=lambda m: (m != "full", list(looks.FAMILIES).index(wording.family(m)), wording.method_title(m)),
        )

    @cached_property
    def suites(self) -> list[str]:
        """Suites that current runs scored."""
        return sorted(in_order(suite for run in self.current for suite in run.suites), key=wording.suite_title)

    def table_link(self, run: Run, table: str) -> str | None:
        """Return the address of a run's table from a page; none where it was not written."""
        path = run.folder / table
        return Path(os.path.relpath(path, self.out)).as_posix() if path.is_file() else None

    def figure(
        self,
        page: Page,
        name: str,
        title: str,
        spec: Mapping[str, Any],
        data: pd.DataFrame,
        note: str = "",
        width: int = 800,
    ) -> Figure:
        """Write a figure's data beside it and return it for its page."""
        full_name = wording.slug(page.name, name)
        data.to_csv(self.out / "data" / f"{full_name}.csv", index=False, float_format="%.6g")
        page.specs[full_name] = spec
        return Figure(full_name, title, Markup(charts.static(dict(spec), width)), f"data/{full_name}.csv", note)

    def write(self, page: Page, template: str, **values: Any) -> None:
        """Write one page."""
        script = {"figures": page.specs} | ({"overview": page.views} if page.views else {})
        text = self._environment.get_template(template).render(
            site=self,
            page=page,
            # `</script` would end the block, and after `<!--` and `<script` its own end would not.
            script=Markup(json.dumps(script, separators=(",", ":")).replace("</", "<\\/").replace("<!", "\\u003c!")),
            **values,
        )
        (self.out / f"{page.name}.html").write_text(text, encoding="utf-8")

    def write_assets(self) -> None:
        """Write style sheet and scripts: one style, one script, one chart library."""
        style = (HERE / "templates" / "site.css").read_text(encoding="utf-8")
        for mark, text in (
            ("/*LIGHT*/", looks.css_variables(0)),
            ("/*DARK*/", looks.css_variables(1)),
            ("/*DARKSVG*/", looks.dark_svg_rules(".chart svg")),
        ):
            style = style.replace(mark, text)
        (self.out / "site.css").write_text(style, encoding="utf-8")
        (self.out / "site.js").write_text(
            (HERE / "templates" / "site.js").read_text(encoding="utf-8"), encoding="utf-8"
        )
        bundle = vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;", vl_version=charts.VEGA_LITE)
        # Wrapped in a function, because a module script does not load from file://.
        (self.out / "vega.js").write_text(f"(()=>{{{bundle}}})();", encoding="utf-8")
