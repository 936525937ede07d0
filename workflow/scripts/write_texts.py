"""Write the long texts of one run of the configuration."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.generation.job import write_texts
    from longdecode.evals.run_config import build_run_config, granted

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    write_texts(config, snakemake.wildcards.writing, Path(snakemake.output[0]))
