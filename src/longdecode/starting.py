"""A configuration for a checkpoint of one's own: methods, suites, contexts that fit, and what is learned first."""

from __future__ import annotations

import json
import math
import os
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml

from longdecode.doctor import reached
from longdecode.engine.config_reader import built_model, read_config
from longdecode.engine.errors import ConfigError, refuse_unknown
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.evals.config_values import parse_yaml
from longdecode.evals.datasets.reader import FROM_HUB, SOURCES
from longdecode.evals.fingerprint import REPOSITORY
from longdecode.evals.plan import Plan
from longdecode.evals.preflight import DATA_FOLDER, check, look, require_hub_id
from longdecode.evals.run_config import build_run_config
from longdecode.evals.store import write_text
from longdecode.evals.sweep import RUNTIME_GB, heads_seconds, piece_bytes, size_of, training_seconds
from longdecode.evals.tasks.registry import default_tasks, folder_of, get_suite, suite_names
from longdecode.evals.training_spec import RoleTraining
from longdecode.learned import LEARNED, own_file
from longdecode.methods.registry import method_names
from longdecode.training.roles.data.passkey import Passkey

HEAD = """\
# Made by longdecode; config/README.md explains every key. Nothing is tuned on this model yet, as tables say.
# `longdecode run {profile}.yaml --target tune` tunes; then put in place of `allow_untuned`:
# tuning: {{records: {{{label}: results/{profile}/tuning/{label}.json}}}}
# `full_min`: below this share of right answers of Full the run stops.
"""
RULER_WITHOUT_DATA = ("niah_single_1", "niah_multikey_2", "niah_multikey_3", "vt", "fwe")
FORKED = ("nosa", "dma")
"""Methods whose checkpoint has to be trained further."""
BATCHES = (8, 4, 2, 1)
PASSKEY_TOKENS, MARGIN = 1000, 1.25
"""Tokens of ten passkeys of 32 words, about, where no tokenizer is here; other words take up to a quarter more."""


@dataclass(frozen=True, slots=True)
class Choices:
    """One run, as the command line asks for it."""

    model: str
    methods: Sequence[str]
    suites: Sequence[str]
    contexts: Sequence[int]
    budgets: Sequence[float | int]
    samples: int
    data: Mapping[str, str]


