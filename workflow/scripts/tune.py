"""Choose the per-model knobs of one method on tuning prompts."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.run_config import build_run_config, granted
    from longdecode.evals.tuning import tune

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    tune(config, snakemake.wildcards.model, Path(snakemake.output[0]), [snakemake.wildcards.method])
