"""The gate: a variant's conformance on a device, checked once and kept in a file that the jobs read.

Its first part runs the conformance suite on a tiny model, its second the kernels of the run's own launches.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from longdecode.engine.errors import GateError, LongDecodeError, UnsupportedCellError
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.fingerprint import gate_code_hash
from longdecode.evals.manifest import seal
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import replacing, results_root

if TYPE_CHECKING:
    import torch

    from longdecode.engine.model_config import ModelConfig
    from longdecode.methods.conformance_launches import Place

CACHE_BYTES = 6_000_000_000
"""Most that a check's cache takes on a GPU; its definitions take as much again in float32, twice."""
CPU_CONTEXT, CPU_BATCH = 1024, 2


@dataclass(frozen=True, slots=True)
class Launches:
    """The largest launches of a method on one model under one set of portable parameters: tokens, rows, budgets."""

    model: str
    params: Mapping[str, Any]
    context: int = 0
    batch: int = 0
    budgets: tuple[Budget, ...] = ()


class Verdict(BaseModel):
    """Outcome for one set of parameters on one model; ``checked`` names launches (tokens x rows at a budget)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    params: dict[str, Any]
    status: Literal["passed", "failed_gate", "unsupported"] = "passed"
    message: str = ""
    checked: tuple[str, ...] = ()

    @property
    def refusal(self) -> Exception | None:
        """The error that bars the variant on this model from a table."""
        kinds: dict[str, type[Exception]] = {"failed_gate": GateError, "unsupported": UnsupportedCellError}
        return kinds[self.status](self.message) if self.status in kinds else None


class GateFile(BaseModel):
    """The verdicts on all variants that share a gate, and what they hold for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    device: str
    code_hash: str
    revision: str
    dirty: bool
    versions: dict[str, str]
    verdicts: tuple[Verdict, ...]


class Gate:
    """The gate of a run on a device.

    Args:
        config: the run.
        device: where conformance is checked.
        folder: of the gate files.
    """

    def __init__(self, config: RunConfig, device: torch.device, folder: Path):
        self.config, self.device, self.folder = config, device, folder

    def run(self, variant: str) -> GateFile:
        """Check all that share a variant's gate, on every model they run on, and write the file."""
        from longdecode.engine.device import device_name
        from longdecode.evals import provenance

        method = self.config.methods[variant].method
        conforms = cache(lambda params: _conformance(method, self.device, json.loads(params)))
        verdicts = []
        for launches in launches_of(self.config, variant):
            status, message = conforms(json.dumps(launches.params, sort_keys=True))
            verdict = Verdict(model=launches.model, params=dict(launches.params), status=status, message=message)
            verdicts.append(_check_launches(self.config, method, launches, self.device, verdict))
        file = GateFile(
            method=method, device=device_name(self.device), code_hash=gate_code_hash(method),
            revision=provenance.revision(), dirty=provenance.is_dirty(), versions=provenance.versions(),
            verdicts=tuple(verdicts),
        )  # fmt: skip
        path = self.folder / f"{variant}.json"
        with replacing(path) as temporary:
            temporary.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
        seal(self.folder.parent, [path])
        return file

    def refusal(self, variant: str, model: str) -> Exception | None:
        """Return the error that bars a variant from the cells of a model: of its file, or of a check made now.

        A file that is missing, or holds for another device or other code, is written anew.
        """
        gated, params = self.config.gate_of(variant), self.config.methods[variant].portable(model)
        for read in (self._read, self.run):
            for verdict in file.verdicts if (file := read(gated)) else ():
                if (verdict.model, verdict.params) == (model, params):
                    return verdict.refusal
        return GateError(f"{variant} is neither scored nor timed on {model}: its gate has no verdict")

    def _read(self, variant: str) -> GateFile | None:
        """Return a variant's file where it holds for this device and code."""
        from longdecode.engine.device import device_name

        path = self.folder / f"{variant}.json"
        try:
            file = GateFile.model_validate_json(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValidationError):
            return None
        return (
            file if (file.device, file.code_hash) == (device_name(self.device), gate_code_hash(file.method)) else None
        )


def gate_folder(output: Path) -> Path:
    """Return the folder of gate files, given the file of a job."""
    return results_root(output) / "gate"


def launches_of(run: RunConfig, variant: str) -> list[Launches]:
    """Return the largest launches of all variants that share a variant's gate, by model and parameters."""
    method, found = run.methods[variant].method, dict[str, Launches]()
    for name, spec in run.methods.items():
        if spec.method != method or run.gate_of(name) != variant:
            continue
        for model, context, batch, budgets in (*_scored(run, name), *_timed(run, name), *_written(run, name)):
            params = spec.portable(model)
            key = json.dumps([model, params], sort_keys=True, default=str)
            known = found.get(key, Launches(model, params))
            tokens = tuple(dict.fromkeys((*known.budgets, *(b for b in budgets if not b.of_bytes))))
            found[key] = Launches(model, params, max(known.context, context), max(known.batch, batch), tokens)
    return list(found.values())


_Sizes = Iterator[tuple[str, int, int, tuple[Budget, ...]]]


def _scored(run: RunConfig, variant: str) -> _Sizes:
    suites = [run.suites[suite] for suite in run.suites_of(variant)]
    for model in run.models if suites else ():
        if run.methods[variant].runs_on(model):
            context = max(max(suite.contexts) for suite in suites)
            yield model, context, max(min(suite.batch, suite.samples) for suite in suites), run.budgets_of(variant)


