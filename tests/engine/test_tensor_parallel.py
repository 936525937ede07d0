"""A model split over processes against the same model in one: tokens, log-probabilities, reads, refusals, ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import fmean

import pytest
import torch

from longdecode.engine import tensor_parallel
from longdecode.engine.errors import ConfigError, UnsupportedCellError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.ranks import Rank, RankError, over_gpus
from longdecode.engine.tensor_parallel import StepTime, load_share, random_share, run_split
from longdecode.engine.weights import load_decoder
from longdecode.methods.registry import get_method
from rank_work import decode_all, decode_shares, end_early

two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, two_gpus])])
def test_two_ranks_decode_what_one_does(device: str, tiny_checkpoint: Callable) -> None:
    """With biases and an odd vocabulary, with normed queries and keys, with tied embeddings."""
    folders = [tiny_checkpoint("llama_bias"), tiny_checkpoint("qwen3")]
    ranks = over_gpus(2, device, partial(decode_shares, folders))
    for folder, *shares in zip(folders, *ranks, strict=True):
        whole = load_decoder(folder, device=device, dtype=torch.float32)
        for one, *found in zip(decode_all(whole), *shares, strict=True):
            for completion in found:
                assert completion.output_ids == one.output_ids
                assert completion.forced_logprobs == pytest.approx(one.forced_logprobs, abs=2e-5)
            assert fmean(completion.read_tokens_mean for completion in found) == pytest.approx(one.read_tokens_mean)


def test_a_rank_holds_its_share_alone(tiny_checkpoint: Callable) -> None:
    folder, rank, here = tiny_checkpoint("llama_bias"), Rank(1, 2), (torch.device("cpu"), torch.float32)
    whole = load_decoder(folder, device="cpu", dtype=torch.float32)
    for share in (load_share(folder, rank, *here), random_share(whole.config, rank, 0, *here)):
        for name in ("qkv", "qkv_bias", "gate_up", "o", "down"):
            part, full = (getattr(decoder.weights.layers[0], name) for decoder in (share, whole))
            assert 2 * part.numel() == full.numel()
        assert (len(share.weights.lm_head), len(whole.weights.lm_head)) == (48, 97)
    with pytest.raises(UnsupportedCellError, match="h2o does not run over several GPUs; methods that do: duo, full"):
        Generator(share).run([Request((1,), 1)], get_method("h2o").from_budget(64, share.config))


def test_what_cannot_be_split_is_refused(tiny_checkpoint: Callable) -> None:
    with pytest.raises(ConfigError, match="gpus = 2: the model's 3 KV heads"):
        run_split(tiny_checkpoint("qwen2"), 2, "cpu", "auto", "full", decode_all)
    with pytest.raises(UnsupportedCellError, match="tidal does not run over several GPUs"):
        run_split(tiny_checkpoint("qwen3"), 2, "cpu", "auto", "tidal", decode_all)


def test_printed_floor(
    tiny_checkpoint: Callable, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """Of the rank that reads slowest."""
    ranks = [StepTime("GPU", [9.0, 8.0, 12.0], 0.5, int(12e9), rate) for rate in (3e9, 2e9)]
    monkeypatch.setattr(tensor_parallel, "over_gpus", lambda *_: ranks)
    tensor_parallel.main(["--shape", str(tiny_checkpoint("mistral") / "config.json"), "--context", "256"])
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("9.00 ms a step (8.00 to 12.00", "floor 6.00 ms", "share 67%"))


@pytest.mark.parametrize(("killed", "words"), [(True, "rank 1 of 2 failed.*exit code 7"), (False, "no such knob")])
def test_a_rank_that_ends_ends_all(killed: bool, words: str) -> None:
    start = time.monotonic()
    with pytest.raises(RankError, match=f"(?s){words}"):
        over_gpus(2, "cpu", partial(end_early, killed))
    assert time.monotonic() - start < 60
