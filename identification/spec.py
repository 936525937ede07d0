"""What head identification runs: the ``identification`` key of a configuration, every name in it checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from longdecode.evals.config_values import Section
from longdecode.evals.names import unknown_name
from longdecode.evals.tasks.registry import task_names

KINDS = ("hardkuma", "hard_concrete", "direct")
OBJECTIVES = ("paper", "code", "l1")
DATA = ("mini_passkey", "mini_two_hop", "passkey", "hotpotqa")
INHERIT = ("chain", "previous_layer")
SPARSE = ("inherited", "streaming")
SELECTION = ("causal", "code")
HAYSTACKS = ("generated", "books")
BATCHED_DATA = ("mini_passkey", "mini_two_hop")
"""Data whose samples of one context length are equally long, so that several fit one step."""
PAPER_RATE = 2.5
"""Factor in the multiplier's default rate; see ``IdentificationRun.lagrange_rate``."""


@dataclass(frozen=True, slots=True)
class IdentificationRun:
    """One training of head roles; ``docs/identifying-heads.md`` explains every setting.

    ``target_heads`` counts all retrieval heads, layer 0's included; ``contexts`` are the shortest and longest, of
    which ``context_count`` evenly spaced ones are used. ``lr`` and ``lambda_lr`` left out are those of the gate's kind
    and of the objective; ``layer0_gates`` left out is true with the objective ``code`` alone.
    """

    name: str
    model: str
    target_heads: int
    contexts: tuple[int, int]
    kind: Literal["hardkuma", "hard_concrete", "direct"] = "hardkuma"
    data: Literal["mini_passkey", "mini_two_hop", "passkey", "hotpotqa"] = "mini_passkey"
    objective: Literal["paper", "code", "l1"] = "paper"
    inherit: Literal["chain", "previous_layer"] = "chain"
    sparse: Literal["inherited", "streaming"] = "inherited"
    selection: Literal["causal", "code"] = "causal"
    layer0_gates: bool | None = None
    seed: int = 0
    steps: int = 3000
    batch: int = 1
    context_count: int = 50
    questions: int = 10
    passkey_words: int = 32
    haystack: Literal["generated", "books"] = "generated"
    ratio: float = 0.3
    sink: int = 128
    recent: int = 256
    lr: float | None = None
    lambda_lr: float | None = None
    l1: float = 0.05
    log_every: int = 10

    @property
    def gate_rate(self) -> float:
        """Learning rate of the gates: DuoAttention's for ``direct``, LycheeDecode's for the others."""
        return self.lr if self.lr is not None else {"direct": 0.02}.get(self.kind, 0.01)

    def lagrange_rate(self, gates: int, target: int) -> float:
        """Rate of the multiplier: ``lambda_lr``; else 0.001 for ``code``, as released, 2.5 n / (N steps) for ``paper``.

        The latter was found by trying on the miniature. What counts is the rate times the steps: much slower, and more
        heads than wanted saturate at 1, where nothing ranks them; faster, and fewer are left than wanted, which still
        ranks the others by when they closed.

        Args:
            gates: ``n``, how many the constraint counts.
            target: ``N``, how many of them may be on.
        """
        if self.lambda_lr is not None:
            return self.lambda_lr
        return 0.001 if self.objective == "code" else PAPER_RATE * gates / (target * self.steps)

    @property
    def role_kind(self) -> str:
        """What role files call it: ``duo`` where the heads that do not retrieve stream."""
        return "duo" if self.kind == "direct" and self.sparse == "streaming" else self.kind

    @property
    def first_role_layer(self) -> int:
        """The lowest layer whose roles are learned: layer 0 always retrieves, unless the other heads stream."""
        return 0 if self.sparse == "streaming" else 1

    @property
    def first_counted_layer(self) -> int:
        """The lowest layer whose gates the constraint counts; the released code counts layer 0's unused ones too."""
        counts = self.objective == "code" if self.layer0_gates is None else self.layer0_gates
        return 0 if counts else self.first_role_layer


@dataclass(frozen=True, slots=True)
class OverlapSpec:
    """Where the overlap of adjacent layers' top tokens is measured.

    ``task`` is a generated task of the miniature's suites, ``k`` the sizes of the sets in tokens, ``steps`` how many
    decode steps of each sample are looked at.
    """

    model: str
    contexts: tuple[int, ...]
    k: tuple[int, ...]
    task: str = "mini_longgen_15"
    samples: int = 4
    steps: int = 16
    seed: int = 0


@dataclass(frozen=True, slots=True)
class IdentificationSpec:
    """All head identification of a configuration."""

    runs: Mapping[str, IdentificationRun] = field(default_factory=dict)
    overlap: OverlapSpec | None = None