def _written(run: RunConfig, variant: str) -> _Sizes:
    """Yield what long generation launches: one row, the prompt and all that is written after it."""
    for spec in run.generation.runs.values() if run.generation else ():
        if variant in spec.named:
            yield spec.model, max(spec.prompts) + spec.tokens, 1, spec.budgets or run.budgets_of(variant)


def _timed(run: RunConfig, variant: str) -> _Sizes:
    takes_budget = run.methods[variant].takes_budget
    for model, spec in run.throughput.decode.items() if run.throughput else ():
        places = [(c, b) for c in spec.contexts for b in spec.batches if spec.times(variant, c, b)]
        if variant in spec.methods and places:
            budgets = spec.budgets_of(variant) if takes_budget else (FULL_BUDGET,)
            yield model, max(c for c, _ in places), max(b for _, b in places), budgets
    shared = run.throughput.equal_memory if run.throughput else None
    if shared and takes_budget and variant in shared.methods:
        yield shared.model, max(shared.contexts), shared.max_batch, (shared.tokens,)
    elif shared and run.methods[variant].method == "full":
        yield shared.model, max(shared.contexts), shared.sequences, (FULL_BUDGET,)
    own = run.throughput.own_choices if run.throughput else None
    if own and variant in own.labels:
        rows, budgets = (own.max_batch, own.tokens) if takes_budget else (own.sequences, (FULL_BUDGET,))
        yield own.labels[variant], max(own.contexts), rows, budgets


def check_method(method: str, device: torch.device, params: dict[str, Any]) -> None:
    """Run the conformance suite, which a job that finds a file has no use for."""
    from longdecode.methods import conformance

    conformance.check_method(method, device, params)


def _conformance(method: str, device: torch.device, params: dict[str, Any]) -> tuple[Any, str]:
    """Return the status of the conformance suite and why it was not passed."""
    try:
        check_method(method, device, params)
    except (GateError, UnsupportedCellError) as error:
        return "failed_gate" if isinstance(error, GateError) else "unsupported", str(error)
    return "passed", ""


def _check_launches(run: RunConfig, method: str, launches: Launches, device: torch.device, verdict: Verdict) -> Verdict:
    """Return a verdict with what its launches add; where a model or the memory is not there, they add nothing."""
    import torch

    from longdecode.engine.device import resolve_dtype
    from longdecode.evals.failures import free_memory
    from longdecode.methods.conformance_launches import check_launches

    if verdict.status != "passed":
        return verdict
    dtype, checked = resolve_dtype(run.dtype, device), list[str]()
    problem: Exception | None = None
    try:
        config = _model_config(run, launches)
        for place in places(launches, config, device, dtype):
            budget = _budget(launches, place.context)
            check_launches(method, config, launches.params, budget, place, device, dtype, seed=run.seed)
            checked.append(f"{place.context} tokens x {place.batch}{'' if budget is None else f', budget {budget}'}")
    except Exception as error:  # whatever a kernel raises at such a size fails it
        problem = error
    free_memory(device, problem)
    said = "" if problem is None else f"on {launches.model}: {type(problem).__name__}: {problem}"
    fits = isinstance(problem, LongDecodeError | torch.cuda.OutOfMemoryError | None)
    failed = isinstance(problem, GateError) or not fits
    status: Literal["passed", "failed_gate"] = "failed_gate" if failed else "passed"
    return verdict.model_copy(update={"status": status, "message": said, "checked": tuple(checked)})


def places(launches: Launches, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> list[Place]:
    """Return where launches are checked: the longest context with the rows that fit, all rows at the context that fits.

    Raises:
        UnsupportedCellError: the device has no room for one row of ``CPU_CONTEXT`` tokens.
    """
    import torch

    from longdecode.methods.conformance_launches import Place

    if device.type == "cpu":
        return [Place(min(launches.context, CPU_CONTEXT), min(launches.batch, CPU_BATCH))]
    room = min(CACHE_BYTES, torch.cuda.mem_get_info(device)[0] // 4)
    token = Place(1, 1).cache_bytes(config, dtype)
    rows = max(1, min(launches.batch, room // (launches.context * token)))
    longest = Place(min(launches.context, room // token), rows)
    widest = Place(min(launches.context, room // (launches.batch * token)), launches.batch)
    least = min(launches.context, CPU_CONTEXT)
    found = [place for place in dict.fromkeys((longest, widest)) if place.context >= least]
    if not found:
        raise UnsupportedCellError(f"{least} tokens take {least * token:,} bytes, {room:,} may be used on {device}")
    return found


def _model_config(run: RunConfig, launches: Launches) -> ModelConfig:
    from longdecode.engine.config_reader import read_config, resolve_checkpoint
    from longdecode.evals.throughput.models import shape_config

    if (model := run.models.get(launches.model)) is None:
        return shape_config(launches.model, launches.context)
    return read_config(resolve_checkpoint(model.path, model.revision))


def _budget(launches: Launches, context: int) -> int | None:
    """Return the largest of the budgets in tokens that leaves something out here; else a tenth of the context."""
    tokens = [budget.tokens(context) for budget in launches.budgets]
    return None if None in tokens else max((n for n in tokens if n and n < context), default=context // 10)
