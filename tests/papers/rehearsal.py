"""Rehearse the papers' runs: config/papers with tiny random checkpoints, small data and short contexts, to the report.

``make rehearse`` runs all of them on a CPU, the tests one. Models and data are found where the configurations look for
them: checkpoints in a hub cache that is used offline, data sets in folders of the run's place. What differs is said by
``scaled``.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import typer
import yaml
from checkpoints import SPECIAL, VOCAB, write_checkpoint
from data_sets import DataSets

from fake_tokenizer import byte_level
from longdecode.analysis.declaration import AmbiguousQueryError, Tables, load_declarations
from longdecode.evals import manifest
from longdecode.evals.records import BaseRecord, Record, SpeedRecord
from longdecode.evals.run_config import RunConfig, load_run_config, record_files
from longdecode.evals.store import read_records

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ROOT / "config" / "papers"
SHORT, LONG = 512, 768
RIGHT = (("InfLLM-V2-Long-Sparse-Base", "has no chat template"), ("torch_cudnn", "CUDA"), ("flashinfer", "CUDA"))
"""Right reasons for no number: problems go through a chat template, which a base has not; a peer needs a GPU."""
SMALL = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())


def runs() -> list[str]:
    """Return the names of the papers' runs."""
    return sorted(path.stem for path in PAPERS.glob("*.yaml") if path.name != "sizes.yaml")


