"""Checkpoints to decoders: safetensors in, fused projections out; and random weights for speed work."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longdecode.engine.config_reader import IMPORTANCE_FILE, read_config, read_json, resolve_checkpoint
from longdecode.engine.decoder import Decoder, DecoderWeights, LayerWeights
from longdecode.engine.errors import CheckpointError
from longdecode.engine.model_config import Experts, ModelConfig

_STORED = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}
"""Dtypes by their names in safetensors files; the others are not supported."""
_INDEX = "model.safetensors.index.json"
_MAY_BE_ABSENT = ("rotary_emb.inv_freq", "lm_head.weight")


def load_decoder(path_or_id: str | Path, *, device: torch.device | str, dtype: torch.dtype) -> Decoder:
    """Load a checkpoint from a local folder or a hub id.

    Raises:
        CheckpointError: no safetensors, a tensor missing, unknown or of the wrong shape.
        UnsupportedFamilyError: the architecture is not one the engine implements.
    """
    folder = resolve_checkpoint(path_or_id)
    config = read_config(folder)
    target = torch.device(device)
    with ExitStack() as stack:
        reader = _Reader(folder, target, dtype, stack)
        weights = _read_weights(config, reader)
        reader.refuse_unread()
    decoder = Decoder(config, weights, target, dtype)
    decoder.checkpoint = folder
    return decoder


def check_checkpoint(folder: Path) -> ModelConfig:
    """Check config.json and the names, shapes and dtypes of the weights without reading their numbers.

    Raises:
        CheckpointError, UnsupportedFamilyError: as of ``load_decoder``, but for numbers that are not finite.
    """
    config = read_config(folder)
    with ExitStack() as stack:
        reader = _HeaderReader(folder, torch.device("meta"), torch.float32, stack)
        _read_weights(config, reader)
        reader.refuse_unread()
    return config


def random_decoder(config: ModelConfig, seed: int, device: torch.device | str, dtype: torch.dtype) -> Decoder:
    """A decoder of this shape with random weights, for timing: same seed and device, same weights."""
    target = torch.device(device)
    generator = torch.Generator(target).manual_seed(seed)

    def matrix(rows: int, columns: int) -> Tensor:
        weight = torch.empty(rows, columns, device=target, dtype=dtype)
        return weight.normal_(0.0, columns**-0.5, generator=generator)

    def norm(width: int) -> Tensor:
        return torch.ones(width, device=target, dtype=dtype)

    def bias(width: int, present: bool) -> Tensor | None:
        return torch.zeros(width, device=target, dtype=dtype) if present else None

    hidden, q_width = config.hidden_size, config.num_heads * config.head_dim
    qkv_width = q_width + 2 * config.num_kv_heads * config.head_dim
    layers = [
        LayerWeights(
            input_norm=norm(hidden),
            qkv=matrix(qkv_width, hidden),
            o=matrix(hidden, q_width),
            mlp_norm=norm(hidden),
            gate_up=matrix(2 * config.intermediate_size, hidden),
            down=matrix(hidden, config.intermediate_size),
            qkv_bias=bias(qkv_width, config.qkv_bias),
            o_bias=bias(hidden, config.o_bias),
            q_norm=norm(config.head_dim) if config.qk_norm else None,
            k_norm=norm(config.head_dim) if config.qk_norm else None,
        )
        for _ in range(config.num_layers)
    ]
    per_token = 0
    if (experts := config.experts) is not None:
        count, ffn, per_token = experts.count, experts.size, experts.per_token
        for index in experts.layers:
            layers[index].router = matrix(count, hidden)
            layers[index].gate_up = matrix(count * 2 * ffn, hidden).view(count, 2 * ffn, hidden)
            layers[index].down = matrix(count * hidden, ffn).view(count, hidden, ffn)
    embedding = matrix(config.vocab_size, hidden)
    lm_head = embedding if config.tie_embeddings else matrix(config.vocab_size, hidden)
    return Decoder(config, DecoderWeights(embedding, layers, norm(hidden), lm_head, per_token), target, dtype)


def model_hash(path: Path) -> str:
    """sha256 over a checkpoint folder's config and weights, names and contents, in the order of their names.

    Raises:
        CheckpointError: the folder holds no safetensors.
    """
    digest = hashlib.sha256()
    for file in sorted([path / "config.json", *_weight_files(path)]):
        try:
            digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
            with file.open("rb") as stream:
                while block := stream.read(1 << 22):
                    digest.update(block)
        except OSError as error:
            raise CheckpointError(f"{file} cannot be read: {error.strerror}") from error
    return digest.hexdigest()


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a checkpoint: those that its index names, or the only one beside importance heads.

    Raises:
        CheckpointError: there are none, or it cannot be told which ones hold the weights.
    """
    present = sorted(folder.glob("*.safetensors"))
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(f"{folder} has an adaptor (adapter_config.json); merge it into the weights first")
    index = folder / _INDEX
    if index.exists() or index.is_symlink():
        files = sorted({folder / name for name in _weight_map(index).values()})
        if missing := [file.name for file in files if not file.is_file()]:
            raise CheckpointError(f"{index} names files that are not there: {', '.join(missing)}")
        whole = folder / "model.safetensors"
        if whole in present and whole not in files:
            raise CheckpointError(f"{folder} has {whole.name}, and {index.name} names others; remove one of them")
        return files
    weights = [file for file in present if file.name != IMPORTANCE_FILE]
    if len(weights) > 1:
        names = ", ".join(file.name for file in weights)
        raise CheckpointError(
            f"{folder} has {names} and no {_INDEX}, so it cannot be told which hold the weights; remove all but one, "
            "or add the index"
        )
    if weights:
        return present
    pickled = sorted(file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern))
    found = f"only {', '.join(pickled)}, which may run code when loaded" if pickled else "no weights at all"
    raise CheckpointError(f"{folder} has {found}; supported: *.safetensors")


