"""Draft trees: their tables, the exact rule against plain decoding, TokenSwift's rule against its law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from longdecode.engine.acceptance import Accepted, accept
from longdecode.engine.attention import DenseAttention
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import DraftTree, PlacedTree, Proposer, Speculation
from longdecode.engine.weights import random_decoder

CONFIG = ModelConfig("qwen3", 40, 32, 24, 2, 4, 2, 8, 512, qk_norm=True)
TOKENSWIFT = DraftTree.branching((1, 3, 3, 3)).with_chains(1, 4, 3)


def test_a_tree_knows_its_paths() -> None:
    tree = DraftTree.branching((1, 2)).with_chains(1, 1, 2)
    assert tree.parents == (0, 1, 1, 1, 4) and tree.depths == (0, 1, 2, 2, 2, 3)
    assert tree.paths == ((0, 1, 2), (0, 1, 3), (0, 1, 4, 5))
    placed = PlacedTree(tree, torch.device("cpu"))
    assert placed.lineage.tolist() == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 4], [1, 4, 5]]
    assert placed.mask is not None and placed.mask[5].tolist() == [True, True, False, False, True, True]
    assert TOKENSWIFT.rows == 53 and len(TOKENSWIFT.paths) == 31 and DraftTree.chain(3).is_chain
    with pytest.raises(ValueError, match="row 2 follows row 2"):
        DraftTree((0, 2))


@dataclass
class Guess(Speculation):
    """Drafts from a text that is known: at each row the right token in some draws, any other in the rest."""

    tree: DraftTree
    texts: list[tuple[int, ...]]

    def start(self, decoder: Decoder, sequences: Sequences, state: DecodeState, prompt: Prompt) -> Proposer:
        speculation, generator = self, torch.Generator().manual_seed(0)

        class Guesser(Proposer):
            tree = speculation.tree

            def propose(self) -> Tensor:
                shape = (len(speculation.texts), self.tree.rows - 1)
                nodes = torch.randint(CONFIG.vocab_size, shape, generator=generator)
                for row, text in enumerate(speculation.texts):
                    for node, depth in enumerate(self.tree.depths[1:]):
                        place = int(sequences.counts[row]) + depth - 1
                        if place < len(text) and torch.rand((), generator=generator) < (0.9 if depth == 1 else 0.5):
                            nodes[row, node] = text[place]
                return nodes

        return Guesser()


class Drafted(DenseAttention):
    """Dense attention with guessed drafts."""

    name = "drafted"
    draft: Speculation = None  # type: ignore[assignment]


@pytest.mark.parametrize("tree", [TOKENSWIFT, DraftTree.chain(3)], ids=["tree", "chain"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.1, 0.95, min_p=0.01, penalty=1.3, penalty_window=3)])
def test_any_drafts_leave_the_text_as_it_is(sampling: Sampling, tree: DraftTree, random_ids: Callable) -> None:
    decoder = random_decoder(CONFIG, 5, "cpu", torch.float64)
    requests = [Request(random_ids(n, 40), 80, random_ids(row, 40), seed=row) for row, n in enumerate((30, 7, 19))]
    generator, full = Generator(decoder, sampling), DenseAttention((), CONFIG)
    want, drafted = generator.run(requests, full), Drafted((), CONFIG)
    drafted.draft = Guess(tree, [(*r.forced_ids, *c.output_ids) for r, c in zip(requests, want, strict=True)])
    got = generator.run(requests, drafted)
    for ours, theirs in zip(got, want, strict=True):
        assert ours.output_ids == theirs.output_ids
        assert ours.forced_logprobs == pytest.approx(theirs.forced_logprobs, abs=1e-9)
    # Right drafts are kept wherever they stand, also on a branch that begins like another one.
    assert sum(c.tokens_per_step for c in got) / 3 > (3.2 if tree is TOKENSWIFT else 1.8)


def verified(rule: str, law: Tensor, tree: DraftTree, nodes: list[int], sampling: Sampling, rows: int) -> Accepted:
    """One block whose every row has the same law, in ``rows`` rows of different seeds."""
    requests = [Request((7,), 4, seed=1000 + row) for row in range(rows)]
    sequences = Sequences(requests, sampling, torch.ones(rows, dtype=torch.bool))
    logits = law.log().expand(rows, tree.rows, len(law))
    placed = PlacedTree(tree, torch.device("cpu"))
    return accept(placed, torch.tensor(nodes).expand(rows, -1), logits, sequences, rule)  # type: ignore[arg-type]


LAW = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1])


@pytest.mark.parametrize("rule", ["exact", "faithful", "released"])
def test_the_first_token_has_the_law_of_the_rule(rule: str) -> None:
    """Three paths that share their first draft give it three chances in the faithful rule, one in the exact one."""
    tree = DraftTree.branching((1, 3))
    accepted = verified(rule, LAW, tree, [4, 0, 1, 2], Sampling(1.0), 20_000)
    first = accepted.chosen[:, 0].bincount(minlength=5) / 20_000
    chance = 0.1 if rule == "exact" else 1 - 0.9**3
    want = torch.cat((LAW[:4] / 0.9 * (1 - chance), torch.tensor([chance])))
    torch.testing.assert_close(first, want, atol=0.015, rtol=0)
    # The token after an accepted draft is drawn anew: it is one of its children or none of them.
    assert len(accepted.chosen[accepted.counts > 1, 1]) == int((accepted.chosen[:, 0] == 4).sum())


def test_the_released_rule_penalises_what_the_first_path_reads_first() -> None:
    """Token 7's law is moved down for path 0 alone: with one path the draft suffers, of three two keep their chance."""
    law = torch.tensor([0.05] * 7 + [0.6] + [0.05])
    sampling = Sampling(1.0, penalty=5.0, penalty_window=4)
    one = verified("released", law, DraftTree.chain(1), [7], sampling, 8000)
    both = verified("faithful", law, DraftTree.branching((1, 3)), [7, 0, 1, 2], sampling, 8000)
    three = verified("released", law, DraftTree.branching((1, 3)), [7, 0, 1, 2], sampling, 8000)
    logits = law.log()
    logits[7] *= 5
    q = float(logits.softmax(0)[7])
    shares = [float((accepted.chosen[:, 0] == 7).double().mean()) for accepted in (one, both, three)]
    assert shares == pytest.approx([q, 1 - (1 - q) ** 3, 1 - (1 - q) * 0.4**2], abs=0.02)