def scaled(name: str, cells: bool = False) -> dict[str, Any]:
    """Return a run's configuration for a CPU: methods, models, suites and rules as they are, sizes cut down.

    Args:
        cells: keep every task, budget and number of contexts, so that each printed number has a row.
    """
    values: dict[str, Any] = copy.deepcopy(yaml.safe_load((PAPERS / f"{name}.yaml").read_text()))
    budgets = values["budgets"] if cells else _budgets(values["budgets"])
    values |= {"device": "cpu", "dtype": "float32", "budgets": budgets}
    tasks = {suite: run.tasks for suite, run in load_run_config(PAPERS / f"{name}.yaml").suites.items()}
    if gates := values["methods"].get("seerattention_r"):
        gates["params"] = {"gates": "random:0"}
    for suite, spec in values["suites"].items():
        length = {**SMALL["contexts"], **(SMALL["whole"] if cells else {})}.get(suite, LONG)
        lengths = [length] if len(spec["contexts"]) == 1 else [min(SHORT, length), length]
        spec["contexts"] = [length - 64 * at for at in range(len(spec["contexts"]))][::-1] if cells else lengths
        spec["tasks"] = list(tasks[suite]) if cells else SMALL["tasks"].get(suite) or list(tasks[suite][:1])
        spec |= {"samples": 1, "batch": 8}  # several draws of a problem run at once
    for training in values.get("training", {}).values():
        training |= {"contexts": [1024], "steps": 2, "window": [4, 16]}
    timed, sized = values.get("throughput", ()), {"model": next(iter(values["models"]))}
    values["throughput"] = [grid | sized | SMALL["throughput"][grid["bench"]] for grid in timed]
    if traced := values.get("retrospection"):
        traced |= SMALL["retrospection"] | {"models": dict.fromkeys(traced["models"], SMALL["tasks"]["pg19_long"][0])}
    if writing := values.get("generation"):
        for sampler in writing["samplers"].values():
            sampler["penalty_window"] = sampler.get("penalty_window", 1024) // 8
        for run in writing["runs"].values():
            # A tree has no more rows than its prompt has tokens.
            run["prompts"] = [1024 if "tree_1999" in run["variants"] else prompt // 8 for prompt in run["prompts"]]
            run |= {"tokens": 64, "books": 1}
    return values


def _budgets(budgets: Sequence[Any]) -> list[Any]:
    """Return the least and the largest budget, in tokens an eighth of theirs."""
    small = [budget if isinstance(budget, float) else max(64, budget // 8) for budget in budgets]
    return list(dict.fromkeys((small[0], small[-1])))


@dataclass
class Outcome:
    """Seconds that a run took, its cells by status, and the reasons of those that are not ``ok``."""

    seconds: float
    statuses: Counter[str]
    reasons: Counter[str]


class Rehearsal:
    """A place with everything that the papers' runs read.

    Args:
        place: an empty folder.
        names: runs whose checkpoints are written.
    """

    def __init__(self, place: Path, names: Sequence[str]):
        self.place = place
        tokenizer = byte_level(DataSets(place).write(), VOCAB, SPECIAL)
        sizes = yaml.safe_load((PAPERS / "sizes.yaml").read_text())["checkpoints"]
        for model in sorted({spec["path"] for name in names for spec in scaled(name)["models"].values()}):
            write_checkpoint(place / "hf", model, sizes[model], tokenizer)
        kept = {key: value for key, value in os.environ.items() if key not in ("TRITON_INTERPRET", "HF_HOME")}
        self.environment = kept | {
            "CUDA_VISIBLE_DEVICES": "", "HF_HUB_CACHE": str(place / "hf"), "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src"),
        }  # fmt: skip

    def run(
        self, name: str, changes: Mapping[str, Any] | None = None, *, cores: int = 2, cells: bool = False
    ) -> Outcome:
        """Run one of the papers' configurations to its report, and once more, which must find nothing to do.

        Args:
            changes: values laid over the scaled configuration, key by key.

        Raises:
            RuntimeError: a step failed, or left evidence that its manifest does not have; the message is its output.
        """
        file = self.place / f"{name}.yaml"
        file.write_text(yaml.safe_dump(scaled(name, cells) | dict(changes or {}), sort_keys=False))
        config = load_run_config(file)
        began = time.monotonic()
        self._train_heads(config)
        self._snakemake(file, cores)
        seconds = time.monotonic() - began
        if "Nothing to be done" not in (said := self._snakemake(file, cores)):
            raise RuntimeError(f"{name} does not rest after its first run:\n{said}")
        for room in ("results", "reports"):
            if found := manifest.problems(self.place / room / config.profile):
                raise RuntimeError("\n".join(found))
        records = self._records(config)
        reasons = Counter(f"{r.variant}: {r.status}: {r.reason}" for r in records if r.status != "ok")
        return Outcome(seconds, Counter(record.status for record in records), reasons)

    def pairs(self, name: str) -> Iterator[tuple[str, str]]:
        """Yield each printed number of a run's models, and why it does not stand beside one row of the tables here."""
        run, made = load_run_config(PAPERS / f"{name}.yaml"), load_run_config(self.place / f"{name}.yaml")
        tables, lengths = Tables.read(self.place / "results" / made.profile), dict[Any, int]()
        for suite, spec in run.suites.items():
            lengths |= {(suite, old): new for old, new in zip(spec.contexts, made.suites[suite].contexts, strict=True)}
        for label, table in load_declarations(ROOT / "reporting" / "papers")[name.partition("-")[0]].tables.items():
            for row, column in product(table.rows, table.columns if table.ours else ()):
                query = table.ours.query_of(row, column) if isinstance(row.get(column), int | float) else None
                asked = query.where.get("model") if query else None
                if query and run.models.keys() & ({*asked} if isinstance(asked, list) else {asked}):
                    context = lengths.get((query.where.get("suite"), query.where.get("context")))
                    where = query.where | ({"context": context} if context else {})
                    try:
                        why = "" if tables.find(query.model_copy(update={"where": where})) else "no row"
                    except AmbiguousQueryError as error:
                        why = str(error)
                    yield f"{label} {column} {where}", why

    def _records(self, config: RunConfig) -> list[BaseRecord]:
        folder = self.place / "results" / config.profile
        files = [file.path(folder / "records") for file in record_files(config)]
        files += [folder / "generation" / f"{run}.parquet" for run in config.generation.runs]
        timed = [record for file in (folder / "speed").glob("*.parquet") for record in read_records(file, SpeedRecord)]
        return [*timed, *(record for file in files for record in read_records(file, Record))]

    def _train_heads(self, config: RunConfig) -> None:
        """Train draft heads by a recipe of this size; training/draft_heads/recipe.yaml has the paper's, for a GPU."""
        recipe = self.place / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(SMALL["recipe"]))
        for model, spec in config.models.items():
            folder = Path("results") / config.profile / "heads" / model
            named = {path for label in config.methods.values() for path in label.files_of(model)}
            sets = sorted(str(path.parent.relative_to(folder)) for path in named if folder in path.parents)
            if sets:
                self._do(
                    "longdecode.training.draft_heads.train", spec.path, str(config.data["pg19"]), str(folder),
                    "--name", model, "--sets", ",".join(sets), "--recipe", str(recipe), "--device", "cpu",
                )  # fmt: skip
                made = [path for path in (self.place / folder).rglob("*") if path.suffix in manifest.SUFFIXES]
                manifest.seal(self.place / "results" / config.profile, made)

    def _snakemake(self, file: Path, cores: int) -> str:
        places = ["--snakefile", str(ROOT / "Snakefile"), "--workflow-profile", str(ROOT / "profiles" / "default")]
        return self._do("snakemake", *places, "--cores", str(cores), "--configfile", str(file), "--", "all")

    def _do(self, module: str, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], cwd=self.place, env=self.environment, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{module} {' '.join(arguments)} in {self.place}:\n{done.stdout[-6000:]}")
        return done.stdout


def main(
    names: list[str] = typer.Argument(None), place: Path | None = None, cores: int = 2, cells: bool = False,  # noqa: B008
) -> None:  # fmt: skip
    """Rehearse the papers' runs named, all without a name, print their cells by status, and fail for a wrong one.

    ``place`` is a folder to work in and to keep; a temporary one without. ``cells`` keeps all tasks and budgets, and
    holds that each number in print of the runs' models stands beside one row.
    """
    names = names or runs()
    if unknown := set(names) - set(runs()):
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: the runs are {', '.join(runs())}")
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = (place or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        rehearsal = Rehearsal(folder, names)
        for name in names:
            try:
                outcome = rehearsal.run(name, {"jobs": "suite"}, cores=cores, cells=cells)
            except RuntimeError as error:
                failed += 1
                print(f"{name}: failed: {error}", flush=True)
                continue
            counts = ", ".join(f"{count} {status}" for status, count in sorted(outcome.statuses.items()))
            print(f"{name}: {outcome.seconds:.0f} s, records: {counts}", flush=True)
            for reason, count in outcome.reasons.most_common(8):
                print(f"    {count} x {reason[:300]}", flush=True)
            found = list(rehearsal.pairs(name)) if cells else []
            faults = [f"{cell}: {why}" for cell, why in found if why]
            said = [f"{len(found) - len(faults)} of {len(found)} printed numbers pair"] * cells + faults
            print("".join(f"    {line}\n" for line in said), end="", flush=True)
            right = all(any(all(p in reason for p in parts) for parts in RIGHT) for reason in outcome.reasons)
            failed += bool(faults) or not right
    raise SystemExit(min(failed, 1))


if __name__ == "__main__":
    typer.run(main)
