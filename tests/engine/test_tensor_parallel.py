"""A model split over processes against the same model in one: tokens, log-probabilities, reads, refusals, ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import fmean

import pytest
import torch

from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.ranks import Rank, RankError, over_gpus
from longdecode.engine.tensor_parallel import load_share, run_split
from longdecode.engine.weights import load_decoder
from longdecode.methods.registry import get_method
from rank_work import decode_all, decode_shares, end_early, sum_norms

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, two_gpus])])
def test_two_ranks_decode_what_one_does(device: str, tiny_checkpoint: Callable) -> None:
    """With biases and an odd vocabulary, with normed queries and keys, with tied embeddings, with scales."""
    folders = [tiny_checkpoint(name) for name in ("llama_bias", "qwen3", "minicpm", "minicpm_tied", "phi3")]
    ranks = over_gpus(2, device, partial(decode_shares, folders))
    for folder, *shares in zip(folders, *ranks, strict=True):
        whole = load_decoder(folder, device=device, dtype=torch.float32)
        for one, *found in zip(decode_all(whole), *shares, strict=True):
            for completion in found:
                assert completion.output_ids == one.output_ids
                assert completion.forced_logprobs == pytest.approx(one.forced_logprobs, abs=2e-5)
            assert fmean(completion.read_tokens_mean for completion in found) == pytest.approx(one.read_tokens_mean)


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2 or not torch.cuda.can_device_access_peer(0, 1), reason="needs peers")
def test_a_kernel_sums_over_two_ranks() -> None:
    assert all(map(all, over_gpus(2, "cuda", sum_norms)))


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


def test_what_cannot_be_split_is_refused(tiny_checkpoint: Callable) -> None:
    with pytest.raises(ConfigError, match="gpus = 2: the model's 3 KV heads"):
        run_split(tiny_checkpoint("qwen2"), 2, "cpu", "auto", "full", decode_all)
    with pytest.raises(ConfigError, match=r"gpus = 2: a mixture of experts \(qwen3_moe\) runs on one GPU"):
        run_split(tiny_checkpoint("qwen3_moe"), 2, "cpu", "auto", "full", decode_all)
    with pytest.raises(UnsupportedCellError, match="tidal does not run over several GPUs"):
        run_split(tiny_checkpoint("qwen3"), 2, "cpu", "auto", "tidal", decode_all)


@pytest.mark.parametrize(("killed", "words"), [(True, "rank 1 of 2 failed.*exit code 7"), (False, "no such knob")])
def test_a_rank_that_ends_ends_all(killed: bool, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=f"(?s){words}"):
        over_gpus(2, "cpu", partial(end_early, killed))
    assert time.monotonic() - start < 60
