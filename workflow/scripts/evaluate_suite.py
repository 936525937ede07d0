"""Score a suite on one model with all its labels; journalled, so that a killed job goes on at its next batch."""

from pathlib import Path

from job_log import logged, waiting_for_others

with logged(snakemake):
    from longdecode.evals.evaluate import evaluate_suite
    from longdecode.evals.fingerprint import narrowed
    from longdecode.evals.run_config import build_run_config, granted

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    outputs = dict(zip(snakemake.params.labels, map(Path, snakemake.output), strict=True))
    suite, context = snakemake.params.suite, snakemake.wildcards.get("context")
    config = narrowed(config, suite, int(context) if context else None)
    waiting_for_others(lambda: evaluate_suite(config, snakemake.wildcards.model, suite, outputs))
