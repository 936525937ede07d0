"""Trainings of a run: the ``training`` key of a configuration names a recipe, a model, sizes and seeds.

A recipe learns head roles or continues a checkpoint with sparse attention. What the recipes of one paper share stands
in their dataclass, not in configurations; ``docs/models.md`` and ``docs/reproduction-nosa.md`` explain it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from longdecode.evals import config_values as typed

BATCHED_DATA = ("mini_passkey", "mini_two_hop")
"""Data whose samples of one context length are equally long, so that several fit one step."""
ROLE_DATA, FORK_LENGTH, FORK_STEPS = "mini_passkey", 4096, 600


@dataclass(frozen=True, slots=True)
class RoleTraining:
    """One training of head roles; ``docs/models.md`` explains every setting.

    ``target_heads`` counts all retrieval heads, layer 0's included; ``contexts`` are the shortest and longest, of
    which ``context_count`` evenly spaced ones are used. ``lr`` left out is that of the objective.
    """

    name: str
    model: str
    target_heads: int
    contexts: tuple[int, int]
    kind: str = "hardkuma"
    data: str = ROLE_DATA
    objective: str = "paper"
    inherit: Literal["chain", "previous_layer"] = "chain"
    sparse: Literal["inherited", "streaming"] = "inherited"
    selection: Literal["causal", "code"] = "causal"
    seed: int = 0
    steps: int = 3000
    batch: int = 1
    context_count: int = 50
    questions: int = 10
    passkey_words: int = 32
    ratio: float = 0.3
    sink: int = 128
    recent: int = 256
    lr: float | None = None

    @property
    def gate_rate(self) -> float:
        """The learning rate of the gates: DuoAttention's for its own objective, LycheeDecode's for the others."""
        return self.lr if self.lr is not None else {"l1": 0.02}.get(self.objective, 0.01)

    @property
    def role_kind(self) -> str:
        """The kind that role files state: ``duo`` where the heads that do not retrieve stream."""
        return "duo" if self.kind == "direct" and self.sparse == "streaming" else self.kind

    @property
    def first_role_layer(self) -> int:
        """The lowest layer whose roles are learned: layer 0 always retrieves, unless the other heads stream."""
        return 0 if self.sparse == "streaming" else 1


@dataclass(frozen=True, slots=True)
class ForkTraining:
    """One fork of a dense checkpoint, continued with one kind of attention; ``docs/reproduction-nosa.md`` explains it.

    ``head`` is the form of the importance: ``ed_dma``, ``dma`` (its exponential) or ``s_dma`` (a sigmoid). Importance
    heads learn at ``importance_factor`` times ``lr``. ``lookups`` is the share of look-up documents, the others are
    books. ``length`` is in tokens, four times the budget, as in the paper. ``targets`` are the layers with low-rank
    factors: all linear ones, or those of ``attention``. ``distil`` weighs the divergence from the checkpoint before
    training, ``received`` the loss of importances against the attention that tokens receive there.
    """

    name: str
    model: str
    attention: str
    head: str = "ed_dma"
    data: str = "books"
    budget: int = 1024
    length: int = FORK_LENGTH
    rows: int = 2
    steps: int = FORK_STEPS
    lr: float = 8e-4
    importance_factor: float = 4.0
    scale_init: float = 0.1
    lookups: float = 0.5
    rank: int = 16
    targets: Literal["all", "attention"] = "all"
    distil: float = 0.0
    received: float = 0.0
    warmup: int = 20
    seed: int = 0
    log_every: int = 60
    held_out: int = 4


ROLE_RECIPES: Mapping[str, Mapping[str, str]] = {
    "hardkuma": {},
    "hardkuma_released": {"objective": "code", "inherit": "previous_layer", "selection": "code"},
    "hard_concrete": {"kind": "hard_concrete"},
    "direct": {"kind": "direct"},
    "duo": {"kind": "direct", "objective": "l1", "sparse": "streaming"},
}
"""LycheeDecode's gates as its paper has them and as its code has them, two ablations, DuoAttention's heads."""
_ATTENTION: Mapping[str, Mapping[str, Any]] = {
    **{name: {"attention": name} for name in ("full", "infllm2", "dma", "nosa")},
    **{f"nosa_{head}_head": {"attention": "nosa", "head": head} for head in ("dma", "s_dma")},
    "nosa_received": {"attention": "nosa", "received": 0.1},
}
_DISTILLED = {"distil": 1.0, "rank": 24, "targets": "attention", "lr": 3e-4, "held_out": 2, "data": "library"}
FORK_RECIPES = {**_ATTENTION, **{f"{name}_distilled": {**recipe, **_DISTILLED} for name, recipe in _ATTENTION.items()}}
"""Dense training on the same documents, each kind of attention, two other forms of NOSA's importance, and importances
that also learn from attention received (this project's). ``_distilled``: beside the checkpoint before training."""
Data = Literal["mini_passkey", "mini_two_hop", "passkey", "passkey_books", "hotpotqa", "books", "library", "miniature"]
FORK_DATA: tuple[Data, ...] = ("books", "library", "miniature")


@dataclass(frozen=True, slots=True)
class TrainingSpec(typed.Part):
    """One entry of ``training``; what is left out is the recipe's own.

    ``contexts`` are the shortest and longest of head roles, and the one length of a fork. ``heads`` are those that
    retrieve, ``ratio`` and ``window`` (sinks, recent tokens) what the others read while roles are learned.
    Several ``seeds`` are as many trainings: ``NAME0``, ``NAME1`` and so on; without any, ``NAME`` with seed 0.
    """

    recipe: Annotated[typed.Text, typed.known("recipe", lambda: (*ROLE_RECIPES, *FORK_RECIPES))]
    model: typed.Text
    seeds: Annotated[tuple[typed.Whole, ...], typed.Distinct] = ()
    steps: typed.Count | None = None
    contexts: typed.Contexts | None = None
    data: Data | None = None
    heads: typed.Count | None = None
    batch: typed.Count | None = None
    lr: Annotated[float, Field(strict=True, gt=0, le=100)] | None = None
    ratio: typed.Share | None = None
    window: tuple[typed.Whole, typed.Count] | None = None

    @property
    def is_fork(self) -> bool:
        """True where the training makes a checkpoint, false where it makes head roles."""
        return self.recipe in FORK_RECIPES

    def trainings(self, name: str) -> dict[str, Any]:
        """Return the trainings of the entry by their names, one a seed."""
        kind: type[Any] = ForkTraining if self.is_fork else RoleTraining
        recipe = (FORK_RECIPES if self.is_fork else ROLE_RECIPES)[self.recipe]
        one = kind(name=name, model=self.model, **{**recipe, **self._given()})
        return {f"{name}{seed}": replace(one, name=f"{name}{seed}", seed=seed) for seed in self.seeds} or {name: one}

    def _given(self) -> dict[str, Any]:
        """Return what the entry says, under the names that the training has for it."""
        lengths, (sink, recent) = self.contexts or (FORK_LENGTH,), self.window or (None, None)
        said: dict[str, Any] = {"steps": self.steps, "data": self.data, "lr": self.lr}
        if self.is_fork:
            said |= {"rows": self.batch, "length": lengths[0], "budget": lengths[0] // 4}
            said |= {"log_every": max(1, (self.steps or FORK_STEPS) // 10)}
        else:
            said |= {"batch": self.batch, "target_heads": self.heads, "contexts": (lengths[0], lengths[-1])}
            said |= {"ratio": self.ratio, "sink": sink, "recent": recent}
        return {name: value for name, value in said.items() if value is not None}

    @model_validator(mode="after")
    def _check(self) -> TrainingSpec:
        """Refuse settings that the recipe does not have, and settings that exclude each other."""
        own_data = [data for data in get_args(Data) if (data in FORK_DATA) == self.is_fork]
        if self.data is not None:
            typed.require_known(f"data of {self.recipe}", [self.data], own_data, "data")
        if self.is_fork:
            if foreign := [key for key in ("heads", "ratio", "window") if getattr(self, key) is not None]:
                raise typed.wrong(f"is a setting of head roles; {self.recipe} has none", foreign[0])
            if self.contexts is not None and len(self.contexts) > 1:
                raise typed.wrong(f"is {list(self.contexts)}; a fork has one length", "contexts")
            return self
        if self.heads is None or self.contexts is None:
            raise typed.wrong("is missing; head roles need it", "heads" if self.heads is None else "contexts")
        if len(self.contexts) > 2 or sorted(self.contexts) != list(self.contexts):
            raise typed.wrong(f"is {list(self.contexts)}; the shortest and the longest are needed", "contexts")
        data = self.data or ROLE_DATA
        if (self.batch or 1) > 1 and data not in BATCHED_DATA:
            raise typed.wrong(f"is {self.batch}; samples of {data} differ in length, so only 1 is possible", "batch")
        return self
