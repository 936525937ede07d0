"""The DAG as it is planned: jobs per profile, what makes a job run again, lint, and a parse that stays fast."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROFILES = ("demo", "h200", "tiny")
OTHER_RULES = {
    "write_config", "aggregate", "check_instrument", "require_instrument", "speed_summary", "report", "all",
}  # fmt: skip


def planned(output: str) -> dict[str, int]:
    """Jobs per rule in a dry run's table."""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE)}


@pytest.mark.parametrize("profile", PROFILES)
def test_one_job_per_model_and_suite(snakemake: Any, profile: str) -> None:
    config = yaml.safe_load((ROOT / "config" / f"{profile}.yaml").read_text())
    jobs = planned(snakemake("-n", "--config", f"profile={profile}", check=True).stdout)
    assert jobs.pop("total") == sum(jobs.values())
    for suite in config["suites"]:
        assert jobs.pop(f"evaluate_{suite}") == len(config["models"])
    # Roles that are there are not learned again; those of the profile h200 are committed.
    wanted = config.get("identification") or {}
    assert jobs.pop("train_roles", 0) in (0, len(wanted.get("runs", {})))
    assert jobs.pop("overlap", 0) <= int("overlap" in wanted)
    assert jobs.pop("throughput") == 1 + len(config["throughput"]["decode"])  # the kernels' job and one a model
    assert jobs == dict.fromkeys(OTHER_RULES, 1)


def test_throughput_runs_where_it_is_asked_for(snakemake: Any, write_config: Any) -> None:
    without = planned(snakemake("-n", "--configfile", str(write_config()), check=True).stdout)
    assert not {"throughput", "speed_summary"} & set(without)
    decode = {"random": {"contexts": [512], "batches": [1], "budgets": [64]}}
    path = write_config(throughput={"decode": decode})
    jobs = planned(snakemake("-n", "--configfile", str(path), check=True).stdout)
    assert (jobs["throughput"], jobs["speed_summary"]) == (2, 1)


def test_roles_are_learned_before_what_reads_them(snakemake: Any, write_config: Any) -> None:
    roles = "results/{profile}/identification/random/kuma/roles.json"
    runs = {
        "kuma": {"model": "random", "target_heads": 2, "contexts": [64]},
        "other": {"model": "random", "target_heads": 2, "contexts": [64]},
    }
    profile = yaml.safe_load(Path(write_config()).read_text())["profile"]
    methods = {"full": {}, "lychee": {"params": {"roles": roles.format(profile=profile)}}}
    path = str(write_config(methods=methods, identification={"runs": runs}))
    assert planned(snakemake("-n", "--configfile", path, "--", "lychee_train", check=True).stdout)["train_roles"] == 2
    records = f"results/{profile}/records/random/lychee/mini_recall.parquet"
    jobs = planned(snakemake("-n", "--configfile", path, "--", records, check=True).stdout)
    assert (jobs["train_roles"], jobs["evaluate_mini_recall"]) == (1, 1)


def test_timing_on_a_cpu_leaves_no_core_to_others(snakemake: Any, write_config: Any) -> None:
    decode = {"random": {"contexts": [512], "batches": [1], "budgets": [64]}}
    path = write_config(throughput={"decode": decode})
    shown = snakemake("-n", "--cores", "6", "--configfile", str(path), check=True).stdout
    timing = [block for block in shown.split("rule ") if block.startswith("throughput:")]
    assert len(timing) == 2 and all("threads: 6" in block for block in timing)


def test_demo_is_the_default_and_all_the_target(snakemake: Any) -> None:
    bare = snakemake("-n", check=True).stdout
    named = snakemake("-n", "--config", "profile=demo", "--", "all", check=True).stdout
    assert planned(bare) == planned(named)
    assert "reports/demo/index.html" in bare


def test_cuda_jobs_hold_a_gpu_and_cpu_jobs_none(snakemake: Any, write_config: Any) -> None:
    for device, gpus in (("cuda", 1), ("cpu", 0)):
        path = write_config(device=device)
        shown = snakemake("-n", "--configfile", str(path), check=True).stdout
        assert set(re.findall(r"gpu=(\d)", shown)) == {str(gpus)}


def test_jobs_fill_the_machine_once(snakemake: Any, write_config: Any) -> None:
    path = write_config()
    for cores in (1, 8):
        shown = snakemake("-n", "--cores", str(cores), "--configfile", str(path), check=True).stdout
        threads = {int(count) for count in re.findall(r"threads: (\d+)", shown)} or {1}
        torch_threads = {int(count) for count in re.findall(r"torch_threads=(\d+)", shown)}
        assert len(threads) == len(torch_threads) == 1
        processors = int(subprocess.check_output(["nproc"], env={"PATH": "/usr/bin:/bin"}))
        at_once = max(1, cores // max(threads))
        assert at_once * max(torch_threads) <= max(processors, 1)


def test_lint_finds_nothing(snakemake: Any) -> None:
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout


def test_reading_a_configuration_without_parameters_does_not_import_torch() -> None:
    code = (
        "import sys; sys.path.insert(0, 'src'); from pathlib import Path\n"
        "from longdecode.evals.run_config import load_run_config\n"
        "from longdecode.evals.hashing import quality_code_hash\n"
        "load_run_config(Path('config/bench.yaml')); quality_code_hash('quest', 'longdecode.evals.tasks.passkey')\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "False"
