"""The ``throughput`` key of a configuration: a list of grids, each one kind of benchmark at some sizes.

Its models may be shapes of published ones with random weights: speed does not depend on what weights hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from longdecode.evals import config_values as typed
from longdecode.evals.budgets import TokenBudgets

KERNELS, EQUAL_MEMORY, OWN_CHOICES = "kernels", "equal_memory", "own_choices"
SHARED_JOBS = {KERNELS: "kernels", EQUAL_MEMORY: "equal_memory", OWN_CHOICES: "equal_memory"}
"""Kinds with one job for all their grids, of the same name, each with the module of this room that times it. The other
grids belong to the job of their model."""
FULL = "full"
MAX_BATCH = 64
"""Most sequences of a variant where memory decides."""
WARMUP_BLOCKS, GRAPH_WARMUP_STEPS = 2, 2
"""Blocks that run before the first round, and steps before a graph's capture."""
ROWS_OP = "decode_attention_rows"
OPS: Mapping[str, tuple[str, ...]] = {
    "decode_attention": ("contexts",),
    ROWS_OP: ("contexts", "rows"),
    "sparse_decode_attention": ("contexts", "budgets"),
    "sparse_decode_attention_tokens": ("contexts", "budgets"),
    "hybrid_attention": ("contexts", "budgets", "full_heads"),
    "page_score": ("contexts",),
    "topk_select": ("contexts", "budgets"),
    **dict.fromkeys(("linear_qkv", "linear_o", "linear_down", "linear_lm_head", "gated_linear"), ()),
}
"""The ops of the kernel bench, and the sizes that each depends on beside the batch."""
DECODED = ("decode", EQUAL_MEMORY)
"""Kinds that time variants of the run, all of them where a grid names none."""
_TAKES = {
    KERNELS: ("contexts", "budgets", "ops", "full_heads", "kv_lengths", "rows", "mask"),
    "decode": ("contexts", "budgets", "variants", "steps"),
    "rows": ("contexts", "rows"),
    **dict.fromkeys(("prefill", "hf_full"), ("contexts",)),
    EQUAL_MEMORY: ("contexts", "budgets", "variants", "steps", "sequences", "host_gib", "hits"),
    OWN_CHOICES: ("contexts", "budgets", "models", "steps", "sequences", "host_gib", "prompts"),
}
"""The keys of each kind, beside ``bench``, ``model``, ``batches`` and ``rounds``."""


RAW_SHAPES: dict[str, dict[str, Any]] = typed.read_yaml(Path(__file__).with_name("shapes.yaml"))
"""Shapes by name, in the format of a config.json."""


def code_module(job: str) -> str:
    """Return the module of this room whose imports are the code behind a job's times."""
    return SHARED_JOBS.get(job, "decode")


