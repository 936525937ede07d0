"""Measure how much the top tokens of adjacent layers overlap."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.run_config import build_run_config, granted
    from longdecode.training.roles.overlap import measure_overlap

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    measure_overlap(config, Path(snakemake.output[0]))