class Starting:
    """The text of a configuration for some choices.

    Args:
        choices: what the command line says.
        label: the model's name in tables.
        profile: name of the run.
        note: says what was found, left out and comes first.

    Raises:
        CheckpointError: the folder is no checkpoint that can be read.
        ConfigError: a method or suite is unknown, with the nearest name; a method needs another checkpoint; or not
            even the shortest context fits the model and this machine.
    """

    def __init__(self, choices: Choices, label: str, profile: str, note: Callable[[str], object]):
        refuse_unknown("--methods", "method", choices.methods, method_names())
        refuse_unknown("--suite", "suite", choices.suites, suite_names())
        self.choices, self.label, self.profile, self.note = choices, label, profile, note
        self.on_gpu = torch.cuda.is_available()
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.memory = torch.cuda.get_device_properties(0).total_memory if self.on_gpu else pages
        self.folder = _config_folder(choices.model)
        self.config = read_config(self.folder) if self.folder else None
        self.contexts, self.batch = self._fitting()
        self.training: dict[str, Any] = {}
        self.data = dict(choices.data)
        methods: dict[str, Any] = {"full": {}} | {name: self._method(name) for name in choices.methods}
        suites: dict[str, Any] = {}
        for name in dict.fromkeys(choices.suites):
            self._add(name, suites)
        timed = {"bench": "decode", "model": self.label, "contexts": self.contexts[-1:], "budgets": choices.budgets}
        values = {
            "profile": profile, "device": "auto", "models": {self.label: {"path": choices.model}}, "methods": methods,
            "allow_untuned": True, "budgets": choices.budgets, "suites": suites, "data": self.data,
            "throughput": [timed] if self.on_gpu else [], "training": self.training, "instrument": {"full_min": 0.0},
        }  # fmt: skip
        # Through JSON, so that YAML writes a list out wherever it stands.
        kept = json.loads(json.dumps({key: value for key, value in values.items() if value}))
        shown = yaml.safe_dump(kept, sort_keys=False, default_flow_style=None, width=120)
        self.text = HEAD.format(profile=profile, label=label) + shown

    def _fitting(self) -> tuple[list[int], int]:
        """Return the contexts that model and memory allow, and the largest batch that fits the longest."""
        asked = sorted(set(self.choices.contexts))
        if not self.on_gpu:
            self.note("no GPU here: steps are not timed, and jobs take far longer than GPU hours say")
        if self.config is None:
            self.note(f"{self.choices.model} is not built yet: that contexts and memory suffice is not checked")
            return asked, 1
        limit, width = self.config.max_positions, 2 if self.on_gpu else 4
        # The prompt's cache is kept beside the one that a method decodes with.
        token, weights = 2 * self.config.kv_bytes_per_token(width), width * self.config.parameters()
        free = self.memory - RUNTIME_GB * 1e9 - weights - width / 2 * piece_bytes(self.config.hidden_size)
        kept = sorted({min(context, limit) for context in asked if min(context, limit) * token <= free})
        said = f"{self.label} reads {limit:,} tokens at most, and {self.memory / 1e9:,.0f} GB of memory are here"
        if not kept:
            raise ConfigError(f"--model {self.choices.model}: no context of {asked} fits: {said}")
        if kept != asked:
            self.note(f"contexts {kept} instead of {asked}: {said}")
        return kept, next((batch for batch in BATCHES if batch * kept[-1] * token <= free), 1)

    def _method(self, name: str) -> dict[str, Any]:
        """Return a variant, with the file that it needs; the step that makes it is noted where there is none yet."""
        if name in FORKED and not (self.config and self.config.importance_file):
            raise ConfigError(f"--methods {name}: a trained fork of {self.label} is needed: docs/reproduction-nosa.md")
        if name not in LEARNED:
            return {}
        (parameter, kind), config = LEARNED[name], self.config
        if config is None or self.folder is None or (size := size_of(str(self.folder))) is None:
            raise ConfigError(f"--methods {name}: {self.choices.model} is not built yet, and {parameter} are its own")
        if file := own_file(name, self.folder, config, self.profile):
            self.note(f"{name}: {parameter} of this checkpoint: {file}")
            return {"params": {parameter: str(file)}}
        if parameter == "roles":
            # An eighth of all heads and layer 0 as in LycheeDecode's paper, half of them as in DuoAttention's.
            each, part = config.num_kv_heads, 8 if name == "lychee" else 2
            heads = max(config.num_layers * each // part, each + 1)
            ends = self._training_contexts(name, config.max_positions, self.folder)
            own = {"recipe": kind, "model": self.label, "heads": heads, "contexts": ends, "data": "passkey"}
            self.training[f"{name}_roles"] = own
            seconds = training_seconds(RoleTraining(name, self.label, heads, (ends[0], ends[-1])), size)
            made = f"results/{self.profile}/identification/{self.label}/{name}_roles/roles.json"
        else:
            self._place("pg19")
            made = f"results/{self.profile}/heads/{self.label}/{kind}/books/heads.json"
            seconds = heads_seconds(self.label, size)
        self.note(f"first step: {parameter} of {self.label} for {name}, about {seconds / 60:,.0f} GPU minutes: {made}")
        return {"params": {parameter: made}}

    def _training_contexts(self, name: str, limit: int, folder: Path) -> list[int]:
        """Return the shortest and longest context of roles: the passkeys fit the one, their answers behind the other.

        From 1,024 tokens, as in LycheeDecode's paper, to the longest that is asked for or 8,192.
        """
        answers = PASSKEY_TOKENS
        if any(folder.glob("tokenizer*")):
            source = Passkey(load_tokenizer(folder), lambda _, tokens: (0,) * tokens)
            answers = math.ceil(MARGIN * len(source.sample(random.Random(0), 1 << 16).targets))
        shortest = 1024 * math.ceil(answers / 1024)
        if shortest + answers > limit:
            need = f"--methods {name}: roles are learned on passkeys and their answers, {shortest + answers:,} tokens"
            raise ConfigError(f"{need}; {self.label} reads {limit:,}")
        return sorted({shortest, max(shortest, min(8192, self.contexts[-1], limit - answers))})

    def _add(self, name: str, suites: dict[str, Any]) -> None:
        """Add a suite under the protocol of its name, and where its data is."""
        own, question = folder_of(name)
        spec = suites.setdefault(own, {"contexts": self.contexts, "samples": self.choices.samples, "batch": self.batch})
        if question:
            spec["question"] = [*spec.get("question", ()), question]
        for key in get_suite(name).data:
            self._place(key)
            if key == "ruler" and key not in self.data:
                free = [task for task in default_tasks(own) if task.removesuffix("_chat").endswith(RULER_WITHOUT_DATA)]
                spec["tasks"] = free
                self.note(f"{name}: its {len(free)} tasks without data; `longdecode data fetch ruler` for all")
        if (keys := get_suite(name).data) and not {"ruler", *self.data}.intersection(keys):
            raise ConfigError(
                f"--suite {name}: its data is not in {DATA_FOLDER}/{keys[0]} and not all on the hub; `longdecode data "
                f"fetch {own}` fetches it, --data {keys[0]}=FOLDER says where it is"
            )

    def _place(self, key: str) -> None:
        """Say where a data set is: as given, in the layout, or on the hub."""
        folder, on_hub = Path(DATA_FOLDER, key), all(data.hub_id for data in SOURCES.values() if data.key == key)
        if key not in self.data and (folder.is_dir() or on_hub):
            self.data[key] = str(folder) if folder.is_dir() else FROM_HUB


def write_config(choices: Choices, out: Path | None, force: bool, note: Callable[[str], object]) -> Path:
    """Write the configuration, unless it is there just so, and return its path.

    Args:
        out: its path; named after the model in this folder where it is left out.

    Raises:
        ConfigError: another one is there; or as ``Starting``.
    """
    label = re.sub("[^a-z0-9.]+", "-", Path(choices.model).name.lower()).strip("-.") or "model"
    out = out or Path(f"{label}.yaml")
    if out.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"--out {out}: the name of a configuration ends in .yaml")
    made = Starting(choices, label, out.stem, note)
    run = build_run_config(parse_yaml(made.text, str(out)), str(out))
    files = Plan(run, REPOSITORY).made
    look(run, files)
    check(run, files, device=False)
    if out.exists() and not force and out.read_text(encoding="utf-8") != made.text:
        ways = f"--force writes over it, --out names another, and `longdecode run {out}` runs it as it is"
        raise ConfigError(f"{out} is there already, with other choices; {ways}")
    write_text(out, made.text)
    return out


def _config_folder(model: str) -> Path | None:
    """Return the folder with a checkpoint's config.json, fetched if it is the hub's; ``None`` of one yet to be built.

    Raises:
        ConfigError: the checkpoint is not here, and the hub does not give it.
    """
    folder = built_model(model) or Path(model).expanduser()
    if folder.is_dir() or built_model(model):
        return folder if folder.is_dir() else None
    require_hub_id(model)
    from huggingface_hub import hf_hub_download

    offline = reached()
    try:
        return Path(hf_hub_download(model, "config.json", local_files_only=bool(offline))).parent
    except Exception as error:  # the hub's errors share no base
        why = offline or " ".join(str(error).split())[:200]
        raise ConfigError(f"--model {model}: no such folder, and not of the hub: {why}") from None
