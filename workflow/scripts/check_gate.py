"""Check a label's method and its launches and write the outcome, whatever it is."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.engine.device import resolve_device
    from longdecode.engine.gpu_lease import lease_gpu
    from longdecode.evals.gate import Gate
    from longdecode.evals.run_config import build_run_config, granted

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    with lease_gpu(resolve_device(config.device)) as device:
        Gate(config, device, Path(snakemake.output[0]).parent).run(snakemake.wildcards.label)
