"""Build a site from the tables of results: of one run, or of all runs in a folder.

Its page on trust and data has hardware, revisions, checks, missing results, raw tables and older evidence.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.engine.errors import GateError
from longdecode.evals import manifest
from longdecode.reporting import wording
from longdecode.reporting.compare import write_compare
from longdecode.reporting.overview import write_overview
from longdecode.reporting.papers.page import write_papers
from longdecode.reporting.runs import REFERENCE, NoNumbersError, Run, each, groups, in_order, middle, read_run
from longdecode.reporting.site import Page, Site
from longdecode.reporting.tasks import grid, write_methods, write_tasks

_PACKAGES = ("torch", "triton", "transformers", "cuda")
_OWN = ("*.html", "data/*.csv", "site.css", "site.js", "vega.js")


def build(results: Path, out: Path) -> Path:
    """Build the site of one run with its manifest, and return its first page.

    Args:
        results: the run's folder with its tables.
        out: the folder of the site; pages of an earlier build go.

    Raises:
        ManifestError: a file changed since it was written.
        ReportError: the folder holds no table of results.
    """
    page = _build([_intact(Path(results))], Path(out))
    manifest.rewrite(page.parent)
    return page


def build_checked(results: Path, out: Path, inputs: Iterable[Path]) -> None:
    """Build the site of a run whose files are as they were written and whose instrument checks passed.

    Args:
        inputs: files that the pages rest on; those outside the run's folder ship with the project.

    Raises:
        GateError: a check of the instrument failed.
        ManifestError: a file of the run changed since it was written.
    """
    # What ships with the project, such as a tuning record, is no result of the run and in no manifest.
    manifest.require(results, {path for path in inputs if path.is_relative_to(results)} | manifest.listed(results))
    instrument = results / "instrument.json"
    checks = json.loads(instrument.read_text(encoding="utf-8"))["checks"]
    if failed := [check for check in checks if check["outcome"] == "failed"]:
        said = "".join(f"\n  {check['name']}: {check['requires']}; got {check['numbers']}" for check in failed)
        raise GateError(f"{len(failed)} of {len(checks)} instrument checks failed ({instrument}):{said}")
    build(results, out)


def build_all(results_root: Path, out: Path) -> Path:
    """Build one site over all runs in a folder that have a number, say which have none, and return its first page.

    Raises:
        ManifestError: a file changed since it was written.
        NoNumbersError: no folder in it holds a table of results.
    """
    runs = []
    for config in sorted(Path(results_root).glob("*/config.yaml")):
        try:
            runs.append(_intact(config.parent))
        except NoNumbersError as error:
            print(f"left out: {error}")
    if not runs:
        raise NoNumbersError(f"{results_root}: no run in it has tables; run `longdecode run` first")
    return _build(runs, Path(out))


def _intact(folder: Path) -> Run:
    """Read a run whose files are as its manifest, if it has one, says."""
    if listed := manifest.listed(folder):
        manifest.require(folder, listed)
    return read_run(folder)


def _build(runs: Sequence[Run], out: Path) -> Path:
    for pattern in _OWN:
        for path in out.glob(pattern):
            path.unlink()
    site = Site(runs, out)
    write_papers(site)
    write_overview(site)
    write_compare(site)
    write_methods(site)
    write_tasks(site)
    write_trust(site)
    site.write_assets()
    return out / "index.html"


def write_trust(site: Site) -> None:
    """Write trust.html."""
    runs = [_facts(site, run) for run in site.runs]
    older = [_older(run) for run in site.runs if run.older and run not in site.current]
    site.write(
        Page("trust"),
        "trust.html",
        runs=runs,
        versions=in_order(run["versions"] for run in runs),
        holes=[hole for run in site.current for hole in _holes(run)],
        older=older,
        tuned=[row for run in site.current for row in _tuned(run)],
    )


def _facts(site: Site, run: Run) -> dict[str, Any]:
    """Return what a reader needs to know about where a run's numbers come from."""
    verdicts = [verdict["status"] == "passed" for gate in run.gate for verdict in gate.get("verdicts", ())]
    checks = [check["outcome"] == "passed" for check in run.checks if check["outcome"] != "not run"]
    timed = run.speed[~run.speed.bench.isin(["ceiling", "kernel"])].model if len(run.speed) else ()
    texts = run.measures[run.measures.measure == "speedup"].model if len(run.measures) else ()
    models = in_order([*(run.summary.model if len(run.summary) else ()), *texts, *timed])
    versions = run.gate[0].get("versions", {}) if run.gate else {}
    tables = sorted(path.name for path in run.folder.iterdir() if path.suffix in (".csv", ".yaml", ".txt"))
    n, losses = run.summary.get("n", pd.Series(dtype=int)), run.losses[:0] if run.pilot else run.losses
    pooled = [r.verdict for r in losses.pipe(each) if r.task == "all" and r.model not in site.passed and r.verdict]
    return {
        "name": run.name,
        "what": run.purpose,
        "devices": run.devices,
        "revisions": run.revisions,
        "models": [wording.model_title(m) for m in models],
        "data": " and ".join(run.data_sources) or ("books to go on with" if len(texts) else "none: times alone"),
        "prompts": f"{int(n[n > 0].min())} to {int(n.max())}" if len(n) else "",
        "decided": f"{len(pooled) - pooled.count('cannot tell')} of {len(pooled)}" if pooled else "",
        "time": next(run.gpu_time.pipe(each), None) if len(run.gpu_time) else None,
        "gate": f"{sum(verdicts)} of {len(verdicts)}" if verdicts else "",
        "checks": f"{sum(checks)} of {len(checks)}" if checks else "",
        "versions": ", ".join(f"{k} {v}" for k, v in versions.items() if k in _PACKAGES),
        "tables": [(name, site.table_link(run, name)) for name in tables],
    }


