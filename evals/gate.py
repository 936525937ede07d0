"""The gate: a label's conformance on a device, checked once and kept in a file that the jobs read.

Its first part runs the conformance suite on a tiny model, its second the kernels of the run's own launches.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import BaseModel, ConfigDict, ValidationError

from longdecode.engine.device import device_name
from longdecode.engine.errors import GateError, UnsupportedCellError
from longdecode.evals import provenance
from longdecode.evals.fingerprint import gate_code_hash
from longdecode.evals.gate_launches import Launched, check_label
from longdecode.evals.manifest import seal
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import replacing
from longdecode.methods.conformance import check_method


class Verdict(BaseModel):
    """The outcome of conformance for one set of parameters; ``message`` says why it did not pass."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    params: dict[str, Any]
    status: Literal["passed", "failed_gate", "unsupported"]
    message: str = ""

    @property
    def refusal(self) -> Exception | None:
        """The error that bars these parameters from a table."""
        kinds: dict[str, type[Exception]] = {"failed_gate": GateError, "unsupported": UnsupportedCellError}
        return kinds[self.status](self.message) if self.status in kinds else None


class GateFile(BaseModel):
    """All verdicts on a method's parameters under one label, its launches by model, and what they hold for."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    method: str
    device: str
    code_hash: str
    revision: str
    dirty: bool
    versions: dict[str, str]
    verdicts: tuple[Verdict, ...]
    launches: dict[str, Launched]


class Gate:
    """The gate of a run on a device.

    Args:
        config: the run.
        device: where conformance is checked.
        folder: of the labels' files.
    """

    def __init__(self, config: RunConfig, device: torch.device, folder: Path):
        self.config = config
        self.device = device
        self.folder = folder
        self._verdicts: dict[str, Verdict] = {}
        self._launches: dict[tuple[str, str], Launched] = {}

    def run(self, label: str) -> None:
        """Check every set of parameters that a label has on the run's models, and write the label's file."""
        method = self.config.methods[label].method
        verdicts = tuple(_check(method, self.device, params) for params in self.config.gated_params(label))
        file = GateFile(
            method=method,
            device=device_name(self.device),
            code_hash=gate_code_hash(method),
            revision=provenance.revision(),
            dirty=provenance.is_dirty(),
            versions=provenance.versions(),
            verdicts=verdicts,
            launches=check_label(self.config, label, self.device),
        )
        self._keep(label, file)
        path = self.folder / f"{label}.json"
        with replacing(path) as temporary:
            temporary.write_text(file.model_dump_json(indent=1) + "\n", encoding="utf-8")
        seal(self.folder.parent, [path])

    def refusal(self, label: str, model: str) -> Exception | None:
        """Return the error that bars a label from the cells of a model: of its file, or of a check made now.

        A file that is missing, or holds for another device or other code, is written anew.
        """
        method = self.config.methods[label].method
        gated = self.config.gate_of(label)
        key = _key(method, self.config.methods[label].portable(model))
        if key not in self._verdicts and (file := self._read(gated)) is not None:
            self._keep(gated, file)
        if key not in self._verdicts:
            self.run(gated)
        launched = self._launches.get((gated, model))
        return self._verdicts[key].refusal or (launched.refusal if launched else None)

    def _keep(self, label: str, file: GateFile) -> None:
        self._verdicts |= {_key(file.method, verdict.params): verdict for verdict in file.verdicts}
        self._launches |= {(label, model): launched for model, launched in file.launches.items()}

    def _read(self, label: str) -> GateFile | None:
        """Return a label's file where it holds for this device and code."""
        path = self.folder / f"{label}.json"
        if not path.is_file():
            return None
        try:
            file = GateFile.model_validate_json(path.read_text(encoding="utf-8"))
        except ValidationError:
            return None
        current = (device_name(self.device), gate_code_hash(file.method))
        return file if (file.device, file.code_hash) == current else None


def gate_folder(output: Path) -> Path:
    """Return the folder of gate files: ``gate`` beside the run's ``records`` or ``speed``, else beside the output."""
    room = next((parent for parent in output.parents if parent.name in ("records", "speed")), output)
    return room.parent / "gate"


def _check(method: str, device: torch.device, params: dict[str, Any]) -> Verdict:
    try:
        check_method(method, device, params)
    except GateError as error:
        return Verdict(params=params, status="failed_gate", message=str(error))
    except UnsupportedCellError as error:
        return Verdict(params=params, status="unsupported", message=str(error))
    return Verdict(params=params, status="passed")


def _key(method: str, params: dict[str, Any]) -> str:
    return json.dumps([method, params], sort_keys=True)
