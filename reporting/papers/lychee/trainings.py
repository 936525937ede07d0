"""Read the trainings of head roles that a run left, and find which label scored which roles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from longdecode.methods.head_roles import RoleFile, read_role_file
from longdecode.reporting.identity import FAINT, HUES, Look
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.sections.training import Run
from longdecode.reporting.wording import short_tokens

ROLE_KEYS = frozenset({"roles", "retrieval_heads", "roles_seed"})
"""Parameters that say which heads retrieve; labels that differ in these alone form the ablation."""
KIND_HUES = {"hardkuma": HUES[5], "hard_concrete": HUES[1], "direct": HUES[0], "duo": HUES[6]}
_OWN_OBJECTIVE = {"direct": "l1", "duo": "l1"}
_REPOSITORY = Path(__file__).resolve().parents[3]


@dataclass(frozen=True, slots=True)
class Source:
    """Name the source of a label's roles."""

    label: str
    kind: str
    family: str
    data: str = ""
    seed: int | None = None
    heads: int | None = None


@dataclass(frozen=True, slots=True)
class Training:
    """One training, in the terms of its run.json."""

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
    def heads(self) -> int:
        """Heads that retrieve."""
        return sum(map(sum, self.roles.roles))

    @property
    def family(self) -> str:
        """Kind, data and variant: what trainings of several seeds share."""
        return _joined(self.kind, self.data, self.variant)

    @property
    def words(self) -> str:
        """The family and the seed."""
        return self.family if self.seed is None else f"{self.family}, seed {self.seed}"


def trainings(folder: Path, model: str | None = None) -> list[Training]:
    """Return the finished trainings below ``identification/``; a variant names what most others do not share."""
    found = [
        _training(path.parent)
        for path in sorted((folder / "identification").glob("*/*/roles.json"))
        if model in (None, path.parent.parent.name)
    ]
    heads = Counter(training.heads for training in found if training.kind != "duo").most_common(1)
    spans = Counter(training.contexts for training in found).most_common(1)
    for place, training in enumerate(found):
        more = [training.variant]
        if heads and training.heads != heads[0][0]:
            more.append(f"{training.heads} heads")
        if training.contexts not in (spans[0][0], None):
            more.append(f"{' to '.join(map(short_tokens, training.contexts or ()))} contexts")
        found[place] = replace(training, variant=_joined(*more))
    order = {kind: place for place, kind in enumerate(KIND_HUES)}
    return sorted(found, key=lambda t: (order.get(t.kind, 9), t.data != "mini_passkey", t.data, t.variant, t.seed or 0))


def sources(inputs: PaperInputs, model: str) -> list[Source]:
    """Return the labels that differ from the method's own in their roles alone; equal roles count once."""
    base = inputs.label(inputs.spec.method, model)
    rest = {} if base is None else inputs.params(base, model, ROLE_KEYS)
    known = {training.name: training for training in trainings(inputs.folder, model)}
    found: dict[tuple[str, int | None, int | None], Source] = {}
    for label in inputs.labels(inputs.spec.method, model):
        if inputs.params(label, model, ROLE_KEYS) == rest:
            item = _source(label, inputs.params(label, model), known)
            found.setdefault((item.family, item.seed, item.heads), item)
    return list(found.values())


def drawn(found: list[Training]) -> list[Run]:
    """Return the trainings as figures draw them: colour by kind; a second family of a kind is dotted."""
    looks: dict[str, Look] = {}
    for training in found:
        second = any(other.kind == training.kind and other.family in looks for other in found)
        colour = KIND_HUES.get(training.kind, FAINT)
        looks.setdefault(training.family, Look(training.family, colour, "", second, False))
    return [Run(t.name, t.family, t.words, looks[t.family], t.curve, t.gates[t.gates["layer"] > 0]) for t in found]


def _training(folder: Path) -> Training:
    run = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    roles = read_role_file(folder / "roles.json")
    curve, gates = (pd.read_csv(folder / f"{name}.csv") for name in ("curve", "gates"))
    said = {**(run.get("settings") or {}), **run}
    contexts = said.get("contexts")
    return Training(
        folder.name, folder.parent.name, roles.kind, str(said.get("data", "")), said.get("seed"),
        _variant(said, roles.kind), (min(contexts), max(contexts)) if contexts else None, roles, curve, gates,
    )  # fmt: skip


def _variant(run: Mapping[str, Any], kind: str) -> str:
    """Return what a training does otherwise than its kind's default, in words."""
    if (run.get("objective"), run.get("inherit"), run.get("selection")) == ("code", "previous_layer", "code"):
        return "as released"
    other_objective = run.get("objective", "paper") != _OWN_OBJECTIVE.get(kind, "paper")
    return _joined(
        f"objective {run['objective']}" if other_objective else "",
        "lists one layer old" if run.get("inherit", "chain") != "chain" else "",
        "selection as in the code" if run.get("selection", "causal") != "causal" else "",
    )


def _source(label: str, params: Mapping[str, Any], known: Mapping[str, Training]) -> Source:
    name, count = str(params.get("roles", "spread")), params.get("retrieval_heads")
    if not name.endswith(".json"):
        return Source(label, name, name, seed=params.get("roles_seed", 0) if name == "random" else None, heads=count)
    training = known.get(Path(name).stem) or known.get(Path(name).parent.name)
    if training is not None:
        return Source(label, training.kind, training.family, training.data, training.seed, count or training.heads)
    path = next((p for p in (Path(name), _REPOSITORY / name) if p.is_file()), None)
    if path is None:
        return Source(label, Path(name).stem, Path(name).stem, heads=count)
    roles = read_role_file(path)
    said = {**(roles.run.get("settings") or {}), **roles.run}
    data = str(said.get("data", ""))
    family = _joined(roles.kind, data, _variant(said, roles.kind))
    return Source(label, roles.kind, family, data, said.get("seed"), count or sum(map(sum, roles.roles)))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)
