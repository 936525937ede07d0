"""The throughput tests of a run: the ``throughput`` key of a configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from longdecode.evals import config_values as typed
from longdecode.evals.budgets import Budget, TokenBudgets
from longdecode.evals.throughput.equal_memory_spec import JOB as EQUAL_MEMORY_JOB
from longdecode.evals.throughput.equal_memory_spec import EqualMemorySpec
from longdecode.evals.throughput.own_choices_spec import JOB as OWN_CHOICES_JOB
from longdecode.evals.throughput.own_choices_spec import OwnChoicesSpec
from longdecode.evals.throughput.shapes import RAW_SHAPES, shape_names

OPS = (
    "decode_attention", "sparse_decode_attention", "sparse_decode_attention_tokens", "page_score", "topk_select",
    "selection", "token_logits", "add_rms_norm", "rope_append", "linear_qkv", "linear_o", "linear_down",
    "linear_lm_head", "gated_linear", "hybrid_attention", "hybrid_attention_scored", "topk_select_into",
    "decode_attention_rows",
)  # fmt: skip
"""Names of the kernel bench's cases."""
HYBRID_OPS = ("hybrid_attention", "hybrid_attention_scored", "topk_select_into")
"""Those with sizes of their own, which also say how many KV heads read everything: see ``HybridSpec``."""
ROWS_OP = "decode_attention_rows"
"""Dense attention of several rows, timed at the sizes of ``RowsSpec``."""
FULL_HEADS = (0, 1, 2, 4, 8)
CAUSAL_ROWS, TREE_ROWS = (2, 8, 41, 121), (41, 121)
CEILING_METHODS = ("free_selection",)
"""Labels that the decode bench knows without a method of that name: see ``ceilings``."""
KERNELS_JOB = "kernels"
"""The job that times the kernels and the device's read bandwidth; the other jobs are named after their models."""


@dataclass(frozen=True, slots=True)
class HybridSpec:
    """Sizes of the cases in which some KV heads of a layer read everything and the others a list of blocks.

    ``full_heads`` says how many read everything; left out, those of ``FULL_HEADS`` that the shape has. ``lengths``:
    every row filled (``full``), or lengths drawn from all below the context (``random``), as the code released with
    LycheeDecode times its kernel.
    """

    contexts: typed.Contexts
    batches: typed.Sizes
    budgets: TokenBudgets
    full_heads: Annotated[tuple[typed.Whole, ...], typed.Distinct, typed.OrNull(lambda: FULL_HEADS)] = FULL_HEADS
    lengths: Annotated[tuple[Literal["full", "random"], ...], typed.Distinct, typed.OrNull(lambda: ("full",))] = (
        "full",
    )


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """Sizes of dense attention of ``T`` rows: causal for each of ``causal``, under a tree mask for each of ``tree``."""

    contexts: typed.Contexts
    batches: typed.Sizes
    causal: Annotated[typed.Sizes, typed.OrNull(lambda: CAUSAL_ROWS)] = CAUSAL_ROWS
    tree: Annotated[typed.Sizes, typed.OrNull(lambda: TREE_ROWS)] = TREE_ROWS


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The kernel bench: which cases at which sizes, with the heads and widths of which shape.

    The cases of ``HYBRID_OPS`` are timed at the sizes of ``hybrid``, ``decode_attention_rows`` at those of ``rows``,
    and nowhere without them.
    """

    ops: Annotated[
        tuple[Annotated[str, typed.known("op", lambda: OPS)], ...], typed.Distinct, typed.OrNull(lambda: OPS)
    ] = ()
    shape: Annotated[typed.Text, typed.known("shape", shape_names)] = "llama3-8b"
    contexts: Annotated[typed.Contexts, typed.OrNull(tuple)] = ()
    batches: Annotated[typed.Sizes, typed.OrNull(tuple)] = (1,)
    budgets: Annotated[TokenBudgets, typed.OrNull(tuple)] = ()
    rounds: typed.Rounds = 10
    hybrid: HybridSpec | None = None
    rows: RowsSpec | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill(cls, values: Any) -> Any:
        """Fill in all ops and the shape's heads, and require the sizes of the ops that are asked for."""
        known = {item.name for item in fields(cls)}
        if not isinstance(values, Mapping) or not values or not values.keys() <= known:
            return values
        asked = values.get("ops")
        ops = OPS if asked is None else asked if isinstance(asked, list) else ()
        sized = [op for op in ops if op not in (*HYBRID_OPS, ROWS_OP)]
        hybrid_op = next((op for op in ops if op in HYBRID_OPS), None)
        for key in ("contexts", "batches", "budgets"):
            if sized and values.get(key) is None:
                raise typed.wrong("is missing", key)
        hybrid = values.get("hybrid")
        if asked is not None and hybrid_op and hybrid is None:
            raise typed.wrong(f"is missing; {hybrid_op} is timed at its sizes", "hybrid")
        filled = {**values, "ops": OPS if asked is None else asked}
        shape = values.get("shape", "llama3-8b")
        if isinstance(hybrid, Mapping) and hybrid.get("full_heads") is None and shape in shape_names():
            heads = [count for count in FULL_HEADS if count <= RAW_SHAPES[shape]["num_key_value_heads"]]
            filled["hybrid"] = {**hybrid, "full_heads": heads}
        return filled

    @model_validator(mode="after")
    def _check(self) -> KernelSpec:
        heads: int = RAW_SHAPES[self.shape]["num_key_value_heads"]
        if self.hybrid is not None and max(self.hybrid.full_heads) > heads:
            most = max(self.hybrid.full_heads)
            raise typed.wrong(f"{most} in the list; {self.shape} has {heads} KV heads", "hybrid.full_heads")
        return self


