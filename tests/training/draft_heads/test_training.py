"""Head training on the miniature: what is learned and counted, and a killed run that ends with the same numbers."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from harm import Harm
from longdecode.engine.attention import DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import CheckpointError, ConfigError, DataUnavailableError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.methods.draft_heads import load_heads
from longdecode.methods.registry import get_method
from longdecode.training import loop
from longdecode.training.draft_heads import own_text
from longdecode.training.draft_heads.data import Books
from longdecode.training.draft_heads.loss import frozen_head_loss
from longdecode.training.draft_heads.recipe import STARTS, Recipe, load_recipe
from longdecode.training.draft_heads.train import HeadTrainer, hidden_states, pairs, train_heads

MINIATURE = Path(__file__).resolve().parents[3] / "models" / "miniature" / "weights"
SMALL = {"steps": 6, "sequences": 3, "at_once": 2, "length": 48, "warmup_steps": 2, "loss_slice": 50}
RECIPE = Recipe(**load_recipe("miniature").model_dump() | SMALL | {"log_every": 1, "unseen_windows": 3})
ALL = tuple(STARTS.values())


@pytest.fixture(scope="module")
def books(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve books of a few words each, repeated in random order."""
    folder, rng = tmp_path_factory.mktemp("books"), random.Random(3)
    words = "the old ledger said that no ship came home before winter and all went well".split()
    for book in range(12):
        (folder / f"{book:02d}.txt").write_text(" ".join(rng.choice(words) for _ in range(60)))
    return folder


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return load_decoder(MINIATURE, device="cpu", dtype=torch.float32)


@pytest.fixture(scope="module")
def library(books: Path) -> Books:
    return Books(str(books), load_tokenizer(MINIATURE), RECIPE.length)


def test_killed_and_resumed(decoder: Decoder, library: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "SAVE_SECONDS", 0.0)
    (straight := HeadTrainer(decoder, library, RECIPE, ALL, tmp_path / "whole.pt")).fit()
    cut = tmp_path / "cut.pt"
    killed, step = HeadTrainer(decoder, library, RECIPE, ALL, cut), HeadTrainer._step
    monkeypatch.setattr(killed, "_step", lambda number, passed: step(killed, number, passed) if number < 4 else 1 / 0)
    with pytest.raises(ZeroDivisionError):
        killed.fit()
    resumed = HeadTrainer(decoder, library, RECIPE, ALL, cut)
    assert resumed.loop.step == 4
    resumed.fit()
    assert resumed.curves == straight.curves
    for start, heads in straight.sets.items():
        curve = straight.curves[start]
        assert len(curve) == 6 and curve[-1]["loss_1"] < curve[0]["loss_1"]
        for name, value in heads.state_dict().items():
            assert value.equal(resumed.sets[start].state_dict()[name])
    with pytest.raises(CheckpointError, match="belongs to other settings"):
        HeadTrainer(decoder, library, RECIPE, ALL[:1], cut)
    torch.save(Harm(tmp_path / "planted"), cut)
    with pytest.raises(UnpicklingError):
        HeadTrainer(decoder, library, RECIPE, ALL, cut)
    assert not (tmp_path / "planted").exists()


def test_the_zero_start_predicts_as_the_model_does(decoder: Decoder, library: Books, tmp_path: Path) -> None:
    trainer = HeadTrainer(decoder, library, RECIPE, ALL, tmp_path / "state.pt")
    before, after = hidden_states(decoder, torch.from_numpy(library.window(1, 0, 0))[None])
    for start, heads in trainer.sets.items():
        same = [torch.allclose(found, after, atol=1e-4) for found in heads.states(before, after)]
        assert all(same) == (start.init == "zero")
    weight = trainer.sets[STARTS["chained/zero"]].norm_in[0].detach()
    given = weight * before / before.square().mean(2, keepdim=True).sqrt()
    assert 0.8 < float(given.norm() / before.norm()) < 1.2


