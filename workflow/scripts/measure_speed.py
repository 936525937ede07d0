"""Run one throughput job; journalled, so that a killed job goes on at its next record."""

import sys
import time
from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.journal import JournalLockedError
    from longdecode.evals.run_config import build_run_config
    from longdecode.evals.throughput.measure import measure_speed

    config = build_run_config(snakemake.config, "configuration", check_params=False)
    waiting = False
    while True:
        try:
            measure_speed(config, snakemake.wildcards.job, Path(snakemake.output[0]))
            break
        except JournalLockedError as error:
            # A job may outlive a workflow that was killed; what it writes is taken over when it ends.
            if not waiting:
                print(f"{error}; waiting for it to end", file=sys.stderr)
            waiting = True
            time.sleep(1)
