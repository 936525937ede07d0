"""Train one fork of the configuration; its merged checkpoint is written last."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.run_config import build_run_config, granted
    from longdecode.training.forks.train import run_planned

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    run_planned(config, snakemake.wildcards.fork, Path(snakemake.output.curve).parent)
