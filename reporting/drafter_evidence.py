"""Tell which measured draft stands, which it replaces, and which methods of the registry no matrix measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longdecode.engine.errors import LongDecodeError
from longdecode.evals.records import Record
from longdecode.methods.conformance_bench import CONFIG
from longdecode.methods.registry import get_method, load_card, method_names
from longdecode.reporting import wording
from longdecode.reporting.drafted import drafters
from longdecode.reporting.papers.blocks import Block, Listing, MissingResult, Prose
from longdecode.reporting.papers.tokenswift.texts import run_of

REFERENCE = "full"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """One set of weights; a name may have had several."""

    model: str
    weights: str

    @property
    def words(self) -> str:
        """The model with the beginning of its weights' hash."""
        return f"{self.model} (weights {self.weights[:8]})"


def checkpoint_of(record: Record) -> Checkpoint:
    """Return the checkpoint that wrote a text."""
    return Checkpoint(record.model, record.provenance.model_hash)


def standing_drafts(folder: Path, records: Sequence[Record]) -> tuple[list[Sequence[Record]], list[Sequence[Record]]]:
    """Return the texts of each draft by the newest run that has it, and those of older runs that they replace.

    Args:
        folder: a run's results.
        records: texts of one checkpoint, sampler and length of prompt.
    """
    found: dict[tuple[str, str], dict[str, list[Record]]] = {}
    for record in records:
        runs = found.setdefault((record.label, record.budget), {})
        runs.setdefault(run_of(folder, record), []).append(record)
    newest, older = list[Sequence[Record]](), list[Sequence[Record]]()
    for runs in found.values():
        first, *others = sorted(runs.values(), key=lambda own: max(r.provenance.started_at for r in own), reverse=True)
        newest.append(first)
        older += others
    return newest, older


def missing(config: Mapping[str, Any], records: Sequence[Record], command: str) -> list[Block]:
    """Return the attention methods of the registry without a text as the drafter, each with what stands in its way.

    Args:
        config: the run's configuration.
        records: the texts of all matrices.
        command: makes the texts of one run; ``{run}`` stands for its name.
    """
    attention = [name for name in method_names() if load_card(name).kind == "attention" and name != REFERENCE]
    measured = set(drafters(r for r in records if r.status == "ok").values())
    items, open_runs = [], list[str]()
    for name in attention:
        if name not in measured:
            reason, runs = _reason(name, config, records)
            items.append(f"`{name}`: {reason}.")
            open_runs += [run for run in runs if run not in open_runs]
    if not items:
        return [Prose(f"All {len(attention)} attention methods of the registry have a text as the drafter.")]
    verb = "has" if len(items) == 1 else "have"
    told = f"Of {len(attention)} attention methods of the registry, {len(items)} {verb} no text as the drafter."
    holes = [MissingResult(f"The run {run} has no texts.", command.format(run=run)) for run in open_runs]
    return [Prose(told), Listing(items), *holes]


def _reason(name: str, config: Mapping[str, Any], records: Sequence[Record]) -> tuple[str, list[str]]:
    """Return why a method has no text, and the configured runs that would write it."""
    if refusal := _refusal(name):
        return refusal, []
    tried = [r for r in records if drafters([r]).get(r.label.partition("+")[0]) == name]
    if tried:
        return f"{tried[0].status} on {tried[0].model}: {tried[0].reason}", []
    labels = {label for label, entry in (config.get("methods") or {}).items()
              if (entry or {}).get("method", label) == name}  # fmt: skip
    runs = (config.get("generation") or {}).get("runs") or {}
    named = {run: str(entry["model"]) for run, entry in runs.items() if labels & set(entry.get("drafters") or ())}
    if not named:
        return "no run of this configuration lets it draft", []
    where = wording.listing([f"`{run}` on {model}" for run, model in named.items()])
    return f"configured in {where}, no record", list(named)


def _refusal(name: str) -> str:
    """Return why a method cannot draft at all; empty where it can."""
    params = dict(load_card(name).conformance.params)
    try:
        get_method("speculate").from_budget(64, CONFIG, drafter=name, drafter_params=params)
    except LongDecodeError as error:
        return f"cannot draft: {error}"
    return ""
