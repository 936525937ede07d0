"""Loading: sharded and single files, what is refused, and the hash of a checkpoint."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longdecode.engine.errors import CheckpointError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.weights import check_checkpoint, load_decoder, model_hash, random_decoder


@pytest.fixture
def copied(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[[str], Path]:
    """Maker of a private copy of a tiny checkpoint, to be damaged."""
    return lambda name: Path(shutil.copytree(tiny_checkpoint(name), tmp_path / name))


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)


def load(folder: Path) -> None:
    load_decoder(folder, device="cpu", dtype=torch.float32)


def assert_refused(folder: Path, message: str, read: Callable[[Path], object] = load) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(folder)


def test_tied_embeddings_share_memory(tiny_checkpoint: Callable[[str], Path]) -> None:
    tied = load_decoder(tiny_checkpoint("llama3"), device="cpu", dtype=torch.float32).weights
    untied = load_decoder(tiny_checkpoint("llama2"), device="cpu", dtype=torch.float32).weights
    assert tied.lm_head is tied.embedding and not torch.equal(untied.lm_head, untied.embedding)


def without(name: str) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.__delitem__(name)


def with_tensor(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("model.layers.1.self_attn.k_proj.weight"), r"model\.layers\.1\.self_attn\.k_proj\.weight"),
        (without("model.norm.weight"), r"model\.norm\.weight"),
        (without("lm_head.weight"), r"lm_head\.weight"),
        (without("model.embed_tokens.weight"), r"model\.embed_tokens\.weight"),
        (with_tensor("model.norm.weight", torch.ones(7)), r"model\.norm\.weight is \[7\].*\[48\]"),
        (with_tensor("model.norm.weight", torch.ones(48, dtype=torch.int8)), r"int8.*bfloat16"),
        (with_tensor("model.layers.0.self_attn.q_proj.bias", torch.ones(48)), r"q_proj\.bias"),
    ],
)
def test_tensors_that_do_not_fit_are_named(change: Callable, message: str, copied: Callable[[str], Path]) -> None:
    folder = copied("llama2")
    rewrite(folder, change)
    assert_refused(folder, message)


def test_rotary_frequencies_of_old_checkpoints_are_passed_over(copied: Callable[[str], Path]) -> None:
    folder = copied("llama2")
    rewrite(folder, with_tensor("model.layers.0.self_attn.rotary_emb.inv_freq", torch.ones(8)))
    load(folder)


def test_fused_projections_that_do_not_fit_are_named(copied: Callable[[str], Path]) -> None:
    folder, fused = copied("phi3"), "model.layers.1.self_attn.qkv_proj.weight"
    for rows, message in ((82, r"qkv_proj.*\[82, 48\]"), (90, r"q_proj.* of .*qkv_proj.*\[54, 48\].*\[48, 48\]")):
        rewrite(folder, with_tensor(fused, torch.ones(rows, 48)))
        assert_refused(folder, message)
    rewrite(folder, without(fused))
    assert_refused(folder, f"has no tensor '{fused}'", check_checkpoint)


def test_experts_are_read_as_transformers_holds_them_too(copied: Callable[[str], Path]) -> None:
    folder, router, place = copied("qwen3_moe"), "model.layers.0.mlp.gate.weight", "model.layers.{}.mlp.experts"

    def fuse(tensors: dict[str, torch.Tensor]) -> None:
        for at in map(place.format, (0, 2)):
            gate, up, down = (
                torch.stack([tensors.pop(f"{at}.{expert}.{part}_proj.weight") for expert in range(6)])
                for part in ("gate", "up", "down")
            )
            tensors |= {f"{at}.gate_up_proj": torch.cat((gate, up), dim=1), f"{at}.down_proj": down}

    apart = load_decoder(folder, device="cpu", dtype=torch.float32).weights.layers[2]
    rewrite(folder, fuse)
    fused = load_decoder(folder, device="cpu", dtype=torch.float32).weights.layers[2]
    assert torch.equal(fused.gate_up, apart.gate_up) and torch.equal(fused.down, apart.down)
    rewrite(folder, without(router))
    assert_refused(folder, f"has no tensor '{router}'", check_checkpoint)


def test_a_missing_shard_and_a_truncated_file_are_named(copied: Callable[[str], Path]) -> None:
    folder, file = copied("qwen2"), copied("llama2") / "model.safetensors"
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    assert_refused(folder, shard.name)
    file.write_bytes(file.read_bytes()[:100])
    assert_refused(file.parent, "not a readable safetensors")


def test_the_hash_follows_the_content(copied: Callable[[str], Path], tiny_checkpoint: Callable[[str], Path]) -> None:
    folder = copied("llama2")
    before = model_hash(folder)
    assert before == model_hash(tiny_checkpoint("llama2")), "the folder's place must not matter"
    rewrite(folder, lambda tensors: tensors["model.norm.weight"].add_(1e-3))
    after = model_hash(folder)
    assert after != before
    config = folder / "config.json"
    config.write_text(config.read_text() + "\n")
    assert model_hash(folder) != after


def test_random_decoders_repeat_by_seed(seed: int) -> None:
    config = ModelConfig("qwen3", 33, 16, 24, 2, 4, 2, 8, 64, qk_norm=True, qkv_bias=True, o_bias=True)
    first, again, other = (random_decoder(config, s, "cpu", torch.float32).weights for s in (seed, seed, seed + 1))
    assert torch.equal(first.layers[1].qkv, again.layers[1].qkv)
    assert not torch.equal(first.layers[1].qkv, other.layers[1].qkv)
    assert first.layers[0].qkv.shape == (64, 16) and first.layers[0].gate_up.shape == (48, 16)


@pytest.mark.parametrize("name", ["llama3", "qwen2", "qwen3", "minicpm", "minicpm_tied", "phi3", "qwen3_moe"])
def test_a_step_reads_every_matrix_once(name: str, tiny_checkpoint: Callable, reference_model: Callable) -> None:
    folder = tiny_checkpoint(name)
    decoder = load_decoder(folder, device="cpu", dtype=torch.bfloat16)
    parameters = dict(reference_model(folder).named_parameters())
    looked_up = parameters["model.embed_tokens.weight"].numel() * ("lm_head.weight" in parameters)
    # Of six experts a token goes through two.
    read = sum(p.numel() // (3 if p.dim() == 3 else 1) for p in parameters.values())
    assert decoder.weights.nbytes() == 2 * (read - looked_up)
    copied = decoder.weights.lm_head.numel() * decoder.config.copies_embedding
    assert decoder.weights.resident_bytes() == 2 * (copied + sum(p.numel() for p in parameters.values()))
    assert decoder.config.parameters() == copied + sum(p.numel() for p in parameters.values() if p.dim() > 1)


def test_a_head_that_config_ties_must_be_the_embedding(copied: Callable[[str], Path]) -> None:
    folder = copied("llama3")
    rewrite(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    load(folder)
    check_checkpoint(folder)
    rewrite(folder, lambda t: t["lm_head.weight"][3, 4].add_(1e-3))
    for read in (load, check_checkpoint):
        assert_refused(folder, r"model\.safetensors holds lm_head\.weight.*tie_word_embeddings", read)
    rewrite(folder, lambda t: t.update({"lm_head.weight": torch.ones(3, 4)}))
    assert_refused(folder, r"lm_head\.weight")


def test_two_files_without_an_index_are_both_named(copied: Callable[[str], Path]) -> None:
    folder = copied("llama2")
    shutil.copy(folder / "model.safetensors", folder / "model_old.safetensors")
    for read in (load, check_checkpoint, model_hash):
        assert_refused(folder, r"model\.safetensors, model_old\.safetensors and no", read)


def test_importance_heads_are_no_second_file_of_weights(copied: Callable[[str], Path]) -> None:
    folder = copied("llama2")
    save_file({"anything": torch.ones(1)}, folder / "importance.safetensors")
    load(folder)
    (folder / "model.safetensors").unlink()
    assert_refused(folder, "no weights at all")


def test_files_that_the_index_leaves_out_are_left_out(copied: Callable[[str], Path]) -> None:
    """Mistral's folders hold the same weights once more, in a format of their authors'."""
    folder = copied("qwen2")
    save_file({"tok_embeddings.weight": torch.ones(1)}, folder / "consolidated.safetensors")
    load(folder)
    save_file({"anything": torch.ones(1)}, folder / "model.safetensors")
    assert_refused(folder, r"model\.safetensors, and model\.safetensors\.index\.json names others")


def test_an_index_may_name_what_its_files_left_out(copied: Callable[[str], Path]) -> None:
    """Tables of rotary embeddings, and a head: where it is not tied, its absence is named."""
    folder = copied("qwen2")
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    shard = content["weight_map"]["lm_head.weight"]
    content["weight_map"]["model.layers.0.self_attn.rotary_emb.inv_freq"] = shard
    index.write_text(json.dumps(content))
    load(folder)
    save_file({k: v for k, v in load_file(folder / shard).items() if k != "lm_head.weight"}, folder / shard)
    assert_refused(folder, r"has no tensor 'lm_head\.weight'")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": True}))
    load(folder)


def test_a_tensor_in_two_shards_is_named_with_both(copied: Callable[[str], Path]) -> None:
    folder = copied("qwen2")
    first, second = sorted(folder.glob("*.safetensors"))[:2]
    moved = next(iter(load_file(first)))
    save_file(load_file(second) | {moved: load_file(first)[moved]}, second)
    assert_refused(folder, rf"{moved} is in {first.name} and in {second.name}")
    save_file({name: tensor for name, tensor in load_file(first).items() if name != moved}, first)
    assert_refused(folder, rf"names {first.name} for {moved}, which that file does not hold")


def test_an_adaptor_beside_the_weights_is_refused(copied: Callable[[str], Path]) -> None:
    folder = copied("llama2")
    (folder / "adapter_config.json").write_text("{}")
    assert_refused(folder, "adaptor")
