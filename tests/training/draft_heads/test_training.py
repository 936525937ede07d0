"""Head training on the miniature: what is learned and counted, and a killed run that ends with the same numbers."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from longdecode.engine.attention import DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import CheckpointError, ConfigError, DataUnavailableError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.methods.draft_heads import load_heads, write_heads
from longdecode.methods.registry import get_method
from longdecode.training.draft_heads.data import Books, PairTable
from longdecode.training.draft_heads.loss import frozen_head_loss
from longdecode.training.draft_heads.recipe import STARTS, Recipe, load_recipe
from longdecode.training.draft_heads.ship import ship
from longdecode.training.draft_heads.train import HeadTrainer, pairs, train_heads

MINIATURE = Path(__file__).resolve().parents[3] / "models" / "miniature" / "weights"
SMALL = {"steps": 6, "sequences": 3, "at_once": 2, "length": 48, "warmup_steps": 2, "loss_slice": 50, "save_every": 2}
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


def test_a_killed_run_goes_on_as_if_it_had_not_been(decoder: Decoder, library: Books, tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole.pt", tmp_path / "cut.pt"
    straight = HeadTrainer(decoder, library, RECIPE, ALL, whole)
    straight.fit()
    HeadTrainer(decoder, library, RECIPE, ALL, cut).fit(stop=5)
    resumed = HeadTrainer(decoder, library, RECIPE, ALL, cut)
    assert resumed.step == 4  # the last checkpoint; step 5 was lost
    resumed.fit()
    assert resumed.curves == straight.curves
    for start, heads in straight.sets.items():
        curve = straight.curves[start]
        assert len(curve) == 6 and curve[-1]["loss_1"] < curve[0]["loss_1"]
        for name, value in heads.state_dict().items():
            assert value.equal(resumed.sets[start].state_dict()[name])
    with pytest.raises(CheckpointError, match="belongs to other settings"):
        HeadTrainer(decoder, library, RECIPE, ALL[:1], cut)


def test_a_set_learns_what_it_learns_alone(decoder: Decoder, library: Books, tmp_path: Path) -> None:
    together = HeadTrainer(decoder, library, RECIPE, ALL, tmp_path / "together.pt")
    together.fit(stop=3)
    for start in ALL:
        alone = HeadTrainer(decoder, library, RECIPE, [start], tmp_path / f"{start.kind}-{start.init}.pt")
        alone.fit(stop=3)
        for name, value in alone.sets[start].state_dict().items():
            torch.testing.assert_close(together.sets[start].state_dict()[name], value, atol=1e-6, rtol=1e-5)


def test_the_zero_start_predicts_as_the_model_does(decoder: Decoder, library: Books, tmp_path: Path) -> None:
    trainer = HeadTrainer(decoder, library, RECIPE, ALL, tmp_path / "state.pt")
    before, after = trainer._states(torch.from_numpy(library.window(1, 0, 0))[None])
    for start, heads in trainer.sets.items():
        same = [torch.allclose(found, after, atol=1e-4) for found in heads.states(before, after)]
        assert all(same) == (start.init == "zero")
    given = (
        trainer.sets[STARTS["chained/zero"]].norm_in[0].detach() * before / before.square().mean(2, keepdim=True).sqrt()
    )
    assert 0.8 < float(given.norm() / before.norm()) < 1.2


def test_the_loss_and_its_slope_are_autograds(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    states, head = (torch.randn(size, generator=generator, dtype=torch.float64) for size in ((23, 16), (37, 16)))
    wanted = torch.randint(37, (23,), generator=generator)
    slopes = []
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
    trainer = HeadTrainer(decoder, library, RECIPE, [STARTS["chained/normal"]], tmp_path / "state.pt")
    (heads,) = trainer.sets.values()
    windows = torch.from_numpy(np.stack([library.window(0, 0, row) for row in range(2)]))
    found_pairs = list(pairs(heads, *trainer._states(windows), windows))
    state, dense = DecodeState(decoder.new_cache(2, RECIPE.length)), DenseAttention((), decoder.config)
    for place in range(RECIPE.length - 4):
        hidden = decoder.forward(
            TokenBlock(windows[:, place : place + 1], state.cache.positions[:, None]), state, dense
        )
        state.accept()
        for head, found in enumerate(heads.states(state.residual[:, 0], hidden[:, 0]), start=1):
            states, wanted = found_pairs[head - 1]
            width = RECIPE.length - 1 - head
            torch.testing.assert_close(states.view(2, width, -1)[:, place], found, atol=2e-4, rtol=1e-3)
            assert wanted.view(2, width)[:, place].tolist() == windows[:, place + 1 + head].tolist()


def test_a_pair_table_counts_pairs(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    books = [torch.randint(5, (n,), generator=generator).numpy() for n in (200, 90)]
    table = PairTable(books, 2, 6)
    for token in range(6):
        counts = Counter(int(b) for book in books for a, b in zip(book, book[2:], strict=False) if a == token)
        best = sorted(counts, key=lambda other: (-counts[other], other))[:3]
        assert table.best[token].tolist() == best + [-1] * (3 - len(best))
    hits = table.hits(torch.tensor([2, 2]), torch.stack((table.best[2, 0], table.best[2, 1])))
    assert hits.tolist() == [[True, True, True], [False, True, True]]


def test_books_set_aside_are_never_trained_on(books: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(books.glob("*.txt"))):
        (tmp_path / f"{(4047, 3608, 9931, 5)[number] if number < 4 else path.stem}.txt").write_text(path.read_text())
    found = Books(str(tmp_path), load_tokenizer(MINIATURE), RECIPE.length)
    assert len(found.unseen) == 2 and len(found.train) == 10
    text = (tmp_path / "9931.txt").read_text().encode("ascii", "ignore").decode("ascii")
    assert tuple(found.unseen[1].tolist()) == tuple(load_tokenizer(MINIATURE).encode(text))


def test_trained_heads_draft_and_ship(books: Path, tmp_path: Path, decoder: Decoder) -> None:
    """Files of a training and their shipped copy are whole, fit this checkpoint and leave the text as it is."""
    train_heads(MINIATURE, "miniature", str(books), RECIPE, list(STARTS.values()), tmp_path, "cpu")
    assert not (tmp_path / "state.pt").exists()
    for start in STARTS.values():
        about = json.loads((tmp_path / str(start) / "heads.json").read_text())
        assert (about["kind"], about["run"]["init"]) == (start.kind, start.init)
        assert len(about["run"]["accuracy"]) == about["heads"] == RECIPE.heads[start.kind]
        assert {"top1", "pair_top3"} <= set(about["run"]["accuracy"][0])
        assert len((tmp_path / str(start) / "curve.csv").read_text().splitlines()) == 7
    trained, shipped = tmp_path / "chained" / "zero" / "heads.json", tmp_path / "shipped"
    ship(trained, shipped)
    requests = [Request(tuple(b"the old ledger said that no ship came home"), 20)]
    full = get_method("full").from_budget(None, decoder.config)
    generator = Generator(decoder)
    want = generator.run(requests, full)[0].output_ids
    for path in (trained, shipped / "heads.json"):
        method = get_method("tokenswift").from_budget(32, decoder.config, heads=str(path), tree="1,2,2", ngrams=0)
        assert generator.run(requests, method)[0].output_ids == want
    first, second = (load_heads(str(path), "chained", 3, decoder) for path in (trained, shipped / "heads.json"))
    for name, value in second.state_dict().items():
        assert value.equal(first.state_dict()[name].bfloat16().float())
    card = (shipped / "README.md").read_text()
    size = (shipped / "heads.safetensors").stat().st_size
    assert f"{size:,} bytes" in card and size < 3 * 256 * 258 * 2 + 600 and "6 steps of 144 tokens" in card
    plain = tmp_path / "plain.json"
    write_heads(plain, first, "miniature", "0" * 64, {})
    with pytest.raises(CheckpointError, match=r"plain.json does not say .*accuracy.*: no training wrote it"):
        ship(plain, shipped)


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