def _holes(run: Run) -> list[tuple[str, str, str, str, int]]:
    """Return run, variant, what is missing, why, and how often."""
    found = []
    for table, what in ((run.summary, "scores"), (run.speed, "times")):
        rows = table[table.status != "ok"] if len(table) else table
        for (variant, status), part in groups(rows, ["variant", "status"]) if len(rows) else ():
            words = wording.TITLES["statuses"].get(status, status.replace("_", " "))
            found.append((run.name, run.title(variant), what, words, len(part)))
    marked = run.summary.dropna(subset="untuned") if "untuned" in run.summary else run.summary[:0]
    for (variant, said), part in groups(marked, ["variant", "untuned"]) if len(marked) else ():
        found.append((run.name, run.title(variant), "tuning", f"not as tuned: {said}", len(part)))
    return found


def _tuned(run: Run) -> Iterator[dict[str, Any]]:
    """Yield what tuning took, a row a method: settings, prompts, seconds, its heads' training, first and best score."""
    for path in sorted(run.folder.glob("tuning/*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        for method, told in sorted(record["methods"].items()):
            about = run.folder.resolve().parents[1] / Path(told["fixed"].get("roles", "none")).with_name("run.json")
            scores = [100 * trial["value"] for trial in told["trials"] if trial["status"] == "ok"]
            yield {
                "run": run.name, "title": wording.method_title(method), "prompts": len(record["prompts"]),
                "where": "prompt" if path.stem.endswith("-prompt") else "decoded", "seconds": told["seconds"],
                "settings": len(told["trials"]), "first": scores[0], "best": max(scores),
                "trained": json.loads(about.read_text(encoding="utf-8"))["seconds"] if about.is_file() else None,
            }  # fmt: skip


def _older(run: Run) -> dict[str, Any]:
    """Return plain tables of a run behind one paper, one a model: the main tasks at their longest context."""
    rows = run.leading(run.summary[run.summary.status == "ok"])
    rows = rows[rows.context == rows.groupby(["model", "suite"]).context.transform("max")]
    rows = rows[
        (rows.budget == REFERENCE)
        | (rows.budget == rows.groupby(["model", "suite", "variant"]).budget.transform(middle))
    ]
    words = (
        wording.task_title(r.suite, r.task) + f", {wording.tokens(r.context)}, n = {r.n:.0f}" for r in rows.pipe(each)
    )
    parts = groups(rows.assign(title=list(words)), "model", sort=False)
    grids = [grid(run, part, "title", {}) | {"model": wording.model_title(model)} for model, part in parts]
    return {"run": run, "grids": grids}


def main(arguments: Sequence[str] | None = None) -> None:
    """Build from the command line: ``RESULTS OUT``, with ``--all`` for a folder of runs."""
    parser = argparse.ArgumentParser(description="Build a site from tables of results.")
    parser.add_argument("results", type=Path, help="folder of a run, or with --all of runs")
    parser.add_argument("out", type=Path, help="folder of the site")
    parser.add_argument("--all", action="store_true", help="one site over every run in the folder")
    options = parser.parse_args(arguments)
    print((build_all if options.all else build)(options.results, options.out))


if __name__ == "__main__":
    main()
