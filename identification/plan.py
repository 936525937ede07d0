"""Head identification's part of a configuration: models, device and data, and the section itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from longdecode.engine.errors import ConfigError
from longdecode.evals.config_values import Section
from longdecode.evals.names import unknown_name
from longdecode.identification.spec import IdentificationRun, IdentificationSpec, read_identification


@dataclass(frozen=True, slots=True)
class IdentificationPlan:
    """What to identify heads with; ``models`` maps a name to its path or hub id and revision."""

    source: str
    profile: str
    device: str
    dtype: str
    models: Mapping[str, tuple[str, str | None]]
    data: Mapping[str, str | None]
    identification: IdentificationSpec

    def run(self, name: str) -> IdentificationRun:
        """The run of this name.

        Raises:
            ConfigError: there is none, with the nearest name.
        """
        runs = self.identification.runs
        if name not in runs:
            raise ConfigError(f"{self.source}: {unknown_name('identification run', name, runs)}")
        return runs[name]


def load_plan(path: Path | str) -> IdentificationPlan:
    """Read head identification's part of a configuration file.

    Raises:
        ConfigError: no such file, no YAML, or a wrong value.
    """
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such configuration file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {error}") from error
    return build_plan(values, str(path))


def build_plan(values: Mapping[str, Any], source: str) -> IdentificationPlan:
    """The same from a configuration in memory; keys that concern other jobs are not looked at.

    Raises:
        ConfigError: a wrong value.
    """
    top = Section(values, source)
    models = {name: (s.text("path"), s.optional_text("revision")) for name, s in top.section("models").named_sections()}
    data = top.section("data")
    return IdentificationPlan(
        source=source,
        profile=top.folder_name("profile"),
        device=top.text("device", "auto"),
        dtype=top.text("dtype", "auto"),
        models=models,
        data={name: data.optional_text(name) for name in ("hotpotqa", "pg19")},
        identification=read_identification(top.section("identification"), models),
    )
