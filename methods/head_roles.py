"""Name the KV heads that retrieve: role files, and the role maps that need no file."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.model_config import ModelConfig

Roles = tuple[tuple[bool, ...], ...]
"""``[L][H_kv]``: whether a KV head retrieves."""

SOURCES = ("spread", "random")
"""Role maps that are made up by rule; anything else names a role file."""

_TABLES = ("scores", "roles")


class RoleFile(BaseModel):
    """Head roles of one checkpoint, as identification writes them.

    ``scores`` ``[L][H_kv]`` rank the heads, higher is more retrieval; ``roles`` are the chosen ones, 1 for retrieval.
    ``kind`` says how they were found and ``run`` holds the run's settings and provenance.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int = Field(default=1, ge=1, le=1)
    model: str
    layers: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    kind: str
    scores: list[list[float]]
    roles: list[list[int]]
    run: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_a_map(self) -> RoleFile:
        for name, table in (("scores", self.scores), ("roles", self.roles)):
            if len(table) != self.layers or any(len(row) != self.kv_heads for row in table):
                raise ValueError(f"{name} is no table of {self.layers} layers x {self.kv_heads} KV heads")
        if any(role not in (0, 1) for row in self.roles for role in row):
            raise ValueError("roles are 0 or 1")
        return self


def read_role_file(path: Path | str) -> RoleFile:
    """Read and check a role file.

    Raises:
        ConfigError: it is missing, is not JSON, or does not fit the schema.
    """
    path = Path(path)
    try:
        return RoleFile.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such role file; `snakemake lychee_train` makes those that a run asks for"
        ) from None
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors())
        raise ConfigError(f"{path}: {faults}") from error


def write_role_file(path: Path | str, roles: RoleFile) -> None:
    """Write a role file, whole or not at all; one row of a table a line."""
    path = Path(path)
    values = roles.model_dump()
    parts = [json.dumps({name: value for name, value in values.items() if name not in _TABLES}, indent=2)[:-2]]
    for name in _TABLES:
        rows = ",\n".join(f"    {json.dumps(row)}" for row in values[name])
        parts.append(f'  "{name}": [\n{rows}\n  ]')
    partial = path.with_suffix(".partial")
    partial.write_text(",\n".join(parts) + "\n}\n", encoding="utf-8")
    partial.replace(path)


def learned_heads(source: object) -> dict[str, float]:
    """Of a role file: heads whose gate ended over one half, and heads wanted; what is over or under is filled or cut.

    Args:
        source: a method's parameter ``roles``; nothing is known of maps made by rule and of files that do not say.
    """
    if not isinstance(source, str) or not source.endswith(".json"):
        return {}
    heads = read_role_file(source).run.get("heads", {})
    names = {"heads_over_half": "over_threshold", "heads_wanted": "target"}
    return {name: float(heads[key]) for name, key in names.items() if key in heads}


def resolve_roles(
    source: str, retrieval_heads: int | None, seed: int, config: ModelConfig, *, layer0: bool = True
) -> Roles:
    """The role map that a method's parameters name.

    Args:
        source: a role file (``*.json``), ``spread`` (evenly over layers and heads: for times and tests, nothing is
            learned) or ``random``.
        retrieval_heads: how many KV heads retrieve, those of layer 0 included. With a file the best-scored are taken,
            or, left out, the roles as stored; the other two sources need a number.
        seed: of ``random``.
        layer0: all heads of layer 0 retrieve, as LycheeDecode has it.

    Raises:
        ConfigError: an unknown source, no number where one is needed, or a file that cannot be read.
        UnsupportedCellError: the file is of a model of another shape, or the number is out of range.
    """
    layers, heads = config.num_layers, config.num_kv_heads
    fixed = heads if layer0 else 0
    if retrieval_heads is not None and not fixed <= retrieval_heads <= layers * heads:
        raise UnsupportedCellError(
            f"{retrieval_heads} retrieval heads: {fixed} to {layers * heads} are possible with {layers} layers of "
            f"{heads} KV heads"
        )
    if source.endswith(".json"):
        return _from_file(Path(source), retrieval_heads, config, layer0)
    if source not in SOURCES:
        raise ConfigError(f"roles = {source!r}: a role file (*.json) or one of {', '.join(SOURCES)} is needed")
    if retrieval_heads is None:
        raise ConfigError(f"roles = {source!r} needs retrieval_heads, how many KV heads retrieve")
    free = [(layer, head) for layer in range(int(layer0), layers) for head in range(heads)]
    count = retrieval_heads - fixed
    if source == "random":
        chosen = random.Random(f"head roles {seed}").sample(free, count)
    else:
        chosen = _spread(free, count, heads)
    return _as_map(chosen, config, layer0)


def _from_file(path: Path, retrieval_heads: int | None, config: ModelConfig, layer0: bool) -> Roles:
    file = read_role_file(path)
    layers, heads = config.num_layers, config.num_kv_heads
    if (file.layers, file.kv_heads) != (layers, heads):
        raise UnsupportedCellError(
            f"{path} holds roles of {file.layers} layers x {file.kv_heads} KV heads ({file.model}); this model has "
            f"{layers} x {heads}"
        )
    first = int(layer0)
    if retrieval_heads is None:
        chosen = [(layer, head) for layer in range(first, layers) for head in range(heads) if file.roles[layer][head]]
    else:
        free = [(layer, head) for layer in range(first, layers) for head in range(heads)]
        ranked = sorted(free, key=lambda at: (-file.scores[at[0]][at[1]], at))
        chosen = ranked[: retrieval_heads - (heads if layer0 else 0)]
    return _as_map(chosen, config, layer0)


def _spread(free: list[tuple[int, int]], count: int, heads: int) -> list[tuple[int, int]]:
    """``count`` places at even distances down the layers, the head moving on by one each time."""
    layers = len(free) // heads
    taken: list[tuple[int, int]] = []
    for i in range(count):
        layer = i * layers // count
        used = sum(1 for place in taken if place[0] == free[layer * heads][0])
        taken.append(free[layer * heads + (layer + used * max(1, heads // 2) + used // 2) % heads])
    # A layer that holds several may have met the same head twice: fill up from what is left, in order.
    distinct = list(dict.fromkeys(taken))
    rest = (place for place in free if place not in set(distinct))
    return distinct + [next(rest) for _ in range(count - len(distinct))]


def _as_map(chosen: list[tuple[int, int]], config: ModelConfig, layer0: bool) -> Roles:
    places = set(chosen)
    return tuple(
        tuple((layer0 and layer == 0) or (layer, head) in places for head in range(config.num_kv_heads))
        for layer in range(config.num_layers)
    )
