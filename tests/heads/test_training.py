"""Head training on the miniature: what is learned and counted, and a killed run that ends with the same numbers."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from longdecode.engine.attention import DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import CheckpointError, ConfigError, DataUnavailableError
from longdecode.engine.generation import Generator, Request
from longdecode.engine.token_block import TokenBlock
from longdecode.engine.weights import load_decoder
from longdecode.evals.tokenizing import TextTokenizer, load_tokenizer
from longdecode.heads.data import Books, PairTable
from longdecode.heads.recipe import Recipe, load_recipe
from longdecode.heads.train import HeadTrainer, train_heads
from longdecode.methods.registry import get_method

MINIATURE = Path(__file__).resolve().parents[2] / "miniature" / "weights"
SMALL = {"steps": 6, "sequences": 3, "at_once": 2, "length": 48, "warmup_steps": 2, "loss_slice": 50, "save_every": 2}
RECIPE = Recipe(**load_recipe("miniature").model_dump() | SMALL | {"log_every": 1, "unseen_windows": 3})


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


@pytest.mark.parametrize("kind", ["chained", "medusa"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(
    kind: str, decoder: Decoder, library: Books, tmp_path: Path
) -> None:
    whole, first, second = (tmp_path / name for name in ("whole.pt", "cut.pt", "cut.pt"))
    straight = HeadTrainer(decoder, library, RECIPE, kind, "normal", whole)  # type: ignore[arg-type]
    straight.fit()
    HeadTrainer(decoder, library, RECIPE, kind, "normal", first).fit(stop=5)  # type: ignore[arg-type]
    resumed = HeadTrainer(decoder, library, RECIPE, kind, "normal", second)  # type: ignore[arg-type]
    assert resumed.step == 4  # the last checkpoint; step 5 was lost
    resumed.fit()
    assert resumed.curve == straight.curve and len(straight.curve) == 6
    for name, value in straight.heads.state_dict().items():
        assert value.equal(resumed.heads.state_dict()[name])
    assert straight.curve[-1]["loss_1"] < straight.curve[0]["loss_1"]
    with pytest.raises(CheckpointError, match="belongs to another training"):
        HeadTrainer(decoder, library, RECIPE, kind, "zero", second)  # type: ignore[arg-type]


def test_heads_see_what_decoding_sees(decoder: Decoder, library: Books, tmp_path: Path) -> None:
    """States of a window, and the tokens to name, are those of feeding it token by token."""
    trainer = HeadTrainer(decoder, library, RECIPE, "chained", "normal", tmp_path / "state.pt")
    windows = np.stack([library.window(0, 0, row) for row in range(2)])
    pairs = list(trainer._pairs(torch.from_numpy(windows)))
    state, dense = DecodeState(decoder.new_cache(2, RECIPE.length)), DenseAttention((), decoder.config)
    for place in range(RECIPE.length - 4):
        tokens = torch.from_numpy(windows[:, place : place + 1])
        hidden = decoder.forward(TokenBlock(tokens, state.cache.positions[:, None]), state, dense)
        state.accept()
        for head, found in enumerate(trainer.heads.states(state.residual[:, 0], hidden[:, 0]), start=1):
            states, wanted = pairs[head - 1]
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


def test_trained_heads_draft(books: Path, tmp_path: Path, decoder: Decoder) -> None:
    """The files of a training are whole, its heads are accepted for this checkpoint and leave the text as it is."""
    train_heads(MINIATURE, "miniature", str(books), RECIPE, "chained", "zero", tmp_path, "cpu")
    about = json.loads((tmp_path / "heads.json").read_text())
    assert about["run"]["init"] == "zero" and len(about["run"]["accuracy"]) == 3
    assert {"top1", "pair_top3"} <= set(about["run"]["accuracy"][0])
    assert len((tmp_path / "curve.csv").read_text().splitlines()) == 7 and not (tmp_path / "state.pt").exists()
    requests = [Request(tuple(b"the old ledger said that no ship came home"), 20)]
    path = str(tmp_path / "heads.json")
    method = get_method("tokenswift").from_budget(32, decoder.config, heads=path, tree="1,2,2", ngrams=0)
    full = get_method("full").from_budget(None, decoder.config)
    generator = Generator(decoder)
    assert generator.run(requests, method)[0].output_ids == generator.run(requests, full)[0].output_ids


def test_bad_data_and_recipes_are_refused(books: Path, tmp_path: Path) -> None:
    tokenizer: TextTokenizer = load_tokenizer(MINIATURE)
    with pytest.raises(DataUnavailableError, match=r"data\.pg19 is not set"):
        Books(None, tokenizer, 48)
    with pytest.raises(DataUnavailableError, match="0 books have over 100000 tokens; two or more are needed"):
        Books(str(books), tokenizer, 100_000)
    bad = tmp_path / "recipe.yaml"
    bad.write_text("default: {steps: 0}")
    with pytest.raises(ConfigError, match=r"recipe.yaml: any: heads: Field required"):
        load_recipe("any", bad)
