"""End the run when an instrument check failed."""

import json
from pathlib import Path

from job_log import logged

with logged(snakemake):
    from longdecode.engine.errors import GateError

    path = Path(snakemake.input[0])
    checks = json.loads(path.read_text(encoding="utf-8"))["checks"]
    failed = [
        f"  {check['name']}: {check['requires']}; got {check['numbers']}"
        for check in checks
        if check["outcome"] == "failed"
    ]
    if failed:
        raise GateError("\n".join([f"{len(failed)} of {len(checks)} instrument checks failed ({path}):", *failed]))