def test_the_loss_and_its_slope_are_autograds(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states, head = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((23, 16), (37, 16)))
    wanted, slopes = torch.randint(37, (23,), generator=generator), []
    for loss_of in (lambda x: frozen_head_loss(x, wanted, head, 5), lambda x: cross_entropy(x @ head.T, wanted)):
        given = states.clone().requires_grad_()
        loss = loss_of(given)
        (3 * loss).backward()
        slopes.append((loss.detach(), given.grad))
    torch.testing.assert_close(slopes[0][0].double(), slopes[1][0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(slopes[0][1], slopes[1][1], atol=1e-12, rtol=1e-9)
    rough = states.float().requires_grad_()
    frozen_head_loss(rough, wanted, head.bfloat16(), 23).backward()
    assert rough.grad is not None
    torch.testing.assert_close(3 * rough.grad.double(), slopes[1][1], atol=1e-2, rtol=2e-2)


def test_heads_see_what_decoding_sees(decoder: Decoder, library: Books, tmp_path: Path) -> None:
    """States of a window, and the tokens to name, are those of feeding it token by token."""
    (heads,) = HeadTrainer(decoder, library, RECIPE, [STARTS["chained/normal"]], tmp_path / "state.pt").sets.values()
    windows = torch.from_numpy(np.stack([library.window(0, 0, row) for row in range(2)]))
    found_pairs = list(pairs(heads, *hidden_states(decoder, windows), windows))
    state, dense = DecodeState(decoder.new_cache(2, RECIPE.length)), DenseAttention((), decoder.config)
    for place in range(RECIPE.length - 4):
        block = TokenBlock(windows[:, place : place + 1], state.cache.positions[:, None])
        hidden = decoder.forward(block, state, dense)
        state.accept()
        for head, found in enumerate(heads.states(state.residual[:, 0], hidden[:, 0]), start=1):
            states, wanted = found_pairs[head - 1]
            width = RECIPE.length - 1 - head
            torch.testing.assert_close(states.view(2, width, -1)[:, place], found, atol=2e-4, rtol=1e-3)
            assert wanted.view(2, width)[:, place].tolist() == windows[:, place + 1 + head].tolist()


def test_books_set_aside_are_never_trained_on(books: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(books.glob("*.txt"))):
        (tmp_path / f"{(4047, 3608, 9931, 5)[number] if number < 4 else path.stem}.txt").write_text(path.read_text())
    found = Books(str(tmp_path), load_tokenizer(MINIATURE), RECIPE.length)
    assert len(found.unseen) == 2 and len(found.train) == 10
    text = (tmp_path / "9931.txt").read_text().encode("ascii", "ignore").decode("ascii")
    assert tuple(found.unseen[1].tolist()) == tuple(load_tokenizer(MINIATURE).encode(text))


def test_trained_heads_draft(books: Path, tmp_path: Path, decoder: Decoder) -> None:
    """Files of a training are whole, fit this checkpoint and leave the text as it is."""
    train_heads(MINIATURE, "miniature", str(books), RECIPE, STARTS, tmp_path, "cpu")
    assert not (tmp_path / "state.pt").exists()
    for start in STARTS.values():
        about = json.loads((tmp_path / str(start) / "heads.json").read_text())
        assert (about["kind"], about["run"]["init"]) == (start.kind, start.init)
        assert len(about["run"]["accuracy"]) == about["heads"] == RECIPE.heads[start.kind]
        assert {"top1", "top3"} <= set(about["run"]["accuracy"][0])
        assert len((tmp_path / str(start) / "curve.csv").read_text().splitlines()) == 7
    requests = [Request(tuple(b"the old ledger said that no ship came home"), 20)]
    full = get_method("full").from_budget(None, decoder.config)
    generator = Generator(decoder)
    want = generator.run(requests, full)[0].output_ids
    trained = str(tmp_path / "chained" / "zero" / "heads.json")
    method = get_method("tokenswift").from_budget(32, decoder.config, heads=trained, tree="1,2,2", ngrams=0)
    assert generator.run(requests, method)[0].output_ids == want
    for value in load_heads(trained, "chained", 3, decoder).state_dict().values():
        assert value.equal(value.bfloat16().float())


def test_heads_learn(decoder: Decoder, library: Books, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A penalty is the first whose texts repeat little; own texts are continuations that a training reads."""
    repeats = {1.0: 0.5, 1.05: 0.1, 1.1: 0.09}
    monkeypatch.setattr(own_text, "continued", lambda _, sampling, *given: [sampling.penalty])
    monkeypatch.setattr(own_text, "diversity", lambda penalty: {"repeated_8": repeats[penalty]})
    assert own_text.choose_penalty(decoder, [], 9, tmp_path / "penalty.json") == 1.1
    noted = json.loads((tmp_path / "penalty.json").read_text())["repeated_8"]
    assert noted == {"1.0": [0.5], "1.05": [0.1], "1.1": [0.09]}
    monkeypatch.undo()
    plan, file = own_text.OwnText(texts=11, batch=8, prompt=20, tokens=60), tmp_path / "own.npz"
    own_text.sample(decoder, library, replace(own_text.SAMPLER, penalty=1.1), file, plan)
    own = Books(str(file), load_tokenizer(MINIATURE), RECIPE.length)
    assert len(own.train) == 9 and len(own.unseen) == 2 and {len(ids) for ids in own.train} == {60}
    (trainer := HeadTrainer(decoder, own, RECIPE, ALL[:1], tmp_path / "state.pt", 1e-9)).fit()
    assert trainer.loop.step == 1 and len(trainer.curves[ALL[0]]) == 1  # its minutes end it


def test_bad_data_and_recipes_are_refused(books: Path, tmp_path: Path) -> None:
    tokenizer: TextTokenizer = load_tokenizer(MINIATURE)
    with pytest.raises(DataUnavailableError, match=r"data\.pg19 is not set"):
        Books(None, tokenizer, 48)
    with pytest.raises(DataUnavailableError, match="0 books have over 100000 tokens; two or more are needed"):
        Books(str(books), tokenizer, 100_000)
    bad = tmp_path / "recipe.yaml"
    bad.write_text("default: {steps: 0}")
    with pytest.raises(ConfigError, match=r"recipe.yaml: any: heads: is missing"):
        load_recipe("any", bad)
