"""Write summary.csv from all records."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.summary import write_summary

    write_summary(
        Path(snakemake.input.config), [Path(path) for path in snakemake.input.records], Path(snakemake.output.summary)
    )
