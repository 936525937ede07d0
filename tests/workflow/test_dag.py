"""The DAG as it is planned: jobs, their order, threads and GPUs, lint, and a parse that stays fast."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from longdecode.evals import fingerprint
from longdecode.evals.plan import Plan
from longdecode.evals.run_config import build_run_config, load_run_config

ROOT = Path(__file__).resolve().parents[2]
OTHER_RULES = {"gate", "tables", "report", "all"}
DECODE = [{"bench": "decode", "model": "random", "contexts": [512], "budgets": [64]}]
ROLES = {"recipe": "hardkuma", "model": "random", "heads": 2, "contexts": [64]}


def planned(output: str) -> dict[str, int]:
    """Jobs per rule in a dry run's table."""
    return {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE)}


def test_demo_is_the_default_and_has_one_job_per_model_and_suite(snakemake: Any) -> None:
    config = yaml.safe_load((ROOT / "config" / "demo.yaml").read_text())
    shown = snakemake("-n", check=True).stdout
    assert "reports/demo/index.html" in shown
    jobs = planned(shown)
    assert jobs.pop("total") == sum(jobs.values())
    for suite in config["suites"]:
        assert jobs.pop(f"evaluate_{suite}") == len(config["models"])
    assert jobs.pop("throughput") == 2  # the kernels' job and the one model's
    assert jobs == dict.fromkeys(OTHER_RULES, 1)


def test_all_asks_for_every_file_that_was_made(snakemake: Any, tmp_path: Path) -> None:
    """A removed file that the manifest names is made again by the next run, however new the report is."""
    (manifest := tmp_path / "results" / "tiny" / "manifest.txt").parent.mkdir(parents=True)
    for _ in range(2):
        shown = snakemake("-n", "--config", "profile=tiny", check=True).stdout.replace(" (update)", "")
        made = {path for line in re.findall(r"^    output: (.*)", shown, re.MULTILINE) for path in line.split(", ")}
        manifest.write_text("".join(f"{'0' * 64}  {path.removeprefix('results/tiny/')}\n" for path in made))
    (asked,) = re.findall(r"^rule all:\n    input: (.*)", shown, re.MULTILINE)
    assert len(made) > 20 and made == {*asked.split(", ")}


def test_times_alone_score_nothing_and_what_is_done_needs_no_gpu_here(snakemake: Any, write_config: Any) -> None:
    path = str(write_config(device="cuda", throughput=DECODE))
    jobs = planned(snakemake("-n", "times", "--configfile", path, check=True).stdout)
    assert set(jobs) == {"times", "throughput", "gate", "total"}
    refused = snakemake("times", "--configfile", path, "--cores", "1")
    assert refused.returncode and "device 'cuda' asked for" in refused.stdout


def test_roles_and_gates_come_before_what_reads_them(snakemake: Any, write_config: Any) -> None:
    methods = {
        "full": {},
        "lychee": {"params": {"roles": "results/trial/identification/random/kuma/roles.json"}},
        "lychee_even": {"method": "lychee", "params": {"roles": "spread", "retrieval_heads": 2}},
        "timed": {"method": "quest", "suites": []},
    }
    training = {"kuma": ROLES, "other": ROLES}
    path = write_config(methods=methods, training=training, device="cuda", throughput=DECODE, allow_untuned=True)
    targets = ["results/trial/records/random/lychee/mini_recall.parquet", "results/trial/speed/random.parquet"]
    shown = snakemake("-n", "--configfile", path, "--", *targets, check=True).stdout
    jobs = planned(shown)
    assert (jobs["train_roles"], jobs["evaluate_mini_recall"], jobs["throughput"]) == (1, 1, 1)
    assert jobs["gate"] == 1 and "gate/timed.json" in shown and set(re.findall(r"gpu=(\d)", shown)) == {"1"}


def test_jobs_by_context_have_all_variants(snakemake: Any, write_config: Any) -> None:
    suite = {"contexts": [256, 320], "samples": 1, "tasks": ["mini_recall_single"]}
    path = write_config(jobs="context", suites={"mini_recall": suite}, methods={"full": {}, "quest": {}})
    shown = snakemake("-n", "--configfile", path, "--", "scores", check=True).stdout
    jobs = planned(shown)
    assert (jobs["evaluate_mini_recall"], jobs["gate"]) == (2, 1) and "tables" not in jobs
    outputs = [line for line in shown.splitlines() if "output:" in line and "records/" in line]
    assert len(outputs) == 2 and all("random/full/" in line and "random/quest/" in line for line in outputs)