@dataclass(frozen=True, slots=True)
class Grid(typed.Part):
    """One kind of benchmark at every combination of some sizes; a key that its kind does not take is refused.

    Args:
        bench: ``kernels``, ``decode`` (steps of variants), ``prefill``, ``rows`` (a forward pass over the nodes of a
            draft tree), ``hf_full`` (the stock loop), ``equal_memory`` (each variant with as many sequences as one
            memory for keys and values holds) or ``own_choices`` (the same on real text, selections unforced).
        model: a model of the run or a shape with random weights; of kernels the shape whose heads they have.
        batches: of kernels, rows of a call. Where memory decides, batches follow from it.
        budgets: fractions of the context or tokens per KV head.
        variants: what is timed beside Full; left out, every variant of the run.
        ops: kernels; left out, all that the given sizes suffice for.
        full_heads: KV heads of a hybrid layer that read everything, the others read lists.
        kv_lengths: of hybrid layers, keys of a batch's rows: all ``equal`` to the context, or ``mixed``, spread evenly
            from an eighth of the context to all of it.
        rows: tokens of a sequence in one call or forward pass.
        mask: of kernels with rows.
        steps: decode steps of a timed block.
        sequences: whole sequences whose keys and values are the memory that every variant has; Full's batch.
        host_gib: host memory for offloaded caches.
        hits: by variant, shares of a list that the step before listed; each is timed. Others select for themselves.
        models: by variant, the model that it runs on; Full among them.
        prompts: read ``whole``, or each by the method's ``own`` rule where that chooses for a prompt's tokens too.
    """

    bench: Literal["kernels", "decode", "prefill", "rows", "hf_full", "equal_memory", "own_choices"]
    model: typed.Text = "llama3-8b"
    contexts: typed.Contexts = ()
    batches: typed.Sizes = (1,)
    budgets: TokenBudgets = ()
    variants: typed.Names = ()
    ops: Annotated[tuple[Annotated[str, typed.known("op", lambda: OPS)], ...], typed.Distinct] = ()
    full_heads: Annotated[tuple[typed.Whole, ...], typed.Distinct] = ()
    kv_lengths: Literal["equal", "mixed"] = "equal"
    rows: Annotated[tuple[Annotated[int, Field(strict=True, ge=2, le=4096)], ...], typed.Distinct] = ()
    mask: Literal["causal", "tree"] = "causal"
    rounds: typed.Rounds = 10
    steps: typed.Count = 4
    sequences: typed.Count = 4
    host_gib: typed.Count = 64
    hits: Mapping[str, tuple[Annotated[float, Field(strict=True, gt=0, le=1)], ...]] = field(default_factory=dict)
    models: Mapping[typed.Name, typed.Text] = field(default_factory=dict)
    prompts: Literal["whole", "own"] = "whole"

    @property
    def job(self) -> str:
        """Return the name of the job that times this grid."""
        return self.bench if self.bench in SHARED_JOBS else self.model

    @property
    def timed_on(self) -> Mapping[str, str]:
        """Return the model of each variant that is timed; none of kernels."""
        return {} if self.bench == KERNELS else self.models or dict.fromkeys((FULL, *self.variants), self.model)

    @property
    def scored_tokens(self) -> int:
        """Return the tokens of text that every variant of ``own_choices`` decodes: those of its blocks, and one."""
        return 1 + (WARMUP_BLOCKS + 2 * self.rounds) * self.steps

    @property
    def forced_tokens(self) -> int:
        """Return the tokens of text that follow a prompt: those, and one a step that runs before a graph's capture."""
        return self.scored_tokens + GRAPH_WARMUP_STEPS

    @property
    def cached_tokens(self) -> int:
        """Return the tokens that a cache takes after the prompt: the text's, or a block's and one step's before it."""
        return self.forced_tokens if self.bench == OWN_CHOICES else self.steps + 1

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        """Refuse keys of other kinds, require this one's, and let kernels be those that the sizes suffice for."""
        if not isinstance(values, Mapping) or (bench := values.get("bench")) not in [*_TAKES]:
            return values
        for key in values:
            if key in cls.__dataclass_fields__ and key not in (*_TAKES[bench], "bench", "model", "batches", "rounds"):
                raise typed.wrong(f"is no key of bench {bench}, which takes {', '.join(_TAKES[bench])}", key)
        if bench == KERNELS:
            missing = {op: [key for key in needs if not values.get(key)] for op, needs in OPS.items()}
            listed = values.get("ops")
            for op, keys in missing.items():
                if keys and isinstance(listed, list) and op in listed:
                    raise typed.wrong(f"is missing; {op} is timed at its sizes", keys[0])
            return {"ops": [op for op, keys in missing.items() if not keys], **values}
        for key in ("contexts", "rows", "models", *(("budgets",) if bench in SHARED_JOBS else ())):
            if key in _TAKES[bench] and not values.get(key):
                raise typed.wrong("is missing", key)
        if bench == OWN_CHOICES and isinstance(models := values["models"], Mapping):
            typed.require_known("variant", [FULL], models, "models")
            return {**values, "model": models[FULL], "variants": list(models)}
        return values

    @model_validator(mode="after")
    def _check(self) -> Grid:
        if self.kv_lengths == "mixed" and (self.ops != ("hybrid_attention",) or min(self.batches) < 2):
            raise typed.wrong("mixed takes hybrid_attention as the only op, and batches of 2 or more", "kv_lengths")
        if self.bench not in SHARED_JOBS and self.model in SHARED_JOBS:
            raise typed.wrong(f"a model cannot be named {self.model!r} here; a job has that name", "model")
        decoded = {"decode": self.steps, EQUAL_MEMORY: self.steps, OWN_CHOICES: self.forced_tokens}.get(self.bench, 0)
        for context in self.contexts if decoded else ():
            listed = [budget.tokens(context) or 0 for budget in self.budgets] if self.bench in SHARED_JOBS else []
            need = decoded + max(listed, default=0)
            if context <= need:
                raise typed.wrong(f"{context} in the list; more than {need} tokens are needed", "contexts")
        return self


def jobs_of(grids: Iterable[Grid]) -> tuple[str, ...]:
    """Return names of the jobs: one for kernels and bandwidth, one a model, one each where memory decides.

    Grids of models need the device's bandwidth for their floors, so that they bring the kernels' job.
    """
    jobs = [grid.job for grid in grids]
    first = [KERNELS] if any(job not in (EQUAL_MEMORY, OWN_CHOICES) for job in jobs) else []
    return tuple(dict.fromkeys((*first, *sorted(jobs, key=lambda job: job in SHARED_JOBS))))


def grids_of(grids: Iterable[Grid], job: str) -> tuple[Grid, ...]:
    """Return a job's grids."""
    return tuple(grid for grid in grids if grid.job == job)


def variants_of(grids: Iterable[Grid], job: str) -> tuple[str, ...]:
    """Return the variants that a job times."""
    return tuple(dict.fromkeys(variant for grid in grids_of(grids, job) for variant in grid.timed_on))


def models_of(grids: Iterable[Grid], job: str) -> tuple[str, ...]:
    """Return the models or shapes that a job times; none of kernels."""
    return tuple(dict.fromkeys(model for grid in grids_of(grids, job) for model in grid.timed_on.values()))
