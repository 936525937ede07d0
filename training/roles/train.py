"""Learn head roles and write them with their history: ``python -m longdecode.training.roles.train --help``."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch

from longdecode.engine.device import lease_gpu, resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError, refuse_unknown
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance
from longdecode.evals.run_config import RunConfig, load_run_config
from longdecode.evals.training_spec import RoleTraining
from longdecode.methods.head_roles import RoleFile
from longdecode.training.files import run_commands
from longdecode.training.roles.artefacts import write_artefacts
from longdecode.training.roles.data.sources import sample_source
from longdecode.training.roles.roles import projected
from longdecode.training.roles.trainer import GATE_SNAPSHOTS, Trainer

TIME_USED = 0.95
"""Share of the time left that steps are planned for; the rest is for what no step was timed for."""


def train_roles(
    run: RoleTraining,
    folder: Path,
    device: torch.device,
    out_dir: Path,
    *,
    dtype: torch.dtype | None = None,
    data: Mapping[str, Path | None] | None = None,
    minutes: float | None = None,
) -> None:
    """Train one run and write roles.json, curve.csv, gates.csv and run.json below ``out_dir``, the roles last.

    Deterministic for a seed, a device, a dtype and a number of steps: samples, gate noise and schedule depend on
    nothing else.

    Args:
        folder: the checkpoint.
        dtype: of the frozen weights; left out, bfloat16 on CUDA and float32 elsewhere. Gates and losses are float32.
        data: places of data sets by name; see ``sample_source``.
        minutes: wall time from now; where a few timed steps say that the run's do not fit, it has as many as do.

    Raises:
        ConfigError, ContextLimitError, UnsupportedCellError: the run does not fit the model.
        DataUnavailableError: its data is not here.
    """
    started = time.perf_counter()
    dtype = dtype or resolve_dtype("auto", device)
    decoder = load_decoder(folder, device=device, dtype=dtype)
    source = sample_source(run, decoder, load_tokenizer(folder), data or {})
    trainer = Trainer(run, decoder, source)
    if minutes is not None:
        seconds = trainer.seconds_a_step()
        left = 60 * minutes - (time.perf_counter() - started)
        print(f"{run.name}: {seconds:.3f} s a step, {left:.0f} s left for {run.steps} steps", file=sys.stderr)
        if (steps := int(left * TIME_USED / seconds)) < GATE_SNAPSHOTS:
            raise ConfigError(f"run {run.name}: {minutes} minutes leave time for {max(0, steps)} steps; more is needed")
        if steps < run.steps:
            run = replace(run, steps=steps)
            trainer = Trainer(run, decoder, source)
    curve, gates = trainer.fit()
    scores = trainer.gates.score().tolist()
    for layer in range(run.first_role_layer):
        scores[layer] = [1.0] * len(scores[layer])  # never learned: these heads retrieve by rule
    roles = projected(scores, run.target_heads, run.first_role_layer)
    over = sum(value > 0.5 for row in scores for value in row)
    about = {
        "name": run.name, "kind": run.role_kind, "data": run.data, "seed": run.seed, "objective": run.objective,
        "settings": asdict(run) | {"gate_rate": run.gate_rate}, "read": list(source.read), "model": run.model,
        "model_hash": provenance.checkpoint_hash(folder), **provenance.origin(device),
        "dtype": str(dtype).removeprefix("torch."), "seconds": round(time.perf_counter() - started, 1),
        "heads": {"target": run.target_heads, "over_threshold": over, "stored": sum(map(sum, roles))},
    }  # fmt: skip
    brief = {name: about[name] for name in ("name", "data", "seed", "objective", "model_hash", "revision", "heads")}
    file = RoleFile(
        model=run.model,
        layers=decoder.config.num_layers,
        kv_heads=decoder.config.num_kv_heads,
        kind=run.role_kind,
        scores=[[float(f"{value:.6g}") for value in row] for row in scores],
        roles=[[int(role) for role in row] for row in roles],
        run=brief,
    )
    write_artefacts(out_dir, file, curve, gates, about)


def run_planned(
    config: RunConfig, name: str, out_dir: Path, device: str | None = None, minutes: float | None = None
) -> None:
    """Train one run of a configuration.

    Raises:
        ConfigError: there is no such run; the message gives the nearest name.
        LongDecodeError: as for ``train_roles``; or the model cannot be loaded.
    """
    runs = config.role_trainings
    refuse_unknown(str(config.source), "identification run", [name], runs)
    folder = config.models[runs[name].model].checkpoint()
    with lease_gpu(resolve_device(device or config.device)) as target:
        dtype = resolve_dtype(config.dtype, target)
        train_roles(runs[name], folder, target, out_dir, dtype=dtype, data=config.data, minutes=minutes)


def run(
    config: Path = Path("config/h200.yaml"), runs: str = "", out: Path | None = None, device: str | None = None,
    minutes: float | None = None,
) -> None:  # fmt: skip
    """Train the runs asked for, one after another.

    Args:
        config: a configuration file.
        runs: names of runs, with commas between; all without.
        out: folder; left out, results/<profile>/identification/<model>.
        device: instead of the configuration's.
        minutes: wall time of each run; it has fewer steps where its own take longer.
    """
    settings = load_run_config(config)
    for name in runs.split(",") if runs else settings.role_trainings:
        model = settings.role_trainings[name].model if name in settings.role_trainings else ""
        folder = (out or Path("results") / settings.profile / "identification" / model) / name
        run_planned(settings, name, folder, device, minutes)
        print(folder / "roles.json")


if __name__ == "__main__":
    run_commands(run)