@pytest.mark.parametrize("profile", ["h200", "lychee", "tiny"])
def test_a_profile_has_the_files_that_it_asks_for(profile: str) -> None:
    run = load_run_config(ROOT / "config" / f"{profile}.yaml")
    plan = Plan(run, ROOT)
    files = {suite: len(spec.contexts) if run.jobs == "context" else 1 for suite, spec in run.suites.items()}
    wanted = sum(files[suite] for variant in run.methods for suite in run.suites_of(variant)) * len(run.models)
    assert len(set(plan.records)) == len(plan.records) == wanted and len(plan.role_files) == len(run.role_trainings)
    gates = plan.gate_files(run.methods)
    assert 1 < len(gates) <= len(run.methods)
    assert all(set(plan.gate_files([variant])) <= set(gates) for variant in run.methods)
    assert bool(plan.speed_records) == bool(run.throughput)


def test_settings_change_with_what_the_records_depend_on(write_config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(**changes: Any) -> Plan:
        values = yaml.safe_load(write_config(throughput=DECODE, training={"kuma": ROLES}, **changes).read_text())
        return Plan(build_run_config(values, "c"), ROOT)

    def settings(plan: Plan) -> tuple[str, ...]:
        return (
            plan.depends("evaluate", model="random", suite="mini_recall"), plan.depends("throughput", job="random"),
            plan.depends("gate"), plan.depends("train_roles", role_run="kuma"),
        )  # fmt: skip

    def content(path: Path, *version: int) -> tuple[str, frozenset[str]]:
        return "" if path == ROOT / edited else hashed(path, *version)[0], hashed(path, *version)[1]

    hashed, edited, first = fingerprint._content, "", settings(plan())
    monkeypatch.setattr(fingerprint, "_content", content)
    for edited, changes, same in (
        ("", {"pilot": True}, (True, True, True, True)),
        ("", {"seed": 1}, (False, False, False, False)),
        ("", {"budgets": [0.25]}, (False, True, False, True)),
        ("", {"methods": {"full": {}, "quest": {"params": {"page_size": 8}}}}, (False, False, False, True)),
        ("training/loop.py", {}, (True, True, True, False)),
        ("kernels/score_rows.py", {}, (False, False, False, True)),
    ):
        assert tuple(a == b for a, b in zip(first, settings(plan(**changes)), strict=True)) == same, (edited, changes)


@pytest.mark.parametrize("cores", [1, 2, 6, 8])
def test_jobs_fill_the_machine_once(write_config: Any, cores: int) -> None:
    values = yaml.safe_load(write_config(throughput=DECODE).read_text())
    plan = Plan(build_run_config(values, "c"), ROOT, cores)
    processors = len(os.sched_getaffinity(0))
    threads, torch_threads = plan.threads
    assert max(1, cores // threads) * torch_threads <= max(processors, 1)
    assert plan.gpus() == 0 and plan.speed_threads[0] == cores  # timing on a CPU leaves no core to others


def test_no_rule_names_its_inputs_by_reference() -> None:
    """Beside `rules.x.output` Snakemake compares every input with all others: minutes where there are 10,000."""
    for file in (ROOT / "workflow" / "rules").glob("*.smk"):
        assert not re.search(r"\brules\.\w+\.(output|input)", re.sub(r"#.*", "", file.read_text())), file.name


def test_lint_finds_nothing(snakemake: Any) -> None:
    done = snakemake("--lint")
    assert done.returncode == 0, done.stdout


def test_planning_in_a_job_does_not_import_torch() -> None:
    code = (
        "import sys; sys.path.insert(0, 'src'); from pathlib import Path\n"
        "from longdecode.evals.plan import Plan\n"
        "import yaml; from longdecode.evals.run_config import build_run_config\n"
        "plan = Plan(build_run_config(yaml.safe_load(open('config/demo.yaml')), 'c', check_params=False), Path())\n"
        "plan.depends('evaluate', model='miniature', suite='mini_recall'), plan.depends('gate')\n"
        "print('torch' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True).strip() == "False"
