"""Bad configurations and checkpoints: one line each, with file and key, before a job starts, and nothing is written."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from longdecode.engine.errors import LongDecodeError, StorageError
from longdecode.evals import preflight
from longdecode.evals.config_values import parse_yaml, read_yaml
from longdecode.evals.plan import Plan
from longdecode.evals.run_config import build_run_config

HUGE, LONG = 10**12, "x" * 300
BASE = """
profile: trial
device: cpu
models: {tiny: {path: checkpoint}}
methods: {full: {}, quest: {}, lychee: {params: {roles: spread, retrieval_heads: 2}}}
budgets: [0.5, 64]
suites:
  mini_recall: {contexts: [256], samples: 2, batch: 2, tasks: [mini_recall_single]}
"""

VALUES: list[tuple[str, Any]] = [
    ("methods/quest/by_model", {"tiny": {"pages": 1}}), ("methods/..", {"method": "full"}), ("profile", LONG),
    ("profile", ""), ("profile", "a/b"), ("profile", ".."), ("profile", None), ("profile", 3),
    ("profile", "a b"), ("profile", "a\nb"), ("profile", ["x"]),
    ("seed", 2**70), ("seed", -1), ("seed", 1.5), ("seed", "0"), ("seed", True), ("seed", None), ("seed", [1]),
    ("device", "cuda:7"), ("device", "gpu"), ("device", "cuda:x"), ("device", 0), ("device", None), ("device", "cuda"),
    ("dtype", "int8"), ("dtype", 32), ("dtype", ""), ("dtype", ["float32"]),
    ("budgets", [HUGE]), ("budgets", [0]), ("budgets", [-1]), ("budgets", [1.01]), ("budgets", [float("inf")]),
    ("budgets", [float("nan")]), ("budgets", []), ("budgets", None), ("budgets", 0.5), ("budgets", {"a": 1}),
    ("budgets", ["half"]), ("budgets", [0.5, 0.5]), ("budgets", [None]), ("budgets", [2**64]),
    ("models", {}), ("models", None), ("models", ["tiny"]), ("models/tiny", {}), ("models/tiny", None),
    ("models/tiny/path", ""), ("models/tiny/path", 5), ("models/tiny/path", "/nowhere/at/all"),
    ("models/tiny/path", "checkpoint/config.json"),
    ("models/tiny/path", "file.txt"), ("models/tiny/path", "loop"), ("models/tiny/path", "dangling"),
    ("models/tiny/path", LONG * 5), ("models/tiny/path", "checkpoint/missing"), ("models/tiny/path", "../checkpoint"),
    ("models/tiny/revision", 7), ("models/tiny/revison", "main"), (f"models/{LONG}", {"path": "checkpoint"}),
    ("models/a:b", {"path": "checkpoint"}), ("models/Tiny", {"path": "checkpoint"}),
    ("methods", {}), ("methods", None), ("methods", "full"), ("methods", {"quest": {}}), ("methods/qest", {}),
    ("methods/Full", {"method": "full"}),
    ("methods", {"full": {}, "q_a": {"method": "quest"}, "q.a": {"method": "quest"}}),
    (f"methods/{LONG}", {"method": "full"}),
    ("methods/m", {"method": "nothing"}), ("methods/m", {"method": ["full"]}), ("methods/m", 3), ("methods/m", ["x"]),
    ("methods/quest/params", {"page_size": 0}), ("methods/quest/params", {"page_size": HUGE * HUGE}),
    ("methods/quest/params", {"page_size": "16"}), ("methods/quest/params", {"page": 16}),
    ("methods/quest/params", [1]),
    ("methods/quest/params", 5), ("methods/full/budgets", [0.5]), ("methods/quest/budgets", [HUGE]),
    ("methods/quest/suites", ["mini_book"]), ("methods/quest/suites", "all"), ("methods/quest/by_model", {"other": {}}),
    ("methods/quest/by_model", ["tiny"]), ("methods/quest/models", ["other"]), ("models/tiny", {"revision": "x"}),
    ("methods/lychee/params", {"roles": "roles.txt"}), ("methods/lychee/params", {"roles": "missing.json"}),
    ("methods/lychee/params", {"roles": "words.json"}), ("methods/lychee/params", {"roles": "broken.json"}),
    ("methods/lychee/params", {"roles": "folder.json"}),
    ("methods/lychee/params", {"roles": 3}), ("methods/lychee/params", {"roles": ""}),
    ("methods/tidal", {"params": {"reselect_layer": "6"}}), ("methods/streaming", {"params": {"sinks": -4}}),
    ("suites", {}), ("suites", None), ("suites", []), ("suites/mini_recal", {}), ("suites/mini_recall", None),
    ("suites/mini_recall/contexts", []), ("suites/mini_recall/contexts", [HUGE]), ("suites/mini_recall/contexts", [-5]),
    ("suites/mini_recall/contexts", ["256"]), ("suites/mini_recall/contexts", 256),
    ("suites/mini_recall/contexts", [256, 256]), ("suites/mini_recall/contexts", [256.5]),
    ("suites/mini_recall/samples", 0), ("suites/mini_recall/samples", HUGE), ("suites/mini_recall/samples", "2"),
    ("suites/mini_recall/samples", None), ("suites/mini_recall/batch", -1), ("suites/mini_recall/batch", HUGE),
    ("suites/mini_recall/tasks", ["none"]), ("suites/mini_recall/tasks", [None]), ("suites/mini_recall/tasks", "all"),
    ("suites/mini_recall/tasks", []), ("suites/mini_recall/sample", 1), ("suites/mini_recall", [1, 2]),
    ("instrument", {"full_label": "full"}), ("instrument", {"full_min": 2}), ("instrument", "off"),
    ("instrument", {"full_min_by_task": {"x": 1}}), ("instrument", {"full_min": float("nan")}),
    ("data", {"books": "x"}), ("data", {"pg19": "/nowhere"}), ("data", {"pg19": "./nowhere"}), ("data", {"pg19": 5}),
    ("data", ["pg19"]), ("data", {"pg19": ""}), ("throughput", [{"bench": []}, {"bench": "kernels", "ops": 5}]),
    ("throughput", [{"bench": "decode", "model": "other", "contexts": [512], "budgets": [64]}]), ("throughput", 5),
    ("throughput", [{"bench": "decode", "model": "tiny", "contexts": [512], "batches": [HUGE], "budgets": [64]}]),
    ("throughput", [{"bench": "kernels", "contexts": [1]}]), ("throughput", [{"bench": "kernel"}]), ("throughput", [5]),
    ("throughput", [{"bench": "decode", "model": "tiny", "contexts": [512], "rounds": 10**9}]), ("throughput", {}),
    ("training", {"r": {"recipe": "duo", "model": "other", "heads": 2, "contexts": [64]}}),
    ("training", {"r": {"recipe": "duo", "model": "tiny", "heads": 0, "contexts": [64]}}),
    ("training", {"r": {"recipe": "duo", "model": "tiny", "heads": 2, "contexts": [HUGE]}}),
    ("training", {"r": {"recipe": "nosa", "model": "tiny", "seeds": [0, 0]}}), ("training", 5),
    ("overlap", {"other": [256]}), ("locality", {"quest": "other"}), ("jobs", "many"), ("seeds", 1), ("source", "x"),
]  # fmt: skip

TEXTS = {
    "not YAML": "profile: [1", "a list": "- a\n- b", "a word": "hello", "empty": "", "a tab": "a:\n\t- b",
    "NUL": "a: \0",
    "a key twice": BASE + "profile: other\n", "a nested key twice": BASE.replace("quest: {}", "quest: {}, quest: {}"),
    "an alias of itself": BASE + "data: &a {pg19: *a}\n", "a list in itself": BASE.replace("[0.5, 64]", "&b [*b]"),
    "a merge of itself": BASE + "data: &c {<<: *c}\n", "an unknown anchor": BASE + "seed: *nobody\n",
    "an object": BASE + "seed: !!python/object/apply:os.system [echo]\n", "a set": BASE + "seed: !!set {a}\n",
    "a date": BASE + "seed: 2024-01-01\n", "no such day": BASE + "seed: 2024-99-99\n",
    "binary": BASE + "seed: !!binary x\n", "no moment": BASE + "seed: !!timestamp x\n", "no bool": "a: !!bool x",
    "deep": BASE + "data: " + "{a: " * 200 + "1" + "}" * 200, "very deep": BASE + "data: " + "[" * 5000 + "]" * 5000,
    "laughs": BASE + "data:\n  a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"  {b}: &{b} [{','.join(f'*{a}' for _ in range(9))}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "a list as key": BASE + "? [a]\n: 1\n", "a number as key": BASE + "5: 1\n", "null as key": BASE + "~: 1\n",
    "two documents": BASE + "---\na: 1\n", "a key without value": BASE.replace("profile: trial", "profile:"),
    "digits without end": BASE + "seed: " + "9" * 5000 + "\n",
}  # fmt: skip

CONFIG: list[tuple[str, Any]] = [
    (key, value)
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "max_position_embeddings")
    for value in ([32], "thirty-two", 0, -1, 1.5, None, True, 10**15)
] + [
    ("num_key_value_heads", [2]), ("num_key_value_heads", "two"), ("num_key_value_heads", 3),
    ("num_key_value_heads", -2),
    ("head_dim", [8]), ("head_dim", "eight"), ("head_dim", 7), ("intermediate_size", {}), ("intermediate_size", "wide"),
    ("rms_norm_eps", "small"), ("rms_norm_eps", [1e-5]), ("rms_norm_eps", 0), ("rms_norm_eps", float("nan")),
    ("rope_theta", "high"), ("rope_theta", -1.0), ("rope_theta", [1]), ("rope_scaling", [1]), ("rope_scaling", "yarn"),
    ("rope_scaling", {"rope_type": "yarn", "factor": "4"}), ("rope_scaling", {"rope_type": "yarn"}),
    ("rope_scaling", {"rope_type": ["yarn"]}), ("rope_scaling", {"rope_type": "new"}),
    ("rope_parameters", {"rope_type": "llama3", "factor": 0}), ("model_type", ["llama"]), ("model_type", None),
    ("model_type", "gpt2"), ("quantization_config", "int4"), ("quantization_config", {"quant_method": "gptq"}),
    ("num_experts", 8), ("auto_map", {"AutoModel": "x"}), ("hidden_act", "gelu"), ("use_sliding_window", True),
    ("layer_types", ["sliding_attention"]), ("partial_rotary_factor", 0.5), ("partial_rotary_factor", "half"),
]  # fmt: skip


CALLED = {
    "num_key_value_heads": "", "num_attention_heads": "heads", "quantization_config": "quantized", "rope_scaling": "r",
    "rope_parameters": "factor", "model_type": "family", "num_experts": "experts", "hidden_act": "activation",
    "use_sliding_window": "sliding", "layer_types": "sliding", "partial_rotary_factor": "rotary",
}  # fmt: skip
"""Words of the message where the key itself is not named."""


@pytest.fixture
def place(tmp_path: Path, byte_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a good configuration and checkpoint, and the odd files that cases name; it is the current one."""
    shutil.copytree(byte_checkpoint, tmp_path / "checkpoint")
    odd = {"file.txt": "x", "roles.txt": "{}", "words.json": '{"roles": "all"}', "broken.json": "{"}
    for name, text in odd.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nothing")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(text: str) -> None:
    """Do all that a workflow does before its first job."""
    Path("run.yaml").write_text(text)
    config = build_run_config(read_yaml(Path("run.yaml")), "run.yaml")
    made = Plan(config, Path()).made
    preflight.look(config, made)
    preflight.check(config, made)


