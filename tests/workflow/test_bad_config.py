"""A wrong configuration ends at parse time with its own message: file, key, value, nearest valid name."""

from __future__ import annotations

from typing import Any

import pytest

SUITE = {"contexts": [1024], "samples": 2}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"methods": {"qwest": {}}}, ("methods.qwest", "'qwest'", "nearest valid name: 'quest'")),
        ({"methods": {"mine": {"method": "tidall"}}}, ("methods.mine.method", "nearest valid name: 'tidal'")),
        ({"methods": {"quest": {"params": {"varient": "x"}}}}, ("varient", "nearest valid name: 'variant'")),
        (
            {"suites": {"mini_recall": SUITE | {"tasks": ["mini_recall_singel"]}}},
            ("suites.mini_recall.tasks", "nearest valid name: 'mini_recall_single'"),
        ),
        ({"suites": {"mini_recall": SUITE | {"sample": 3}}}, ("suites.mini_recall.sample", "'samples'")),
        ({"seeds": 3}, ("seeds", "nearest valid name: 'seed'")),
        ({"budgets": [0.1, 0]}, ("budgets", "0;")),
    ],
)
def test_refused(snakemake: Any, write_config: Any, changes: dict[str, Any], expected: tuple[str, ...]) -> None:
    path = write_config(**changes)
    done = snakemake("-n", "--configfile", str(path))
    assert done.returncode != 0
    message = done.stdout.strip().splitlines()[-1]
    assert all(part in message for part in (path.name, *expected)), done.stdout
    assert "Traceback" not in done.stdout and "Error in file" not in done.stdout


def test_unknown_profile_names_the_nearest(snakemake: Any) -> None:
    done = snakemake("-n", "--config", "profile=h20")
    assert done.returncode != 0
    assert "nearest valid name: 'h200'" in done.stdout.splitlines()[-1]


def test_values_from_the_command_line_keep_their_types(snakemake: Any, write_config: Any) -> None:
    path = write_config()
    assert snakemake("-n", "--configfile", str(path), "--config", "budgets=[0.1, 64]").returncode == 0
    done = snakemake("-n", "--configfile", str(path), "--config", "budgets=[0.1, 0]")
    assert done.returncode != 0
    assert f"{path.name} with --config budgets: budgets: 0;" in done.stdout


def test_cuda_without_a_gpu_limit_is_refused(snakemake: Any, write_config: Any) -> None:
    path = write_config(device="cuda")
    assert snakemake("-n", "--configfile", str(path)).returncode == 0
    done = snakemake("-n", "--configfile", str(path), "--resources", "mem_mb=1000")
    assert done.returncode != 0
    assert "--resources gpu=1" in done.stdout.splitlines()[-1]