@dataclass(frozen=True, slots=True)
class Places:
    """A part of a grid, an empty list is no restriction; and budgets in the place of the grid's."""

    contexts: Annotated[typed.Sizes, typed.OrNull(tuple)] = ()
    batches: Annotated[typed.Sizes, typed.OrNull(tuple)] = ()
    budgets: Annotated[TokenBudgets, typed.OrNull(tuple)] = ()


_Rows = Annotated[typed.Count, Field(ge=2)]
_RowCounts = Annotated[
    Annotated[_Rows, Tag("number")] | Annotated[tuple[_Rows, ...], Field(min_length=1), typed.Distinct, Tag("list")],
    Discriminator(lambda given: "list" if isinstance(given, (list, tuple)) else "number"),
    Field(description="Rows of a timed forward pass, a number or several."),
]


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """The decode bench of one model.

    ``methods`` are labels; ``steps`` is how many decode steps one timed block has, ``rounds`` how many times the four
    blocks of a pair (A B B A) are run. ``prefill_contexts`` and ``hf_contexts`` say where the prefill and the stock
    loop are timed; ``stages`` whether steps with a stage left out are. At ``forward_contexts``, and the smallest batch,
    a forward pass under a tree mask is timed, once for each number of rows of ``forward_rows``.
    ``smallest_batch_contexts`` are those of the grid that other batches leave out, ``only`` restricts single labels to
    a part of it.
    """

    contexts: typed.Contexts
    batches: typed.Sizes
    budgets: TokenBudgets
    methods: typed.Names = ()
    rounds: typed.Rounds = 10
    steps: Annotated[typed.Count, Field(description="Decode steps of a timed block.")] = 4
    prefill_contexts: Annotated[typed.Sizes, typed.OrNull(tuple)] = ()
    hf_contexts: Annotated[typed.Sizes, typed.OrNull(tuple)] = ()
    hf_batches: Annotated[typed.Sizes, typed.OrNull(lambda: (1,))] = (1,)
    stages: typed.Flag = True
    forward_contexts: Annotated[typed.Sizes, typed.OrNull(tuple)] = ()
    forward_rows: _RowCounts = 41
    smallest_batch_contexts: Annotated[typed.Sizes, typed.OrNull(tuple)] = ()
    only: Annotated[Mapping[str, Places], typed.OrNull()] = field(default_factory=dict)

    def by_rows(self) -> list[DecodeSpec]:
        """Return this bench with one number of forward rows at a time."""
        sizes = self.forward_rows if isinstance(self.forward_rows, tuple) else (self.forward_rows,)
        return [replace(self, forward_rows=rows) for rows in sizes]

    def times(self, label: str, context: int, batch: int) -> bool:
        """Return whether a label is timed at a context and batch of the grid."""
        if context in self.smallest_batch_contexts and batch != min(self.batches):
            return False
        part = self.only.get(label, Places())
        return (not part.contexts or context in part.contexts) and (not part.batches or batch in part.batches)

    def budgets_of(self, label: str) -> tuple[Budget, ...]:
        """Return the budgets of a label that takes any."""
        return self.only.get(label, Places()).budgets or self.budgets

    @model_validator(mode="after")
    def _check(self) -> DecodeSpec:
        if min(self.contexts) <= self.steps:
            raise typed.wrong(
                f"is {self.steps}; fewer than the shortest context ({min(self.contexts)}) are needed", "steps"
            )
        parts = {
            "prefill_contexts": (self.prefill_contexts, self.contexts),
            "hf_contexts": (self.hf_contexts, self.contexts),
            "hf_batches": (self.hf_batches if self.hf_contexts and self.hf_batches != (1,) else (), self.batches),
            "forward_contexts": (self.forward_contexts, self.contexts),
            "smallest_batch_contexts": (self.smallest_batch_contexts, self.contexts),
        }
        for label, part in self.only.items():
            parts[f"only.{label}.contexts"] = (part.contexts, self.contexts)
            parts[f"only.{label}.batches"] = (part.batches, self.batches)
        for key, (sizes, grid) in parts.items():
            if outside := set(sizes) - set(grid):
                at = ", ".join(map(str, grid))
                raise typed.wrong(f"{min(outside)} in the list; nothing is timed there, only at {at}", key)
        return self