def listing(place: Path) -> set[tuple[str, int]]:
    paths = (path for path in place.rglob("*") if path.name != "run.yaml" and path != place)
    return {(str(path), path.lstat().st_mtime_ns) for path in paths}


def fault(place: Path, text: str, key: str = "") -> str:
    """Return what is wrong with the refusal of a bad input: nothing, for one line with file and key in two seconds."""
    before, began = listing(place), time.process_time()
    try:
        run(text)
    except LongDecodeError as error:
        line = str(error)
    except Exception as error:
        return f"{key}: {type(error).__name__}: {error}"
    else:
        return f"{key}: accepted: {text[-300:]}"
    if not line.startswith("run.yaml:") or "\n" in line or len(line) > 1500:
        return f"{key}: not one line that begins with the file: {line}"
    if time.process_time() - began > 2:
        return f"{key}: took {time.process_time() - began:.1f} s: {line}"
    if missing := [part for part in key.split("/") if len(part) < 80 and part not in line]:
        return f"{key}: names no {missing}: {line}"
    return "" if listing(place) == before else f"{key}: something was written"


def edited(key: str, value: Any) -> str:
    values = parse_yaml(BASE, "base")
    *parents, last = key.split("/")
    inner = values
    for name in parents:
        inner = inner[name]
    inner[last] = value
    return yaml.safe_dump(values, sort_keys=False)


