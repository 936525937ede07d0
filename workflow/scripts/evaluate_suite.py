"""Score a suite on one model with all its labels; journalled, so that a killed job goes on at its next batch."""

import sys
import time
from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.evals.evaluate import evaluate_suite
    from longdecode.evals.journal import JournalLockedError
    from longdecode.evals.run_config import build_run_config

    config = build_run_config(snakemake.config, "configuration", check_params=False)
    outputs = dict(zip(snakemake.params.labels, map(Path, snakemake.output), strict=True))
    waiting = False
    while True:
        try:
            evaluate_suite(config, snakemake.wildcards.model, snakemake.params.suite, outputs)
            break
        except JournalLockedError as error:
            # A job may outlive a workflow that was killed; what it writes is taken over when it ends.
            if not waiting:
                print(f"{error}; waiting for it to end", file=sys.stderr)
            waiting = True
            time.sleep(1)