@dataclass(frozen=True, slots=True)
class ThroughputSpec:
    """All throughput tests of a run."""

    kernels: Annotated[KernelSpec, typed.OrNull()] = field(default_factory=KernelSpec)
    decode: Annotated[Mapping[typed.Name, DecodeSpec], typed.OrNull()] = field(default_factory=dict)
    equal_memory: EqualMemorySpec | None = None
    own_choices: OwnChoicesSpec | None = None

    @property
    def jobs(self) -> tuple[str, ...]:
        """Return names of the jobs: one for ceiling and kernels, one a model, those at equal memory.

        The last ones need no ceiling of the device: alone, they bring no kernels' job unless ``kernels`` asks for one.
        """
        shared = tuple(self._at_equal_memory)
        alone = bool(shared) and not self.decode and self.kernels == KernelSpec()
        return (*(() if alone else (KERNELS_JOB,)), *self.decode, *shared)

    @property
    def _at_equal_memory(self) -> Mapping[str, EqualMemorySpec | OwnChoicesSpec]:
        """Return the parts whose job has a name of its own and times several labels at one memory."""
        found = {EQUAL_MEMORY_JOB: self.equal_memory, OWN_CHOICES_JOB: self.own_choices}
        return {job: part for job, part in found.items() if part is not None}

    def part(self, job: str) -> KernelSpec | DecodeSpec | EqualMemorySpec | OwnChoicesSpec:
        """Return a job's part of the configuration."""
        if job in self._at_equal_memory:
            return self._at_equal_memory[job]
        return self.kernels if job == KERNELS_JOB else self.decode[job]

    def model_of(self, job: str) -> str:
        """Return the model or shape that a job times; of a job with several that of full attention."""
        part = self.part(job)
        if isinstance(part, EqualMemorySpec | OwnChoicesSpec):
            return part.model
        return part.shape if isinstance(part, KernelSpec) else job

    def timed_on(self) -> dict[str, tuple[str, ...]]:
        """Return by model the labels that are timed on it."""
        found = {model: spec.methods for model, spec in self.decode.items()}
        if self.equal_memory is not None:
            model = self.equal_memory.model
            found[model] = tuple(dict.fromkeys((*found.get(model, ()), *self.equal_memory.methods)))
        for label, model in (self.own_choices.labels if self.own_choices else {}).items():
            found[model] = tuple(dict.fromkeys((*found.get(model, ()), label)))
        return found

    def models_of(self, job: str) -> tuple[str, ...]:
        """Return every model or shape that a job times."""
        part = self.part(job)
        return tuple(dict.fromkeys(part.labels.values())) if isinstance(part, OwnChoicesSpec) else (self.model_of(job),)

    def check_names(self, labels: Collection[str], models: Collection[str]) -> None:
        """Refuse labels and models that the run does not have, as a validator does."""
        if self.own_choices is not None:
            self.own_choices.check_names(labels, models)
        if self.equal_memory is not None:
            key = "throughput.equal_memory.methods"
            typed.require_known("method", self.equal_memory.methods, labels, key)
        for model, spec in self.decode.items():
            key = f"throughput.decode.{model}"
            if model in (KERNELS_JOB, EQUAL_MEMORY_JOB, OWN_CHOICES_JOB):
                job = "the kernels' job" if model == KERNELS_JOB else "a job at equal memory"
                raise typed.wrong(f"a model cannot be named {model!r} here; {job} has that name", key)
            typed.require_known("method", spec.methods, labels, f"{key}.methods")
            typed.require_known("method", spec.only, spec.methods, f"{key}.only")
