"""Write what the instrument checks found; whether the run may go on is the next rule's to say."""

from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.engine.errors import GateError
    from longdecode.evals.instrument import check_instrument
    from longdecode.evals.run_config import load_run_config

    config = Path(snakemake.input.config)
    try:
        check_instrument(load_run_config(config), config.parent / "records", Path(snakemake.output[0]))
    except GateError as error:
        print(error)