def _weight_map(index: Path) -> dict[str, str]:
    """The file of each tensor, as an index has it."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map from tensors to files")
    if outside := sorted(name for name in set(weight_map.values()) if Path(name).name != name):
        raise CheckpointError(f"{index} names files outside its folder: {', '.join(outside[:3])}")
    return weight_map


class _Reader:
    """Named tensors of a checkpoint, checked for shape as they are read."""

    cat: Callable[[list[Tensor]], Tensor] = staticmethod(torch.cat)

    def __init__(self, folder: Path, device: torch.device, dtype: torch.dtype, stack: ExitStack):
        from safetensors import SafetensorError, safe_open

        self.folder = folder
        self.device = device
        self.dtype = dtype
        self.scales: dict[str, float] = {}
        self.handles: dict[str, Any] = {}
        self.places: dict[str, Path] = {}
        for file in _weight_files(folder):
            if file.name == IMPORTANCE_FILE:  # counts in the checkpoint's hash, and belongs to a method
                continue
            try:
                handle = stack.enter_context(safe_open(str(file), framework="pt", device="cpu"))
            except (SafetensorError, OSError) as error:
                raise CheckpointError(f"{file} is not a readable safetensors file: {error}") from error
            for name in handle.keys():  # noqa: SIM118 (no mapping)
                if name in self.places:
                    places = f"{self.places[name].name} and in {file.name}"
                    raise CheckpointError(f"{folder}: {name} is in {places}, so it cannot be told which one holds")
                self.handles[name], self.places[name] = handle, file
        self._refuse_wrong_index()
        self.unread = {name for name in self.handles if not name.endswith("rotary_emb.inv_freq")}

    def __call__(self, name: str, *shape: int) -> Tensor:
        if name not in self.handles:
            raise CheckpointError(f"{self.folder} has no tensor {name!r}")
        tensor = self.read(name)
        if tuple(tensor.shape) != shape:
            held = self.handles[name]
            stored = f"{name}, of {held.source}," if isinstance(held, _View) else name
            raise CheckpointError(f"{self.folder}: {stored} is {list(tensor.shape)}, config.json implies {list(shape)}")
        if not tensor.is_floating_point() or tensor.element_size() < 2:
            raise CheckpointError(f"{self.folder}: {name} is {tensor.dtype}; supported: bfloat16, float16, float32")
        self.unread.discard(name)
        return self.placed(name, tensor)

    def read(self, name: str) -> Tensor:
        """The tensor as stored."""
        tensor: Tensor = self.handles[name].get_tensor(name)
        return tensor

    def placed(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor on the device, scaled in float32; one with NaN or inf there would index and score at random."""
        if (scale := self.scales.get(name.split(".")[-2], 1.0)) != 1.0:
            tensor = tensor.to(self.device, torch.promote_types(self.dtype, torch.float32)) * scale
        moved = tensor.to(self.device, self.dtype)
        if not bool(torch.isfinite(moved).all()):
            raise CheckpointError(f"{self.folder}: {name} holds NaN or inf as {self.dtype}, so no number may be shown")
        return moved

    def fused(self, names: Iterator[tuple[str, int]], *rest: int) -> Tensor:
        """Several tensors stacked along their rows."""
        return self.cat([self(name, rows, *rest) for name, rows in names])

    def refuse_untied(self, name: str, tied_to: str) -> None:
        """A tensor that config.json ties to another may lie in the file too, if its numbers are the same."""
        if name not in self.handles:
            return
        own, other = (self.handles[key].get_tensor(key) for key in (name, tied_to))
        dtype = torch.promote_types(own.dtype, other.dtype)
        if own.shape != other.shape or not torch.equal(own.to(dtype), other.to(dtype)):
            raise CheckpointError(
                f"{self.places[name]} holds {name} with other numbers than {tied_to}, and config.json ties the two "
                "(tie_word_embeddings = true); set it to false, or remove the tensor"
            )
        self.unread.discard(name)

    def add_view(self, name: str, source: str, part: slice) -> None:
        """Let a name stand for rows of a stored tensor."""
        self.handles[name], self.places[name] = _View(self.handles[source], source, part), self.places[source]

    def split(self, source: str, parts: Mapping[str, int]) -> None:
        """Let names stand for the parts of a stored tensor that holds several projections.

        Args:
            source: name in the file.
            parts: of each name, in the order of the rows, how many shares of the rows it has.

        Raises:
            CheckpointError: there is no such tensor, or its rows do not divide into so many shares.
        """
        if source not in self.handles:
            raise CheckpointError(f"{self.folder} has no tensor {source!r}")
        shape, shares, start = self.handles[source].get_slice(source).get_shape(), sum(parts.values()), 0
        if not shape or shape[0] % shares:
            raise CheckpointError(f"{self.folder}: {source} is {shape}; its rows do not divide into {shares} parts")
        for name, count in parts.items():
            stop = start + shape[0] // shares * count
            self.add_view(name, source, slice(start, stop))
            start = stop
        self.unread.discard(source)

    def _refuse_wrong_index(self) -> None:
        """An index that names another file than the one a tensor lies in was written for other weights.

        Tables of rotary embeddings, and a head that may be tied, were left out of files whose index names them.
        """
        index = self.folder / _INDEX
        if not index.exists():
            return
        for name, file in _weight_map(index).items():
            if file == IMPORTANCE_FILE or (name not in self.places and name.endswith(_MAY_BE_ABSENT)):
                continue
            if name not in self.places or self.places[name].name != file:
                raise CheckpointError(f"{index} names {file} for {name}, which that file does not hold")

    def refuse_unread(self) -> None:
        """A tensor nobody asked for is arithmetic left out: refuse it rather than compute another model."""
        if names := sorted(self.unread):
            raise CheckpointError(f"{self.folder}: {len(names)} tensors fit no part of the model: {names[:5]}")


