"""A configuration to start from, for a checkpoint of one's own: tasks that need no data set, budgets, five methods."""

from __future__ import annotations

import re
from pathlib import Path

from longdecode.engine.config_reader import read_config, resolve_checkpoint
from longdecode.engine.errors import ConfigError

TEXT = """\
# Made by `longdecode init`; config/README.md explains every key. Cost: longdecode plan {profile}.yaml
profile: {profile}
device: auto
models:
  {label}: {{path: {path}}}
methods:
  full: {{}}
  streaming: {{}}
  snapkv: {{}}
  quest: {{}}
  shadowkv: {{}}
# Nothing is tuned on this model yet: tables say so. `longdecode run {profile}.yaml --target tune` does that.
allow_untuned: true
budgets: [1024, 4096]
suites:
  passkey: {{contexts: {contexts}, samples: 20, batch: 4}}
  json_kv: {{contexts: {contexts}, samples: 32, batch: 4}}
  mini_longgen: {{contexts: [{shortest}], samples: 32, batch: 4, tasks: [mini_longgen_45]}}
# Steps at the longest context, each in pairs with Full; prefills are not timed.
throughput:
  - {{bench: decode, model: {label}, contexts: [{context}], budgets: [1024]}}
# A task that the model itself cannot do says nothing about a method; below this share the run stops.
instrument: {{full_min: 0.0}}
"""


def starting_config(model: str, profile: str, context: int) -> str:
    """Return the text of a configuration for a model, at contexts up to the one given or the model's own limit.

    Args:
        model: a folder, whose limit is read, or a hub id, which is not looked at.

    Raises:
        CheckpointError: the folder is no checkpoint that can be read.
        ConfigError: the model's context is too short.
    """
    folder = Path(model).expanduser()
    if folder.exists():
        context = min(context, read_config(resolve_checkpoint(folder)).max_positions)
    if context < 1024:
        raise ConfigError(f"{model}: a context of {context} tokens; 1,024 at least are needed")
    label = re.sub("[^a-z0-9.]+", "-", Path(model).name.lower()).strip("-") or "model"
    contexts = sorted({context, max(1024, context // 4)})
    return TEXT.format(
        profile=profile, label=label, path=model, contexts=contexts, shortest=contexts[0], context=context
    )
