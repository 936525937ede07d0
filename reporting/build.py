"""Build a site from the tables of results: of one run, or of all runs in a folder."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from longdecode.reporting.compare import write_compare
from longdecode.reporting.methods import write_methods
from longdecode.reporting.overview import write_overview
from longdecode.reporting.papers.page import write_papers
from longdecode.reporting.runs import ReportError, Run, read_run
from longdecode.reporting.site import Site
from longdecode.reporting.tasks import write_tasks
from longdecode.reporting.trust import write_trust

_OWN = ("*.html", "data/*.csv", "site.css", "site.js", "vega.js")


def build(results: Path, out: Path) -> Path:
    """Build the site of one run and return its first page.

    Args:
        results: the run's folder with its tables.
        out: the folder of the site; pages of an earlier build go.

    Raises:
        ReportError: the folder holds no table of results.
    """
    return _build([read_run(Path(results))], Path(out))


def build_checked(results: Path, out: Path, inputs: Iterable[Path]) -> None:
    """Build the site of a run from files that are as they were written, and write its manifest.

    Args:
        inputs: files that the pages rest on; those outside the run's folder ship with the project.

    Raises:
        GateError: a check of the instrument failed.
        ManifestError: a file of the run changed since it was written.
    """
    from longdecode.engine.errors import GateError
    from longdecode.evals import manifest

    instrument = results / "instrument.json"
    checks = json.loads(instrument.read_text(encoding="utf-8"))["checks"]
    if failed := [check for check in checks if check["outcome"] == "failed"]:
        said = "".join(f"\n  {check['name']}: {check['requires']}; got {check['numbers']}" for check in failed)
        raise GateError(f"{len(failed)} of {len(checks)} instrument checks failed ({instrument}):{said}")
    # What ships with the project, such as a tuning record, is no result of the run and in no manifest.
    manifest.require(results, {path for path in inputs if path.is_relative_to(results)} | manifest.listed(results))
    build(results, out)
    manifest.rewrite(out)


def build_all(results_root: Path, out: Path) -> Path:
    """Build one site over all runs in a folder and return its first page.

    Raises:
        ReportError: no folder in it holds a table of results.
    """
    folders = sorted(path.parent for path in Path(results_root).glob("*/config.yaml"))
    runs = [
        read_run(folder)
        for folder in folders
        if any((folder / f"{name}.csv").is_file() for name in ("summary", "speed"))
    ]
    if not runs:
        raise ReportError(f"{results_root}: no run in it has tables; run `longdecode run` first")
    return _build(runs, Path(out))


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