def read_identification(section: Section, models: Iterable[str]) -> IdentificationSpec:
    """Check the ``identification`` section of a configuration.

    Args:
        section: the section; it may be empty. ``defaults`` holds settings that all ``runs`` share.
        models: keys of the configuration's ``models``.

    Raises:
        ConfigError: an unknown key or name, with the nearest valid one; a value out of range; settings that exclude
            each other.
    """
    section.allow("key", ("defaults", "runs", "overlap"))
    known = tuple(models)
    settings = [item.name for item in fields(IdentificationRun) if item.name != "name"]
    defaults = section.section("defaults")
    defaults.allow("setting", settings)
    runs = {}
    for name, below in section.section("runs").named_sections():
        below.allow("setting", settings)
        merged = Section({**defaults.values, **below.values}, section.source, below.key)
        runs[name] = _run(name, merged, known)
    overlap = section.section("overlap")
    return IdentificationSpec(runs, _overlap(overlap, known) if overlap.values else None)


def _run(name: str, section: Section, models: tuple[str, ...]) -> IdentificationRun:
    shape = IdentificationRun(name, "", 1, (1, 1))
    contexts = section.integers("contexts", 64)
    if len(contexts) > 2 or list(contexts) != sorted(contexts):
        section.refuse("contexts", f"is {list(contexts)}; the shortest and the longest are needed")

    def choice(key: str, valid: tuple[str, ...]) -> Any:
        return section.choice(key, key, valid, getattr(shape, key))

    def optional(key: str) -> float | None:
        return None if section.values.get(key) is None else section.number(key, 0.0, 100.0)

    run = IdentificationRun(
        name=name,
        model=_model(section, models),
        target_heads=section.integer("target_heads", 1),
        contexts=(contexts[0], contexts[-1]),
        kind=choice("kind", KINDS),
        data=choice("data", DATA),
        objective=choice("objective", OBJECTIVES),
        inherit=choice("inherit", INHERIT),
        sparse=choice("sparse", SPARSE),
        selection=choice("selection", SELECTION),
        layer0_gates=_optional_flag(section, "layer0_gates"),
        seed=section.integer("seed", 0, shape.seed),
        steps=section.integer("steps", 1, shape.steps),
        batch=section.integer("batch", 1, shape.batch),
        context_count=section.integer("context_count", 1, shape.context_count),
        questions=section.integer("questions", 1, shape.questions),
        passkey_words=section.integer("passkey_words", 1, shape.passkey_words),
        haystack=choice("haystack", HAYSTACKS),
        ratio=section.number("ratio", 0.0, 1.0, shape.ratio),
        sink=section.integer("sink", 0, shape.sink),
        recent=section.integer("recent", 1, shape.recent),
        lr=optional("lr"),
        lambda_lr=optional("lambda_lr"),
        l1=section.number("l1", 0.0, 100.0, shape.l1),
        log_every=section.integer("log_every", 1, shape.log_every),
    )
    _refuse_contradictions(section, run)
    return run


def _refuse_contradictions(section: Section, run: IdentificationRun) -> None:
    if run.batch > 1 and run.data not in BATCHED_DATA:
        section.refuse("batch", f"is {run.batch}; samples of {run.data} differ in length, so only 1 is possible")
    if run.objective == "l1" and run.kind != "direct":
        section.refuse("objective", f"is 'l1', which is for gates without noise (kind 'direct'), not {run.kind!r}")
    if run.kind == "direct" and run.objective != "l1":
        section.refuse("objective", f"is {run.objective!r}; gates of kind 'direct' have no P(z != 0): 'l1' is needed")
    if run.sparse == "streaming" and run.selection == "code":
        section.refuse("selection", "is 'code', but streaming heads select nothing")


def _overlap(section: Section, models: tuple[str, ...]) -> OverlapSpec:
    section.allow("key", [item.name for item in fields(OverlapSpec)])
    shape = OverlapSpec("", (), ())
    contexts, sizes = section.integers("contexts", 64), section.integers("k", 1)
    if max(sizes) >= min(contexts):
        section.refuse("k", f"has {max(sizes)}; fewer than the shortest context ({min(contexts)}) are needed")
    return OverlapSpec(
        model=_model(section, models),
        contexts=contexts,
        k=sizes,
        task=section.choice("task", "task", task_names(), shape.task),
        samples=section.integer("samples", 1, shape.samples),
        steps=section.integer("steps", 1, shape.steps),
        seed=section.integer("seed", 0, shape.seed),
    )


def _model(section: Section, models: tuple[str, ...]) -> str:
    name = section.text("model")
    if name not in models:
        section.refuse("model", unknown_name("model", name, models))
    return name


def _optional_flag(section: Section, key: str) -> bool | None:
    value: Any = section.values.get(key)
    if value is not None and not isinstance(value, bool):
        section.refuse(key, f"is {value!r}; true or false is needed")
    return value
