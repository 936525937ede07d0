"""Write the configuration as it was run."""

import json
from pathlib import Path

import yaml
from job_log import logged

with logged(snakemake):
    text = yaml.safe_dump(json.loads(snakemake.params.config), sort_keys=False)
    Path(snakemake.output[0]).write_text(text, encoding="utf-8")