class _View:
    """Rows of a stored tensor under another name; reads like a file of safetensors and like one of its slices."""

    def __init__(self, handle: Any, source: str, part: slice):
        self.source = source
        self.stored = handle.get_slice(source)
        self.rows = range(self.stored.get_shape()[0])[part]

    def get_slice(self, _: str) -> _View:
        """Itself: whichever name it is asked for."""
        return self

    def get_tensor(self, _: str) -> Tensor:
        """All its rows."""
        return self[:]

    def get_shape(self) -> list[int]:
        """Its own shape."""
        return [len(self.rows), *self.stored.get_shape()[1:]]

    def get_dtype(self) -> str:
        """The name of the dtype in the file."""
        return str(self.stored.get_dtype())

    def __getitem__(self, part: slice) -> Tensor:
        rows = self.rows[part]
        tensor: Tensor = self.stored[rows.start : rows.stop]
        return tensor


class _HeaderReader(_Reader):
    """Names, shapes and dtypes alone.

    On ``meta``, torch's own ``cat`` imports ``torch._dynamo``: 1.6 s of every process that checks a model.
    """

    cat = staticmethod(lambda parts: parts[0].new_empty(sum(map(len, parts)), *parts[0].shape[1:]))

    def read(self, name: str) -> Tensor:
        """A tensor of the stored shape and dtype, without numbers."""
        part = self.handles[name].get_slice(name)
        dtype = _STORED.get(part.get_dtype(), torch.int8)
        return torch.zeros(part.get_shape(), dtype=dtype, device="meta")

    def placed(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor itself: it has no numbers to look at."""
        return tensor


def _read_weights(config: ModelConfig, read: _Reader) -> DecoderWeights:
    hidden, vocab = config.hidden_size, config.vocab_size
    read.scales = {
        "embed_tokens": config.embedding_scale, "lm_head": config.logit_scale,
        "o_proj": config.residual_scale, "down_proj": config.residual_scale,
    }  # fmt: skip
    embedding = read("model.embed_tokens.weight", vocab, hidden)
    if config.tie_embeddings or config.copies_embedding:
        read.refuse_untied("lm_head.weight", "model.embed_tokens.weight")
    if config.copies_embedding:
        read.add_view("lm_head.weight", "model.embed_tokens.weight", slice(None))
    return DecoderWeights(
        embedding=embedding,
        layers=[_read_layer(config, read, index) for index in range(config.num_layers)],
        final_norm=read("model.norm.weight", hidden),
        lm_head=embedding if config.tie_embeddings else read("lm_head.weight", vocab, hidden),
        experts_per_token=config.experts.per_token if config.experts else 0,
    )


def _read_layer(config: ModelConfig, read: _Reader, index: int) -> LayerWeights:
    prefix, hidden, head_dim = f"model.layers.{index}.", config.hidden_size, config.head_dim
    q_rows, kv_rows = config.num_heads * head_dim, config.num_kv_heads * head_dim
    rows, mlp, router = {"q": q_rows, "k": kv_rows, "v": kv_rows}, f"{prefix}mlp", None

    if config.family == "phi3":
        attention = f"{prefix}self_attn."
        heads = {"q": config.num_heads, "k": config.num_kv_heads, "v": config.num_kv_heads}
        read.split(f"{attention}qkv_proj.weight", {f"{attention}{k}_proj.weight": n for k, n in heads.items()})
        read.split(f"{mlp}.gate_up_proj.weight", {f"{mlp}.{part}_proj.weight": 1 for part in ("gate", "up")})

    def qkv(kind: str) -> Iterator[tuple[str, int]]:
        return ((f"{prefix}self_attn.{part}_proj.{kind}", count) for part, count in rows.items())

    if (experts := config.experts) is not None and index in experts.layers:
        router = read(f"{mlp}.gate.weight", experts.count, hidden)
        gate_up, down = _read_experts(read, f"{mlp}.experts", hidden, experts)
    else:
        gate_up, down = _read_mlp(read, mlp, hidden, config.intermediate_size)
    return LayerWeights(
        input_norm=read(f"{prefix}input_layernorm.weight", hidden),
        qkv=read.fused(qkv("weight"), hidden),
        o=read(f"{prefix}self_attn.o_proj.weight", hidden, q_rows),
        mlp_norm=read(f"{prefix}post_attention_layernorm.weight", hidden),
        gate_up=gate_up,
        down=down,
        qkv_bias=read.fused(qkv("bias")) if config.qkv_bias else None,
        o_bias=read(f"{prefix}self_attn.o_proj.bias", hidden) if config.o_bias else None,
        q_norm=read(f"{prefix}self_attn.q_norm.weight", head_dim) if config.qk_norm else None,
        k_norm=read(f"{prefix}self_attn.k_norm.weight", head_dim) if config.qk_norm else None,
        router=router,
    )


def _read_mlp(read: _Reader, prefix: str, hidden: int, ffn: int) -> tuple[Tensor, Tensor]:
    """Gate and up ``[2F, H]``, and down ``[H, F]``."""
    gate_up = read.fused(((f"{prefix}.{part}_proj.weight", ffn) for part in ("gate", "up")), hidden)
    return gate_up, read(f"{prefix}.down_proj.weight", hidden, ffn)


def _read_experts(read: _Reader, prefix: str, hidden: int, experts: Experts) -> tuple[Tensor, Tensor]:
    """Gate and up ``[E, 2F, H]``, and down ``[E, H, F]``: stored by expert, or as ``transformers`` 5 holds them."""
    count, ffn = experts.count, experts.size
    if f"{prefix}.gate_up_proj" in read.handles:
        return read(f"{prefix}.gate_up_proj", count, 2 * ffn, hidden), read(f"{prefix}.down_proj", count, hidden, ffn)
    gate_up, down = zip(*(_read_mlp(read, f"{prefix}.{expert}", hidden, ffn) for expert in range(count)), strict=True)
    return torch.stack(gate_up), torch.stack(down)
