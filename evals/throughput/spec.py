"""What the throughput tests run: the ``throughput`` key of a configuration, every name in it checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from longdecode.evals.budgets import Budget, read_budgets
from longdecode.evals.config_values import Section
from longdecode.evals.names import unknown_name
from longdecode.evals.throughput.shapes import RAW_SHAPES, shape_names

OPS = (
    "decode_attention", "sparse_decode_attention", "sparse_decode_attention_tokens", "page_score", "topk_select",
    "selection", "token_logits", "add_rms_norm", "rope_append", "linear_qkv", "linear_o", "linear_down",
    "linear_lm_head", "gated_linear", "hybrid_attention", "hybrid_attention_scored", "topk_select_into",
    "decode_attention_rows",
)  # fmt: skip
"""Names of the kernel bench's cases."""
ROWS_OP = "decode_attention_rows"
"""Dense attention of several rows, timed at the sizes of ``RowsSpec``."""
HYBRID_OPS = ("hybrid_attention", "hybrid_attention_scored", "topk_select_into")
"""Those with sizes of their own, which also say how many KV heads read everything: see ``HybridSpec``."""
CAUSAL_ROWS, TREE_ROWS = (2, 8, 41, 121), (41, 121)
LENGTHS = ("full", "random")
FULL_HEADS = (0, 1, 2, 4, 8)
CEILING_METHODS = ("free_selection",)
"""Labels that the decode bench knows without a method of that name: see ``ceilings``."""
KERNELS_JOB = "kernels"
"""The job that times the kernels and the device's read bandwidth; the other jobs are named after their models."""
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True)
class HybridSpec:
    """Sizes of the cases in which some KV heads of a layer read everything and the others a list of blocks.

    ``full_heads`` says how many read everything. ``lengths``: every row filled (``full``), or lengths drawn from all
    below the context (``random``), as the code released with LycheeDecode times its kernel.
    """

    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    budgets: tuple[Budget, ...]
    full_heads: tuple[int, ...] = FULL_HEADS
    lengths: tuple[str, ...] = ("full",)


@dataclass(frozen=True, slots=True)
class RowsSpec:
    """Sizes of dense attention of ``T`` rows: causal for each of ``causal``, under a tree mask for each of ``tree``."""

    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    causal: tuple[int, ...] = CAUSAL_ROWS
    tree: tuple[int, ...] = TREE_ROWS


@dataclass(frozen=True, slots=True)
class KernelSpec:
    """The kernel bench: which cases at which sizes, with the heads and widths of which shape.

    The cases of ``HYBRID_OPS`` are timed at the sizes of ``hybrid``, ``decode_attention_rows`` at those of ``rows``,
    and nowhere without them.
    """

    ops: tuple[str, ...] = ()
    shape: str = "llama3-8b"
    contexts: tuple[int, ...] = ()
    batches: tuple[int, ...] = (1,)
    budgets: tuple[Budget, ...] = ()
    rounds: int = 10
    hybrid: HybridSpec | None = None
    rows: RowsSpec | None = None


@dataclass(frozen=True, slots=True)
class Places:
    """A part of a grid, an empty list is no restriction; and budgets in the place of the grid's."""

    contexts: tuple[int, ...] = ()
    batches: tuple[int, ...] = ()
    budgets: tuple[Budget, ...] = ()


