"""Trainings of head roles as they were left in a run's folder, and which label scored which roles."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.methods.head_roles import RoleFile, read_role_file
from longdecode.reporting.identity import FAINT, HUES, Look
from longdecode.reporting.papers.inputs import PaperInputs, config_params
from longdecode.reporting.papers.lychee.common import METHOD, label_of
from longdecode.reporting.wording import short_tokens

ROLE_KEYS = frozenset({"roles", "retrieval_heads", "roles_seed"})
"""Parameters that say which heads retrieve; labels that differ in these alone form the ablation."""
DEFAULT_ROLES = "spread"
KIND_HUES = {"hardkuma": HUES[2], "hard_concrete": HUES[1], "direct": HUES[0], "duo": HUES[3]}
_OWN_OBJECTIVE = {"direct": "l1", "duo": "l1"}
_REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Training:
    """One training: where its roles come from, in the terms of its run.json."""

    name: str
    model: str
    kind: str
    data: str
    seed: int | None
    variant: str
    contexts: tuple[int, int] | None
    roles: RoleFile
    curve: pd.DataFrame
    gates: pd.DataFrame

    @property
    def family(self) -> str:
        """Kind, data and variant: what trainings of several seeds share."""
        return ", ".join(part for part in (self.kind, self.data, self.variant) if part)

    @property
    def words(self) -> str:
        """The family and the seed."""
        return self.family if self.seed is None else f"{self.family}, seed {self.seed}"


@dataclass(frozen=True, slots=True)
class Scored:
    """A label of the ablation: the family of its roles, its seed, and how many heads retrieve."""

    label: str
    kind: str
    family: str
    data: str
    seed: int | None
    heads: int | None


def trainings(folder: Path, model: str | None = None) -> list[Training]:
    """Every finished training below ``identification/``: those whose roles are there, by kind, data and seed."""
    found = [
        _training(path.parent)
        for path in sorted((folder / "identification").glob("*/*/roles.json"))
        if model is None or path.parent.parent.name == model
    ]
    counts = [sum(map(sum, training.roles.roles)) for training in found if training.kind != "duo"]
    usual = max(counts, key=counts.count, default=0)
    spans = [training.contexts for training in found]
    found = [_with_span(_with_count(training, usual), max(spans, key=spans.count, default=None)) for training in found]
    order = {kind: place for place, kind in enumerate(KIND_HUES)}
    return sorted(found, key=lambda t: (order.get(t.kind, 9), t.data != "mini_passkey", t.data, t.variant, t.seed or 0))


def _with_count(training: Training, usual: int) -> Training:
    """The training, its variant naming its number of heads where that is not what the others have."""
    heads = sum(map(sum, training.roles.roles))
    if heads == usual:
        return training
    return replace(training, variant=", ".join(filter(None, (training.variant, f"{heads} heads"))))


def _with_span(training: Training, usual: tuple[int, int] | None) -> Training:
    """The training, its variant naming its contexts where they are not what most others have."""
    if training.contexts in (usual, None):
        return training
    low, high = training.contexts
    span = f"{short_tokens(low)} to {short_tokens(high)} contexts"
    return replace(training, variant=", ".join(filter(None, (training.variant, span))))


def scored_labels(inputs: PaperInputs, model: str) -> list[Scored]:
    """Labels that differ from the method's own in their head roles alone, the method's own among them."""
    base = label_of(inputs, METHOD, model)
    if base is None:
        return []
    rest = _without_roles(config_params(inputs.results, base, model))
    known = {training.name: training for training in trainings(inputs.folder, model)}
    found: dict[tuple[str, int | None, int | None], Scored] = {}
    for label in inputs.labels(METHOD, model):
        params = config_params(inputs.results, label, model)
        if _without_roles(params) == rest:
            item = _scored(label, params, known)
            found.setdefault(
                (item.family, item.seed, item.heads), item
            )  # the same roles under a second label add nothing
    return list(found.values())


def family_looks(found: Sequence[Training]) -> dict[str, Look]:
    """A look for each family: colour by kind; a second data set or variant of a kind is hollow and dotted."""
    looks: dict[str, Look] = {}
    for training in found:
        if training.family not in looks:
            second = sum(1 for other in found if other.kind == training.kind and other.family in looks)
            colour = KIND_HUES.get(training.kind, FAINT)
            looks[training.family] = Look(training.family, colour, "", bool(second), False)
    return looks


def data_column(data: str) -> str | None:
    """The published column that a training set stands in for: passkeys, or questions over several documents."""
    return "passkey" if "passkey" in data else "hotpotqa" if "hotpot" in data or "two_hop" in data else None


def _training(folder: Path) -> Training:
    run: dict[str, Any] = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    roles = read_role_file(folder / "roles.json")
    curve, gates = (pd.read_csv(folder / f"{name}.csv") for name in ("curve", "gates"))
    said = {**(run.get("settings") or {}), **run}
    seed = said.get("seed")
    return Training(
        folder.name, folder.parent.name, roles.kind, str(said.get("data", "")), None if seed is None else int(seed),
        _variant(said, roles.kind), _span(said), roles, curve, gates,
    )  # fmt: skip


def _variant(run: Mapping[str, Any], kind: str) -> str:
    """What a training does otherwise than its kind's default, in words."""
    parts = []
    if (run.get("objective"), run.get("inherit"), run.get("selection")) == ("code", "previous_layer", "code"):
        return "as released"
    if run.get("objective", "paper") != _OWN_OBJECTIVE.get(kind, "paper"):
        parts.append(f"objective {run['objective']}")
    if run.get("inherit", "chain") != "chain":
        parts.append("lists one layer old")
    if run.get("selection", "causal") != "causal":
        parts.append("selection as in the code")
    return ", ".join(parts)


def _span(run: Mapping[str, Any]) -> tuple[int, int] | None:
    """The shortest and the longest context of a training, tokens; nothing where its run does not say."""
    contexts = run.get("contexts")
    return (min(contexts), max(contexts)) if contexts else None


def _without_roles(params: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in ROLE_KEYS}


def _scored(label: str, params: Mapping[str, Any], known: Mapping[str, Training]) -> Scored:
    source, count = str(params.get("roles", DEFAULT_ROLES)), params.get("retrieval_heads")
    if not source.endswith(".json"):
        return Scored(label, source, source, "", params.get("roles_seed", 0) if source == "random" else None, count)
    training = known.get(Path(source).stem) or known.get(Path(source).parent.name)
    if training is not None:
        heads = count if count is not None else sum(map(sum, training.roles.roles))
        return Scored(label, training.kind, training.family, training.data, training.seed, heads)
    path = next((p for p in (Path(source), _REPOSITORY / source) if p.is_file()), None)
    if path is None:
        return Scored(label, Path(source).stem, Path(source).stem, "", None, count)
    return _from_file(label, read_role_file(path), count)


def _from_file(label: str, roles: RoleFile, count: int | None) -> Scored:
    said = {**(roles.run.get("settings") or {}), **roles.run}
    data, seed = str(said.get("data", "")), said.get("seed")
    variant = _variant(said, roles.kind)
    family = ", ".join(part for part in (roles.kind, data, variant) if part)
    heads = count if count is not None else sum(map(sum, roles.roles))
    return Scored(label, roles.kind, family, data, None if seed is None else int(seed), heads)
