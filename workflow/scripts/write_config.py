"""Write the configuration as it was run."""

import json
from pathlib import Path

import yaml
from job_log import logged

with logged(snakemake):
    from longdecode.evals.store import replacing

    text = yaml.safe_dump(json.loads(snakemake.params.config), sort_keys=False)
    path = Path(snakemake.output[0])
    with replacing(path, len(text)) as temporary:
        temporary.write_text(text, encoding="utf-8")