@dataclass(frozen=True, slots=True)
class DecodeSpec:
    """The decode bench of one model.

    ``methods`` are labels; ``steps`` is how many decode steps one timed block has, ``rounds`` how many times the four
    blocks of a pair (A B B A) are run. ``prefill_contexts`` and ``hf_contexts`` say where the prefill and the stock
    loop are timed; ``stages`` whether steps with a stage left out are. At ``forward_contexts``, and the smallest batch,
    a forward pass over ``forward_rows`` rows under a tree mask is timed. ``smallest_batch_contexts`` are those of the
    grid that other batches leave out, ``only`` restricts single labels to a part of it.
    """

    methods: tuple[str, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    budgets: tuple[Budget, ...]
    rounds: int = 10
    steps: int = 4
    prefill_contexts: tuple[int, ...] = ()
    hf_contexts: tuple[int, ...] = ()
    hf_batches: tuple[int, ...] = (1,)
    stages: bool = True
    forward_contexts: tuple[int, ...] = ()
    forward_rows: int = 41
    smallest_batch_contexts: tuple[int, ...] = ()
    only: Mapping[str, Places] = field(default_factory=dict)

    def times(self, label: str, context: int, batch: int) -> bool:
        """Return whether a label is timed at a context and batch of the grid."""
        if context in self.smallest_batch_contexts and batch != min(self.batches):
            return False
        part = self.only.get(label, Places())
        return (not part.contexts or context in part.contexts) and (not part.batches or batch in part.batches)

    def budgets_of(self, label: str) -> tuple[Budget, ...]:
        """Return the budgets of a label that takes any."""
        return self.only.get(label, Places()).budgets or self.budgets


@dataclass(frozen=True, slots=True)
class ThroughputSpec:
    """All throughput tests of a run."""

    kernels: KernelSpec = field(default_factory=KernelSpec)
    decode: Mapping[str, DecodeSpec] = field(default_factory=dict)

    @property
    def jobs(self) -> tuple[str, ...]:
        """Names of the jobs: one for ceiling and kernels, one a model."""
        return (KERNELS_JOB, *self.decode)


def read_throughput(section: Section, models: Iterable[str], labels: Iterable[str]) -> ThroughputSpec:
    """Check the ``throughput`` section of a configuration.

    Args:
        section: the section; it may be empty.
        models: keys of the configuration's ``models``.
        labels: labels of its ``methods``.

    Raises:
        ConfigError: an unknown key, model, method or op, with the nearest valid one; or a value out of range.
    """
    section.allow("key", [item.name for item in fields(ThroughputSpec)])
    decode = section.section("decode")
    known = (*models, *shape_names())
    decode.allow("model", known)
    for name in decode.values:
        if name == KERNELS_JOB:
            decode.refuse(name, f"a model cannot be named {KERNELS_JOB!r} here; the kernels' job has that name")
    methods = (*labels, *CEILING_METHODS)
    return ThroughputSpec(
        kernels=_kernels(section.section("kernels")),
        decode={name: _decode(below, methods) for name, below in decode.named_sections()},
    )


def _kernels(section: Section) -> KernelSpec:
    section.allow("key", [item.name for item in fields(KernelSpec)])
    if not section.values:
        return KernelSpec()
    default = KernelSpec()
    ops = _names(section, "ops", "op", OPS)
    shape = section.choice("shape", "shape", shape_names(), default.shape)
    hybrid = _hybrid(section.section("hybrid"), shape) if section.values.get("hybrid") is not None else None
    asked = [op for op in ops if op in HYBRID_OPS]
    if asked and hybrid is None and section.values.get("ops") is not None:
        section.refuse("hybrid", f"is missing; {asked[0]} is timed at its sizes")
    sized = set(ops) - {*HYBRID_OPS, ROWS_OP}
    return KernelSpec(
        ops=ops,
        shape=shape,
        contexts=section.integers("contexts", 64) if sized else (),
        batches=section.integers("batches", 1) if sized else (),
        budgets=read_budgets(section) if sized else (),
        rounds=section.integer("rounds", 2, default.rounds),
        hybrid=hybrid,
        rows=_rows(section.section("rows")) if section.values.get("rows") is not None else None,
    )


def _rows(section: Section) -> RowsSpec:
    section.allow("key", [item.name for item in fields(RowsSpec)])
    given = section.values
    return RowsSpec(
        contexts=section.integers("contexts", 64),
        batches=section.integers("batches", 1),
        causal=section.integers("causal", 2) if given.get("causal") is not None else CAUSAL_ROWS,
        tree=section.integers("tree", 2) if given.get("tree") is not None else TREE_ROWS,
    )


def _hybrid(section: Section, shape: str) -> HybridSpec:
    """The sizes of the hybrid cases; the heads left out are those of ``FULL_HEADS`` that the shape has."""
    section.allow("key", [item.name for item in fields(HybridSpec)])
    heads: int = RAW_SHAPES[shape]["num_key_value_heads"]
    full_heads = tuple(count for count in FULL_HEADS if count <= heads)
    if section.values.get("full_heads") is not None:
        full_heads = section.integers("full_heads", 0)
    if max(full_heads) > heads:
        section.refuse("full_heads", f"{max(full_heads)} in the list; {shape} has {heads} KV heads")
    return HybridSpec(
        contexts=section.integers("contexts", 64),
        batches=section.integers("batches", 1),
        budgets=read_budgets(section),
        full_heads=full_heads,
        lengths=_names(section, "lengths", "kind of lengths", LENGTHS) if section.values.get("lengths") else ("full",),
    )


def _decode(section: Section, labels: tuple[str, ...]) -> DecodeSpec:
    section.allow("key", [item.name for item in fields(DecodeSpec)])
    steps = section.integer("steps", 1, 4)
    contexts = section.integers("contexts", 64)
    if min(contexts) <= steps:
        section.refuse("steps", f"is {steps}; fewer than the shortest context ({min(contexts)}) are needed")
    batches = section.integers("batches", 1)
    methods = _names(section, "methods", "method", labels)
    prefill_contexts = _among(section, "prefill_contexts", contexts)
    hf_contexts = _among(section, "hf_contexts", contexts)
    return DecodeSpec(
        methods=methods,
        contexts=contexts,
        batches=batches,
        budgets=read_budgets(section),
        rounds=section.integer("rounds", 2, 10),
        steps=steps,
        prefill_contexts=prefill_contexts,
        hf_contexts=hf_contexts,
        hf_batches=_among(section, "hf_batches", batches if hf_contexts else ()) or (1,),
        stages=_flag(section, "stages", True),
        forward_contexts=_among(section, "forward_contexts", contexts),
        forward_rows=section.integer("forward_rows", 2, 41),
        smallest_batch_contexts=_among(section, "smallest_batch_contexts", contexts),
        only=_only(section.section("only"), methods, contexts, batches),
    )


def _only(
    section: Section, methods: tuple[str, ...], contexts: tuple[int, ...], batches: tuple[int, ...]
) -> dict[str, Places]:
    section.allow("method", methods)
    found = {}
    for label in section.values:
        below = section.section(label)
        below.allow("key", [item.name for item in fields(Places)])
        budgets = read_budgets(below) if below.values.get("budgets") else ()
        found[label] = Places(_among(below, "contexts", contexts), _among(below, "batches", batches), budgets)
    return found


def _names(section: Section, key: str, kind: str, valid: tuple[str, ...]) -> tuple[str, ...]:
    """A list of names, each a valid one; all of them where the key is absent."""
    if section.values.get(key) is None:
        return valid
    names = section.sequence(key)
    for name in names:
        if name not in valid:
            section.refuse(key, unknown_name(kind, name, valid))
    return tuple(names)


def _among(section: Section, key: str, grid: tuple[int, ...]) -> tuple[int, ...]:
    """A list of sizes, empty where the key is absent, each one of the grid's: another would not be timed."""
    found = section.integers(key, 1) if section.values.get(key) else ()
    for value in found:
        if grid and value not in grid:
            section.refuse(key, f"{value} in the list; nothing is timed there, only at {', '.join(map(str, grid))}")
    return found


def _flag(section: Section, key: str, default: bool) -> bool:
    value: Any = section.values.get(key, default)
    if not isinstance(value, bool):
        section.refuse(key, f"is {value!r}; true or false is needed")
    return value
