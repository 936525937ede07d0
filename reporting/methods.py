"""Make a method's page: its card, where it holds, and how fast it is."""

from __future__ import annotations

from typing import Any

from longdecode.reporting import wording
from longdecode.reporting.runs import each
from longdecode.reporting.site import Page, Site


def write_methods(site: Site) -> None:
    """Write a page for each method that current runs measured."""
    for method in site.methods:
        card = wording.card(method)
        papers = [name for name, paper in site.papers.items() if paper.method == method]
        site.write(
            Page(f"method-{method}"),
            "method.html",
            method=method,
            card=card,
            papers=papers,
            holds=_holds(site, method),
            speeds=_speeds(site, method),
            gates=_gates(site, method),
        )


def _holds(site: Site, method: str) -> list[dict[str, Any]]:
    """Return, by task and context, the smallest budget of the method that stays within the margin."""
    out = []
    for run in site.current:
        rows = site.held[run.name]
        for r in rows[rows.variant == method].pipe(each) if len(rows) else ():
            words = (
                f"{int(r.budget_tokens):,} tokens"
                if r.state == "holds"
                else {"open": "cannot tell", "fails": "none, all worse"}[r.state]
            )
            out.append(
                {
                    "task": wording.task_title(r.suite, r.task),
                    "suite": r.suite,
                    "model": wording.model_title(r.model),
                    "context": wording.tokens(r.context),
                    "words": words,
                    "state": r.state,
                    "n": r.n,
                }
            )
    return out


def _speeds(site: Site, method: str) -> list[dict[str, Any]]:
    """Return the timed steps of the method's variants at the longest context of each model."""
    out = []
    for run in site.current:
        rows = run.steps[run.steps.method == method] if len(run.steps) else run.steps
        rows = rows[rows.context == rows.groupby("model").context.transform("max")] if len(rows) else rows
        for r in rows.pipe(each):
            out.append(
                {
                    "title": run.title(r.variant),
                    "place": f"{wording.model_title(r.model)}, {wording.tokens(r.context)} tokens; run {run.name}",
                    "batch": int(r.batch),
                    "budget": run.budget(r.variant, r.budget, r.budget_tokens),
                    "ms": wording.number(r.median_us / 1000, "ms"),
                    "ratio": wording.number(r.ratio, "times"),
                    "interval": wording.interval(r.ratio_low, r.ratio_high, "times"),
                    "share": "" if wording.missing(r.fraction) else f"{r.fraction:.0%}",
                }
            )
    return out


def _gates(site: Site, method: str) -> list[str]:
    """Return, by run, whether the conformance gate passed."""
    out = []
    for run in site.current:
        mine = [gate for gate in run.gate if gate.get("method") == method]
        if mine:
            checks = [verdict for gate in mine for verdict in gate.get("verdicts", ())]
            passed = sum(verdict["status"] == "passed" for verdict in checks)
            out.append(f"Run {run.name}: {passed} of {len(checks)} variants passed all checks on {mine[0]['device']}")
    return out
