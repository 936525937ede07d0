"""Train one identification run of the configuration; its files are written at the end, roles.json last."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.identification.plan import build_plan
    from longdecode.identification.train import run_planned

    plan = build_plan(snakemake.config, "configuration")
    run_planned(plan, snakemake.wildcards.role_run, Path(snakemake.output.roles).parent)