def test_bad_values(place: Path) -> None:
    assert not list(filter(None, [fault(place, edited(key, value), key.partition("/")[0]) for key, value in VALUES]))


def test_bad_texts(place: Path) -> None:
    assert not [f"{name}{said}" for name, text in TEXTS.items() if (said := fault(place, text))]


def test_texts_damaged_anywhere_are_read_or_refused_in_one_line(place: Path, seed: int) -> None:
    generator, raw = random.Random(seed), BASE.encode()
    for at in generator.sample(range(len(raw)), 30):
        for damaged in (raw[:at], raw[:at] + raw[at + 9 :], raw[:at] + bytes([raw[at] ^ 1 << at % 7]) + raw[at + 1 :]):
            try:
                build_run_config(parse_yaml(damaged.decode(), "run.yaml"), "run.yaml")
            except LongDecodeError as error:
                assert "\n" not in str(error), damaged


def test_bad_config_json(place: Path) -> None:
    file = place / "checkpoint" / "config.json"
    good, faults = json.loads(file.read_text()), []
    for key, value in CONFIG:
        file.write_text(json.dumps(good | {key: value}))
        faults.append(fault(place, BASE, f"models.tiny/checkpoint/config.json/{CALLED.get(key, key)}"))
    assert not list(filter(None, faults))


