"""A model split over processes against the same model in one: tokens, log-probabilities, reads, refusals, ends."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import fmean

import pytest
import torch

from longdecode.engine.config_reader import read_config
from longdecode.engine.errors import ConfigError, DeviceMemoryError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.ranks import Rank, RankError, Ranks
from longdecode.engine.tensor_parallel import load_share
from longdecode.engine.weights import load_decoder
from longdecode.methods.registry import get_method
from rank_work import add, answering, decode_all, decode_shares, sum_norms

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def devices_of(kind: str) -> list[torch.device]:
    return [torch.device(kind, index) if kind == "cuda" else torch.device(kind) for index in range(2)]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, two_gpus])])
def test_two_ranks_decode_what_one_does(device: str, tiny_checkpoint: Callable) -> None:
    """With biases and an odd vocabulary, with normed queries and keys, with tied embeddings, with scales."""
    folders = [tiny_checkpoint(name) for name in ("llama_bias", "qwen3", "minicpm", "minicpm_tied", "phi3")]
    with Ranks(devices_of(device), partial(answering, decode_shares)) as ranks:
        (by_rank,) = ranks.answers(folders)
    for folder, *shares in zip(folders, *by_rank, strict=True):
        whole = load_decoder(folder, device=device, dtype=torch.float32)
        for one, *found in zip(decode_all(whole), *shares, strict=True):
            for completion in found:
                assert completion.output_ids == one.output_ids
                assert completion.forced_logprobs == pytest.approx(one.forced_logprobs, abs=2e-5)
            assert fmean(completion.read_tokens_mean for completion in found) == pytest.approx(one.read_tokens_mean)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2 or not torch.cuda.can_device_access_peer(0, 1), reason="needs peers")
def test_a_kernel_sums_over_two_ranks() -> None:
    with Ranks(devices_of("cuda"), partial(answering, sum_norms)) as ranks:
        assert all(all(right) for found in ranks.answers() for right in found)


def test_a_rank_holds_its_share_alone(tiny_checkpoint: Callable) -> None:
    folder, rank, here = tiny_checkpoint("llama_bias"), Rank(1, 2), (torch.device("cpu"), torch.float32)
    whole = load_decoder(folder, device="cpu", dtype=torch.float32)
    share = load_share(folder, rank, *here)
    for name in ("qkv", "qkv_bias", "gate_up", "o", "down"):
        part, full = (getattr(decoder.weights.layers[0], name) for decoder in (share, whole))
        assert 2 * part.numel() == full.numel()
    assert (len(share.weights.lm_head), len(whole.weights.lm_head)) == (48, 97)
    with pytest.raises(UnsupportedCellError, match="h2o does not run over several GPUs; methods that do: duo, full"):
        Generator(share).run([Request((1,), 1)], get_method("h2o").from_budget(64, share.config))


def test_experts_are_not_split(tiny_checkpoint: Callable) -> None:
    with pytest.raises(ConfigError, match=r"gpus = 2: a mixture of experts \(qwen3_moe\) runs on one GPU"):
        Rank(0, 2).share_of(read_config(tiny_checkpoint("qwen3_moe")))


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("dies", RankError, "rank [01] of 2 failed: (it ended with exit code 7|.*)"),
        ("fails", DeviceMemoryError, "no room"),
    ],
)
def test_a_rank_that_ends_ends_all(how: str, error: type[Exception], words: str) -> None:
    """And the next call is answered, by new processes."""
    with Ranks(devices_of("cpu"), partial(answering, add)) as ranks:
        with pytest.raises(error, match=words):
            [*ranks.answers(how)]
        assert [*ranks.answers("")] == [[2.0, 2.0]]
        children = ranks._processes
    assert not any(process.is_alive() for process in children)
