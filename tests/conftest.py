"""Shared test set-up: the interpreter for Triton, one thread, poisoned buffers, tiny checkpoints."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from published_configs import as_transformers

if not torch.cuda.is_available():
    # Triton reads this when it is first imported, which must not have happened yet.
    os.environ.setdefault("TRITON_INTERPRET", "1")
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that tests start: idle threads wait busily
gc.set_threshold(100_000, 50, 100)  # looking for cycles in what tests make takes 6 % of their time otherwise
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a name that is no folder is looked up nowhere


if os.environ.get("TRITON_INTERPRET") == "1" and importlib.util.find_spec("triton"):
    from faster_interpreter import speed_up

    speed_up()

SEED = int(os.environ.get("LONGDECODE_TEST_SEED", "0"))

TINY = yaml.safe_load(Path(__file__).with_name("tiny_models.yaml").read_text(encoding="utf-8"))
TOGETHER = ("tests/reporting/", "tests/workflow/", "tests/evals/throughput/test_equal_memory.py")
"""Tests whose fixtures take seconds to make: with ``--dist loadgroup`` one worker has all tests of such a place."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out tests one by one, and those of ``TOGETHER`` at once.

    Marks for groups do not do: xdist 3.8 writes them into identifiers that pytest 9.2 no longer reads.
    """
    if config.getoption("dist") != "loadgroup":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return next((place for place in TOGETHER if nodeid.startswith(place)), nodeid)

    return Together(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put slow tests first; skip ``gpu`` where torch sees no CUDA device."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="module", autouse=True)
def _frozen() -> None:
    """Leave imported modules and collected tests out of garbage collection, which jobs ask for after every cell."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def poison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fill fresh float buffers with NaN, so that reading what was never written shows."""

    def poisoned(make: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def wrapper(*args: Any, **kwargs: Any) -> torch.Tensor:
            out = make(*args, **kwargs)
            if out.is_floating_point() and not out.is_meta:
                with torch.no_grad():
                    out.fill_(float("nan"))
            return out

        return wrapper

    for name in ("empty", "empty_like", "empty_strided"):
        monkeypatch.setattr(torch, name, poisoned(getattr(torch, name)))
    for name in ("new_empty", "new_empty_strided"):
        monkeypatch.setattr(torch.Tensor, name, poisoned(getattr(torch.Tensor, name)))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed for random inputs, the same in every run; ``LONGDECODE_TEST_SEED=1`` draws others."""
    return zlib.crc32(f"{SEED}/{request.node.nodeid}".encode())


@pytest.fixture
def rng(seed: int) -> torch.Generator:
    """A generator of random inputs."""
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Path]]:
    """Maker of tiny random checkpoints, safetensors folders that transformers wrote; one a name and session."""
    made: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in made:
            made[name] = _write_tiny(name, tmp_path_factory.mktemp(name))
        return made[name]

    yield make


def _write_tiny(name: str, folder: Path) -> Path:
    """Save a model whose every parameter is random: norms and biases too, which fresh models leave at one and zero."""
    from transformers import AutoConfig, AutoModelForCausalLM

    raw = TINY["common"] | TINY["models"][name]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**as_transformers(raw)), dtype=torch.float32)
    generator = torch.Generator().manual_seed(SEED)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            is_norm = key.endswith("norm.weight")
            scale = 0.3 if is_norm or parameter.dim() == 1 else 1.5 * parameter.shape[-1] ** -0.5
            parameter.normal_(1.0 if is_norm else 0.0, scale, generator=generator)
    model.save_pretrained(folder, max_shard_size="60KB" if name == "qwen2" else "1GB")
    if raw["model_type"] == "minicpm":
        (folder / "config.json").write_text(json.dumps(raw))
    return folder


@pytest.fixture(scope="session")
def byte_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers whose tokens are bytes, in transformers' format."""
    from safetensors.torch import save_file

    from longdecode.training.miniature.tokenizer import byte_tokenizer

    folder = tmp_path_factory.mktemp("byte_llama")
    generator = torch.Generator().manual_seed(SEED)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * 2 * columns**-0.5

    embedding = torch.randn(257, 32, generator=generator)
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": torch.ones(32)}
    sizes = {
        "self_attn.q_proj": (32, 32), "self_attn.k_proj": (16, 32), "self_attn.v_proj": (16, 32),
        "self_attn.o_proj": (32, 32), "mlp.gate_proj": (48, 32), "mlp.up_proj": (48, 32), "mlp.down_proj": (32, 48),
    }  # fmt: skip
    for layer in range(2):
        name = f"model.layers.{layer}"
        tensors |= {f"{name}.{norm}_layernorm.weight": torch.ones(32) for norm in ("input", "post_attention")}
        tensors |= {f"{name}.{part}.weight": matrix(*size) for part, size in sizes.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(TINY["bytes"]))
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="session")
def reference_model() -> Callable[[Path], Any]:
    """Loader of transformers' own model of a checkpoint folder, float32 on the CPU."""

    def load(folder: Path) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM

        config = AutoConfig.for_model(**as_transformers(json.loads((folder / "config.json").read_text())))
        options = {"config": config, "dtype": torch.float32, "attn_implementation": "eager"}
        return AutoModelForCausalLM.from_pretrained(folder, **options).eval()

    return load


@pytest.fixture
def random_ids(rng: torch.Generator) -> Callable[[int, int], tuple[int, ...]]:
    """Maker of random token ids: (count, vocabulary size)."""
    return lambda count, vocab: tuple(torch.randint(0, vocab, (count,), generator=rng).tolist())


@pytest.fixture
def make_record() -> Callable[..., Any]:
    """Maker of whole records; keywords replace fields."""
    from longdecode.evals.records import Provenance, Record  # other tests do without

    provenance = Provenance(
        revision="r", dirty=False, settings_hash="s", code_hash="c", model_hash="m", data_hash="d", device="cpu",
        dtype="float32", versions={"torch": "2"}, started_at="2026-01-01T00:00:00+00:00",
    )  # fmt: skip
    fields: dict[str, Any] = {
        "profile": "p", "model": "tiny", "method": "full", "variant": "full", "params": {}, "suite": "mini_longgen",
        "task": "mini_longgen_45", "task_version": 1, "metric": "accuracy", "unit": "fraction",
        "higher_is_better": True, "data_source": "generated", "budget": "full", "budget_tokens": None, "context": 2048,
        "batch": 8, "seed": 0, "sample_index": 0, "status": "ok", "provenance": provenance,
    }  # fmt: skip

    def make(**changes: Any) -> Any:
        return Record(**(fields | ({"score": 0.5} if changes.get("status", "ok") == "ok" else {}) | changes))

    return make