def damages(folder: Path) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and act of every damage to a checkpoint's files."""
    config, weights, tokenizer = (folder / name for name in ("config.json", "model.safetensors", "tokenizer.json"))
    index = folder / "model.safetensors.index.json"
    raw, tensors = weights.read_bytes(), load_file(weights)
    norm = "model.norm.weight"

    def saved(changes: dict[str, torch.Tensor | None]) -> Callable[[], object]:
        kept = {name: tensor for name, tensor in (tensors | changes).items() if tensor is not None}
        return lambda: save_file(kept, weights, metadata={"format": "pt"})

    for text in ("", "{", "[]", "null", "5", '"x"', "{" * 9999, "\x00", '{"a": 1,}'):
        yield "config.json", lambda text=text: config.write_text(text)
    yield "config.json", lambda: config.write_bytes(b"\xff\xfe{}")
    yield "config.json", config.unlink
    yield "config.json", lambda: (config.unlink(), config.symlink_to("config.json"))
    yield "config.json", lambda: (config.unlink(), config.mkdir())
    for text in ("", "{", "[]", "null", "{}", '{"model": 5}', '{"version": "1.0", "model": {"type": "none"}}'):
        yield "tokenizer.json", lambda text=text: tokenizer.write_text(text)
    yield "tokenizer", tokenizer.unlink
    yield "tokenizer", lambda: (tokenizer.unlink(), tokenizer.symlink_to("tokenizer.json"))
    for text in ("{}", "[]", "{", '{"weight_map": []}', '{"weight_map": {"a": 5}}', '{"weight_map": {"a": "../x"}}'):
        yield "index", lambda text=text: index.write_text(text)
    yield "index", lambda: index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    yield "index", lambda: index.symlink_to(index.name)
    yield "git lfs pull", lambda: weights.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    long, braces = struct.pack("<Q", 1 << 60) + raw[8:], raw[:8] + b"{" * (len(raw) - 8)
    for content in (b"", raw[:100], raw[:-8], long, braces):
        yield "model.safetensors", lambda content=content: weights.write_bytes(content)
    yield "model.safetensors", lambda: (weights.unlink(), weights.symlink_to(weights.name))
    yield "no weights", weights.unlink
    yield "may run code", lambda: weights.rename(folder / "pytorch_model.bin")
    for tensor in (None, torch.ones(31), torch.ones(32).int(), torch.ones(32).to(torch.float8_e4m3fn)):
        yield norm, saved({norm: tensor})
    yield "fit no part", saved({"model.layers.7.mlp.up_proj.weight": torch.ones(3)})
    yield "generation_config.json", lambda: (folder / "generation_config.json").write_text("{")
    yield "eos_token_id", lambda: (folder / "generation_config.json").write_text('{"eos_token_id": "end"}')


