"""From a GGUF file to a checkpoint: the numbers that come out, files that are refused, and the published wheels."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import CheckpointError, DataUnavailableError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.tokenizer import eos_ids, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.methods.registry import get_method
from longdecode.models import gguf
from longdecode.models.build import build, convert, lengthen
from longdecode.models.check import largest_logit_difference, logit_difference
from longdecode.models.download import look, obtained
from longdecode.models.gguf import open_gguf, value
from longdecode.models.sources import MODELS, BuiltModel
from tiny_gguf import SPECIAL, TinyGguf, cut_as_qwen2tokenizer_cuts, vocabulary

IDS = torch.arange(3, 40)[None]
Maker = Callable[..., TinyGguf]


@torch.no_grad()
def logits(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)(IDS).logits


@pytest.mark.parametrize(
    ("family", "kind", "own_head"),
    [("llama", "F16", False), ("llama", "Q8_0", True), ("qwen2", "Q8_0", True), ("qwen2", "Q4_1", False)],
)
def test_a_checkpoint_computes_what_its_file_holds(
    tiny_gguf: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kind: str,
    own_head: bool,
) -> None:  # fmt: skip
    tiny = tiny_gguf(family, kind, own_head)
    monkeypatch.setattr(gguf, "CHUNK_ELEMENTS", 1000)  # many pieces a tensor, the last one shorter
    convert(tiny.file, tiny.source, tmp_path)
    with torch.no_grad():
        expected = tiny.model(IDS).logits
    assert expected.std() > 0.1 and torch.allclose(logits(tmp_path), expected, atol=1e-4)
    difference, layers = largest_logit_difference(tmp_path)
    assert difference < 1e-4 and layers == 3
    difference, layers = largest_logit_difference(tmp_path, checked_bytes=400_000)
    assert difference < 1e-4 and 1 <= layers < 3


def test_config_and_ends_are_the_release_s(tiny_gguf: Maker, tmp_path: Path) -> None:
    tiny = tiny_gguf()
    convert(tiny.file, tiny.source, tmp_path)
    config = read_config(tmp_path)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (3, 4, 2, 16)
    assert config.tie_embeddings and config.qkv_bias and config.max_positions == 64
    assert config.rms_norm_eps == pytest.approx(1e-5) and config.rope["rope_theta"] == 5e4
    tokens = vocabulary()[0]
    assert eos_ids(tmp_path) == {tokens.index("<|im_end|>"), tokens.index(SPECIAL[0])}
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"


def test_yarn_shares_weights_and_agrees_with_transformers(tiny_gguf: Maker, tmp_path: Path) -> None:
    tiny, base, longer = tiny_gguf(), tmp_path / "tiny", tmp_path / "tiny-yarn"
    base.mkdir()
    convert(tiny.file, tiny.source, base)
    lengthen(base, BuiltModel("tiny-yarn", tiny.source, "tiny", yarn_factor=4.0), longer)
    shared = longer / "model.safetensors"
    assert shared.is_symlink() and shared.samefile(base / "model.safetensors")
    before = shared.stat().st_mtime
    os.utime(shared, (0, 0), follow_symlinks=False)  # as a workflow dates what a job made
    assert (base / "model.safetensors").stat().st_mtime == before and read_config(longer).max_positions == 256
    assert logit_difference(longer, [3 + 7 * at % 250 for at in range(200)]) < 1e-4
    assert (logits(longer) - logits(base)).abs().max() > 1e-3  # YaRN changes short contexts too


def test_without_links_there_are_copies(tiny_gguf: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system without symbolic links: hard ones, or copies."""

    def refused(*given: object) -> None:
        raise OSError("links are not supported")

    tiny, base = tiny_gguf(), tmp_path / "tiny"
    base.mkdir()
    convert(tiny.file, tiny.source, base)
    model = BuiltModel("tiny-yarn", tiny.source, "tiny", yarn_factor=4.0)
    monkeypatch.setattr("os.symlink", refused)
    lengthen(base, model, tmp_path / "linked")
    weights = tmp_path / "linked" / "model.safetensors"
    assert not weights.is_symlink() and weights.samefile(base / "model.safetensors")
    monkeypatch.setattr("os.link", refused)
    lengthen(base, model, tmp_path / "copied")
    weights = tmp_path / "copied" / "model.safetensors"
    assert not weights.samefile(base / "model.safetensors")
    assert weights.read_bytes() == (base / "model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("architecture", "quantisation"), [("llama", "MOSTLY_Q8_0"), ("qwen2", "MOSTLY_Q4_K_M"), ("qwen3", "MOSTLY_F16")]
)
def test_another_architecture_or_kind_is_refused(tiny_gguf: Maker, architecture: str, quantisation: str) -> None:
    file = tiny_gguf().file
    reader = gguf.open_gguf(file)
    with pytest.raises(CheckpointError, match=f"'qwen2'.*'MOSTLY_Q8_0'; expected '{architecture}', '{quantisation}'"):
        gguf.check_header(reader, file, architecture, quantisation)


