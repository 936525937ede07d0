import json
import os
import re
import shlex
import sys
from pathlib import Path

from snakemake.utils import update_config

ROOT = Path(workflow.current_basedir.get_path_or_uri(secret_free=True)).parents[1]
sys.path.insert(0, str(ROOT / "src"))
PATHS = filter(None, [sys.path[0], os.getenv("PYTHONPATH")])
os.environ.update(PYTHONPATH=os.pathsep.join(PATHS))
# Snakemake puts this path into a job's shell command as it stands, where a space in it would end it.
sys.executable = shlex.quote(sys.executable)

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.plan import Plan, checked, config_path
from longdecode.evals.preflight import check, look
from longdecode.evals.config_values import read_yaml, retyped
from longdecode.learned import require_own


def refusing(act, *given, **named):
    """Do what may be refused; the error is all that the user sees."""
    try:
        return act(*given, **named)
    except LongDecodeError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


if image := os.environ.get("LONGDECODE_CONTAINER"):

    container: image


if not workflow.configfiles:

    configfile: str(refusing(config_path, ROOT, config.get("profile", "demo")))


GIVEN = dict(workflow.config_settings.config)
# A job's own process takes for granted what the first one has checked.
FIRST = workflow.is_main_process
# Snakemake's reader takes a key that stands twice in silence.
for file in workflow.configfiles if FIRST else ():
    refusing(read_yaml, Path(os.path.relpath(file)))
update_config(config, retyped(GIVEN))
# Snakemake tells targets after parsing only; tuning makes what the check asks for.
TUNING = "tune" in sys.argv[1:]
CHECKS = {"check_params": FIRST, "check_fairness": FIRST and not TUNING}
RUN = refusing(checked, config, workflow.configfiles, GIVEN, **CHECKS)
# None on a cluster, where `workflow.cores` would refuse.
CORES = workflow.resource_settings.cores
PLAN = refusing(
    Plan, RUN, ROOT, CORES, lambda: workflow.non_local_exec or workflow.remote_exec
)
if FIRST:
    refusing(PLAN.require_gpu_limit, workflow.global_resources)
    refusing(look, RUN, PLAN.made)
    PLAN.reopen()


onstart:
    """Look closely at what the jobs will need, then hold the profile while this workflow lives."""
    on_gpu = any(job.resources.get("gpu") for job in workflow.dag.needrun_jobs())
    refusing(check, RUN, PLAN.made, device=workflow.local_exec and on_gpu)
    refusing(require_own, RUN, PLAN.made)
    refusing(PLAN.hold_profile)


RESULTS, REPORT = PLAN.results, PLAN.report


def torch_threads(wildcards, threads) -> int:
    """Return torch's threads of a job: its share of this machine, or all that a cluster gave it."""
    return threads if CORES is None or workflow.remote_exec else PLAN.threads[1]


def one_of(names) -> str:
    """Return the pattern of a wildcard that takes these names alone."""
    return "|".join(map(re.escape, names)) or "none"


PART = {
    "suite": "{{model}}/{suite}",
    "context": "{{model}}/{suite}.{{context}}",
    "cell": "{{model}}/{{variant}}/{suite}.{{context}}",
}[RUN.jobs]
# A record's file; its variant is a wildcard of the job, or one of many that the job has.
RECORDS = f"{RESULTS}/records/{{{{model}}}}/{{{{variant}}}}/{{suite}}" + (
    ".parquet" if RUN.jobs == "suite" else ".{{context}}.parquet"
)


def variants_of(wildcards, variants) -> list[str]:
    """Return the variants of a job."""
    return [wildcards.variant] if RUN.jobs == "cell" else list(variants)


def part_of(wildcards, suite) -> dict:
    """Return what names a job of a suite: its model, and of a small job its variant and context."""
    if RUN.jobs == "suite":
        return {"model": wildcards.model, "suite": suite}
    return {**wildcards, "suite": suite, "context": int(wildcards.context)}


wildcard_constraints:
    job=one_of(PLAN.speed_jobs),
    context=r"\d+",
    variant=one_of(RUN.methods),
    model=one_of(RUN.models),
    role_run=one_of(RUN.role_trainings),
    fork=one_of(RUN.fork_trainings),
    writing=one_of(RUN.generation.runs),