def test_damaged_checkpoints(place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, good = place / "checkpoint", tmp_path_factory.mktemp("good") / "checkpoint"
    shutil.copytree(folder, good)
    faults = []
    for number in range(len(list(damages(folder)))):
        shutil.rmtree(folder)
        shutil.copytree(good, folder)
        named, act = list(damages(folder))[number]
        act()
        faults.append(fault(place, BASE, f"models.tiny/{named}"))
    assert not list(filter(None, faults))


def test_a_misspelt_folder_is_not_taken_for_a_model_of_the_hub(place: Path) -> None:
    for good in ("miniature/weights", "models/miniature/weights"):
        wrong = good.replace("miniature", "minature")
        run(BASE.replace("checkpoint", shutil.copytree(place / "checkpoint", good)))
        with pytest.raises(LongDecodeError, match=f"no folder {wrong} here; nearest folder: {good}"):
            run(BASE.replace("checkpoint", wrong))
    with pytest.raises(LongDecodeError, match="'minature'; nearest valid name: 'models/miniature/weights'"):
        run(BASE.replace("checkpoint", "minature"))


@pytest.mark.parametrize("word", ["qwen2.5-coder-1.5", "Qwen2.5-Coder-1.5B", "qwen2.5_coder_1.5b"])
def test_one_word_that_is_no_model_is_refused_with_the_nearest(place: Path, word: str) -> None:
    with pytest.raises(LongDecodeError, match=rf"\.tiny: unknown model '{word}'; nearest.*'qwen2\.5-coder-1\.5b'"):
        run(BASE.replace("checkpoint", word))


def test_head_roles_of_a_mixture_of_experts_are_refused(place: Path, tiny_checkpoint: Callable[[str], Path]) -> None:
    shutil.copytree(tiny_checkpoint("qwen3_moe"), place / "checkpoint", dirs_exist_ok=True)
    run(BASE)
    with pytest.raises(LongDecodeError, match=r"run\.yaml: models\.tiny: a mixture of experts; head roles"):
        run(BASE + "training: {mine: {recipe: duo, model: tiny, heads: 2, contexts: [64, 128]}}")


def test_a_read_only_place_is_named(place: Path) -> None:
    (place / "results").mkdir(mode=0o555)
    if os.access(place / "results", os.W_OK):  # root writes everywhere
        (place / "results").rmdir()
        (place / "results").write_text("a file")
    plan = Plan(build_run_config(parse_yaml(BASE, "run.yaml"), "run.yaml"), Path())
    with pytest.raises(StorageError, match=r"results/trial could not be written: "):
        plan.hold_profile()


def test_a_folder_of_data_is_no_hub_id() -> None:
    faults = [preflight.data_fault("ruler", Path(text)) for text in ("ruler/data", "hub", __file__)]
    assert all("no such folder" in str(fault) for fault in faults)
    assert preflight.data_fault("longbench", Path("data/longbench")) and preflight.data_fault("math", Path("a/b"))
    assert preflight.data_fault("hotpotqa", Path("/no.json")) == "no such folder: /no.json"
    own = (("hotpotqa", __file__), ("hotpotqa", "hotpotqa/hotpot_qa"))  # training data of a user's
    hub = (("longbench", "zai-org/LongBench"), ("math", "hub"), ("pg19", "emozilla/pg19-test"))
    for name, known in (*own, *hub):
        assert preflight.data_fault(name, Path(known)) is None
