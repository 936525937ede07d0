"""Build the report's pages from records, summary, instrument checks and cards, all of them as they were written."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals import manifest
    from longdecode.reporting.build import build_report

    config, pages = Path(snakemake.input.config), Path(snakemake.output[0]).parent
    # What ships with the project, such as a tuning record, is no result of the run and in no manifest.
    named = {Path(path) for path in snakemake.input if Path(path).suffix != ".passed"}
    results = {path for path in named if path.is_relative_to(config.parent)}
    manifest.require(config.parent, results | manifest.listed(config.parent))
    build_report(config, config.parent, pages)
    manifest.rewrite(pages)
