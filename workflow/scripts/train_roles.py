"""Train one identification run of the configuration; its files are written at the end, roles.json last."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.run_config import build_run_config, granted
    from longdecode.training.roles.train import run_planned

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    run_planned(config, snakemake.wildcards.role_run, Path(snakemake.output.roles).parent)
