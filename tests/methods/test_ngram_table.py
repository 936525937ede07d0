"""Tables of n-grams on the device against dictionaries and loops."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from kernel_inputs import DEVICE
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.generation import Request, Sampling
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import Verified
from longdecode.methods.ngram_table import NgramTable, SuffixTable


def a_batch(texts: list[list[int]], longest: int) -> Sequences:
    requests = [Request(tuple(text), longest) for text in texts]
    return Sequences(requests, Sampling(), torch.ones(len(texts), dtype=torch.bool, device=DEVICE))


@pytest.mark.parametrize("path", ["naive", "triton"])
@pytest.mark.parametrize(("lag", "vocab"), [(0, 3), (7, 4)])
def test_it_counts_as_a_dict_does(lag: int, vocab: int, path: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts, ties by recency and the lag, over texts in which everything recurs; grown in steps of 0 to 3 tokens."""
    monkeypatch.setattr("longdecode.kernels.dispatch.kernel_path", lambda *given: path)
    monkeypatch.setattr("longdecode.kernels.ngram_table.gpu._CHUNK", 64)
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(vocab, (n,), generator=generator).tolist() for n in (60, 9, 1)]
    sequences = a_batch(texts, 80)
    sequences.tokens.copy_(torch.tensor([0, 1, 2]))
    sequences.counts.fill_(1)
    table = NgramTable(texts, sequences, 3, lag, vocab)
    texts = [[*text, row] for row, text in enumerate(texts)]
    for _ in range(15):
        for row, text in enumerate(texts):
            counts: Counter[tuple[int, int]] = Counter()
            last: dict[tuple[int, int], int] = {}
            first = int(torch.randint(vocab, (), generator=generator))
            for at in range(len(text) - lag - 2):
                if text[at] == first:
                    gram = (text[at + 1], text[at + 2])
                    counts[gram] += 1
                    last[gram] = at
            want = sorted(counts, key=lambda gram: (-counts[gram], -last[gram]))[:4]
            got = table.look_up(torch.full((3,), first, device=DEVICE), 4)[row].tolist()
            assert got == [list(gram) for gram in want] + [[-1, -1]] * (4 - len(want))
        kept = torch.randint(0, 4, (3,), generator=generator).to(DEVICE)
        new = torch.randint(vocab, (3, 3), generator=generator).to(DEVICE)
        table.add_verified(Verified(kept, kept, new, kept, new))
        texts = [text + new[row, : int(kept[row])].tolist() for row, text in enumerate(texts)]


def test_the_end_of_the_text_is_looked_up(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    texts = [torch.randint(3, (n,), generator=generator).tolist() for n in (40, 12, 2)]
    sequences = a_batch(texts, 20)
    sequences.counts.fill_(1)
    found = SuffixTable(texts, sequences).look_up(3, 4, 2).tolist()
    for row, text in enumerate([[*text, 0] for text in texts]):

        def agreement(at: int, text: list[int] = text) -> int:
            return next((n for n in range(3) if at - n < 0 or text[at - n] != text[-1 - n]), 3)

        places = sorted((at for at in range(len(text) - 1) if agreement(at)), key=lambda at: (-agreement(at), -at))[:2]
        want = [(text[at + 1 : at + 5] + [-1] * 4)[:4] for at in places]
        assert found[row] == want + [[-1] * 4] * (2 - len(want))


def test_a_vocabulary_over_the_tables_integer_is_refused() -> None:
    with pytest.raises(UnsupportedCellError, match="vocabulary of 3,000,000 do not fit the table's 64-bit integer"):
        NgramTable([(1,)], a_batch([[1]], 4), 4, 0, 3_000_000)


@pytest.mark.parametrize("path", ["naive", "triton"])
def test_a_text_that_outgrows_its_row_is_cut_off(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A timed step is repeated without end: nothing is written past the row, into the next one's."""
    monkeypatch.setattr("longdecode.kernels.dispatch.kernel_path", lambda *given: path)
    table = NgramTable([(1, 2, 1, 2)] * 2, a_batch([[1, 2, 1, 2], [1, 2, 1, 2]], 6), 3, 0, 5)
    second = [tensor[1].clone() for tensor in (table.text, table.entries.code, table.entries.count)]
    new, kept = torch.full((2, 3), 4, device=DEVICE), torch.tensor([3, 0], device=DEVICE)
    for _ in range(7):
        table.add_verified(Verified(kept, kept, new, kept, new))
    for tensor, before in zip((table.text, table.entries.code, table.entries.count), second, strict=True):
        assert torch.equal(tensor[1, :-1], before[:-1])
    assert table.text[0, :-1].tolist() == [1, 2, 1, 2] + [4] * 6
    assert table.look_up(torch.tensor([4, 1], device=DEVICE), 1).tolist() == [[[4, 4]], [[2, 1]]]