def test_damaged_and_foreign_files_are_refused(tmp_path: Path) -> None:
    library = pytest.importorskip("gguf", reason="gguf reads the files")
    file = tmp_path / "model.gguf"
    for content in (b"", b"not a gguf file at all, but long enough to be read", b"GGUF\x03\0\0\0" + b"\xff" * 64):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match="not a readable GGUF"):
            gguf.open_gguf(file)
    file.unlink()
    writer = library.GGUFWriter(file, "llama")
    writer.add_tensor("blk.0.ssm_in.weight", torch.zeros(2, 32).numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    reader = gguf.open_gguf(file)
    with pytest.raises(CheckpointError, match="unknown"):
        gguf.check_header(reader, file, "llama", "MOSTLY_Q4_1")
    with pytest.raises(CheckpointError, match=r"lacks llama\.embedding_length"):
        gguf.read_config(reader, file)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ssm_in\.weight has no place"):
        gguf.read_tensors(reader, file, torch.bfloat16)


WHEELS = os.environ.get("LONGDECODE_WHEELS")
TEXT = "def mean(values):\n    return sum(values) / len(values)\n\nThe sea was calm, and 1,024 gulls sat on it. "


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that builds a model once; the logits are compared with transformers' inside."""
    pytest.importorskip("gguf", reason="gguf reads the files")
    root, done = tmp_path_factory.mktemp("built"), dict[str, Path]()

    def made(name: str) -> Path:
        if name not in done:
            _require(name)
            build(MODELS[name], root / name, Path(WHEELS or ""))
            done[name] = root / name
        return done[name]

    return made


def _require(name: str) -> None:
    if not WHEELS:
        pytest.skip("LONGDECODE_WHEELS names no folder of wheels")
    try:
        look(MODELS[name].source, Path(WHEELS))
    except DataUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.wheel
def test_smollm2_writes_sense(built: Callable[[str], Path]) -> None:
    folder = built("smollm2")
    tokenizer = load_tokenizer(folder)
    assert tokenizer.encode(" 4821  7") == tokenizer.encode(" ") + tuple(
        id for digit in "4821" for id in tokenizer.encode(digit)
    ) + tokenizer.encode("  ") + tokenizer.encode("7")
    assert json.loads((folder / "config.json").read_text())["max_position_embeddings"] == 8192
    prompt = tokenizer.prompt_ids("What is the capital of France?", chat=True)
    decoder = load_decoder(folder, device="cpu", dtype=torch.float32)
    (completion,) = Generator(decoder).run([Request(prompt, 12)], get_method("full").from_budget(None, decoder.config))
    assert "Paris" in tokenizer.decode(completion.output_ids)


@pytest.mark.wheel
def test_qwen_s_tokenizer_is_qwen2tokenizer_s(built: Callable[[str], Path], tmp_path: Path) -> None:
    source, folder = MODELS["qwen2.5-coder-0.5b"].source, built("qwen2.5-coder-0.5b")
    with obtained(source, look(source, Path(WHEELS or "")), tmp_path) as file:
        keys = ("tokens", "token_type", "merges")
        tokens, kinds, merges = (value(open_gguf(file), f"tokenizer.ggml.{key}") for key in keys)
    ours, automatic = cut_as_qwen2tokenizer_cuts(folder, tokens, kinds, merges, 2000)
    assert ours.encode("Hello 12345 world") == (9707, 220, 16, 17, 18, 19, 20, 1879)
    assert eos_ids(folder) == {151645, 151643} and len(automatic) == 151665
    assert ours.chat_text("Hi").endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.wheel
def test_qwen_s_logits_are_transformers_with_and_without_yarn(built: Callable[[str], Path], tmp_path: Path) -> None:
    folder = built("qwen2.5-coder-0.5b")
    ids = list(load_tokenizer(folder).encode(TEXT * 12))
    assert len(ids) > 300 and logit_difference(folder, ids) < 1e-4
    lengthen(folder, MODELS["qwen2.5-coder-0.5b-yarn"], tmp_path / "yarn")
    assert logit_difference(tmp_path / "yarn", ids) < 1e-4


@pytest.mark.wheel
def test_lm_eval_asks_a_built_model(built: Callable[[str], Path], tmp_path: Path) -> None:
    """A task of lm-eval over a local file: common knowledge, which chance answers one time in four."""
    folder = built("smollm2")
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    import longdecode.evals.lm_eval_adapter.model  # noqa: F401 (registers the model with lm-eval)

    capitals = {"France": "Paris", "Italy": "Rome", "Japan": "Tokyo", "Spain": "Madrid", "Egypt": "Cairo"}
    towns = list(capitals.values())
    rows = [{"asked": f"The capital of {x} is", "choices": towns, "right": at} for at, x in enumerate(capitals)]
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
    arguments = {"pretrained": str(folder), "device": "cpu", "dtype": "float32", "gate": False}
    for method in ({}, {"method": "quest", "budget": 64}):
        manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
        asked = {"model": "longdecode", "model_args": arguments | method, "tasks": ["capitals"]}
        found = simple_evaluate(**asked, task_manager=manager, bootstrap_iters=0)
        assert found is not None and found["results"]["capitals"]["acc,none"] >= 0.8
