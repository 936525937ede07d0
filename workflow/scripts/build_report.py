"""Build the report's pages from records, summary, instrument checks and cards."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.reporting.build import build_report

    config = Path(snakemake.input.config)
    build_report(config, config.parent, Path(snakemake.output[0]).parent)
