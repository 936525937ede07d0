"""Write the long texts of one run of the configuration."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.generation.job import write_texts
    from longdecode.evals.run_config import build_run_config

    config = build_run_config(snakemake.config, "configuration", check_params=False)
    write_texts(config, snakemake.wildcards.writing, Path(snakemake.output[0]))
