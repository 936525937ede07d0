"""Check a label's method and its launches and write the outcome, whatever it is; say what is refused."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.engine.device import resolve_device
    from longdecode.engine.gpu_lease import lease_gpu
    from longdecode.evals.gate import Gate, GateFile
    from longdecode.evals.run_config import build_run_config, granted

    config = granted(build_run_config(snakemake.config, "configuration", check_params=False), snakemake.resources.gpu)
    with lease_gpu(resolve_device(config.device)) as device:
        path = Path(snakemake.output[0])
        Gate(config, device, path.parent).run(snakemake.wildcards.label)
    file = GateFile.model_validate_json(path.read_text(encoding="utf-8"))
    for outcome in (*file.verdicts, *file.launches.values()):
        if outcome.refusal is not None:
            print(f"{snakemake.wildcards.label} ({outcome.status}), its cells stay empty: {outcome.refusal}")
