"""Write comparisons.csv, measures.csv and claims.csv from records and tables."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.analysis.write import write_analysis

    config = Path(snakemake.input.config)
    write_analysis(config, config.parent, Path(snakemake.input.papers[0]).parent)
