import json
import os
import re
import sys
from pathlib import Path

from snakemake.utils import update_config

ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
SOURCES = str(ROOT / "src")
sys.path.insert(0, SOURCES)
os.environ.update(
    PYTHONPATH=os.pathsep.join(filter(None, [SOURCES, os.getenv("PYTHONPATH")]))
)

from longdecode.evals.plan import Plan, checked, config_path, retyped

if not workflow.configfiles:

    configfile: str(config_path(ROOT, config.get("profile", "demo")))


GIVEN = dict(workflow.config_settings.config)
FIRST = (
    workflow.is_main_process
)  # a job's own process takes for granted what the first one has checked
update_config(config, retyped(GIVEN))
# Snakemake tells targets after parsing only; tuning makes what the check asks for.
TUNING = "tune" in sys.argv[1:]
RUN = checked(
    config,
    workflow.configfiles,
    GIVEN,
    check_params=FIRST,
    check_fairness=FIRST and not TUNING,
)
PLAN = Plan(RUN, ROOT, workflow.cores)
if FIRST:
    PLAN.require_gpu_limit(workflow.global_resources)

RESULTS, REPORT = PLAN.results, PLAN.report


def one_of(names) -> str:
    """Return the pattern of a wildcard that takes these names alone."""
    return "|".join(map(re.escape, names)) or "none"


wildcard_constraints:
    job=one_of(PLAN.speed_jobs),
    label=one_of(RUN.methods),
    model=one_of(RUN.models),
    role_run=one_of(RUN.identification.runs),
    fork=one_of(RUN.adaptation.runs),
