"""Build the report's pages from records, summary, instrument checks and cards, all of them as they were written."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals import manifest
    from longdecode.reporting.build import build_report

    config, pages = Path(snakemake.input.config), Path(snakemake.output[0]).parent
    named = {Path(path) for path in snakemake.input if Path(path).suffix != ".passed"}
    manifest.require(config.parent, named | manifest.listed(config.parent), config)
    build_report(config, config.parent, pages)
    manifest.rewrite(pages)
