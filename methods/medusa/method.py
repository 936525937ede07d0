"""Medusa: heads on the last hidden state fill a tree of drafts, one pass verifies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import DenseAttention, Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import AcceptRule, Proposer, Speculation, Verified
from longdecode.engine.token_block import TokenBlock
from longdecode.methods.draft_heads import DraftHeads, check_source, heads_bytes, load_heads
from longdecode.methods.ngram_table import NgramTable
from longdecode.methods.speculative import UnbudgetedSpeculation, parse_tree
from longdecode.methods.tree_drafts import TreeDrafter, TreeDrafts


@dataclass(frozen=True, slots=True)
class MedusaParams:
    """Knobs of Medusa."""

    passes: Annotated[int, Field(ge=1, le=2)] = 1
    heads: str = ""
    tree: str = "1,3,3,3"
    ngrams: Annotated[int, Field(ge=0, le=200)] = 0
    mode: AcceptRule = "exact"
    noisy_ranks: bool | None = None


class Medusa(UnbudgetedSpeculation):
    """Independent heads guess the tokens after the next one; the tree they span is verified in the same pass.

    With ``passes: 1`` the heads read the hidden state of the last accepted row, which the verification has computed:
    no pass drafts. The first head fills the level below the newest token. With ``passes: 2`` the newest token first
    runs through the model over the full cache, whose LM head fills the first level, as TokenSwift's comparison with
    Medusa was probably measured.

    Source: Cai et al. 2024, Medusa (arXiv 2401.10774); TokenSwift (arXiv 2502.18890), table 3; deviations in card.yaml.
    """

    name: ClassVar[str] = "medusa"
    Params: ClassVar[type] = MedusaParams
    params: MedusaParams

    def __init__(self, params: MedusaParams, config: ModelConfig):
        super().__init__(params, config)
        check_source(params.heads)
        self.draft = MedusaDraft(params, config)


class MedusaDraft(Speculation):
    """A tree by ranks of the heads' logits, and chains of n-grams from its first token where asked for."""

    def __init__(self, params: MedusaParams, config: ModelConfig):
        self.params, self.config = params, config
        self.drafts = TreeDrafts(parse_tree("medusa", params.tree), params.ngrams)
        self.tree = self.drafts.tree
        self.rule = params.mode
        self.heads = self.drafts.levels.depth - (params.passes == 2)

    @property
    def passes(self) -> int:
        """See ``Speculation.passes``."""
        return self.params.passes - 1

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic | None:
        """See ``Speculation.traffic``: one dense pass, or none."""
        dense = DenseAttention((), self.config).traffic(context_tokens, bytes_per_element)
        return dense if self.passes else None

    def draft_bytes(self, context_tokens: int, bytes_per_element: int, weight_bytes: int, batch: int) -> int:
        """See ``Speculation.draft_bytes``; heads and, without a pass of its own, the LM head."""
        config = self.config
        own = heads_bytes("medusa", self.heads, config, bytes_per_element)
        lm_head = 0 if self.passes else config.vocab_size * config.hidden_size * bytes_per_element
        return own + lm_head + super().draft_bytes(context_tokens, bytes_per_element, weight_bytes, batch)

    def start(self, decoder: Decoder, sequences: Sequences, state: DecodeState, prompt: Prompt) -> MedusaProposer:
        """See ``Speculation.start``.

        Raises:
            DataUnavailableError: no heads are named or there.
            CheckpointError: the heads belong to another checkpoint.
        """
        heads = load_heads(self.params.heads, "medusa", self.heads, decoder)
        table = None
        if self.drafts.chains:
            prompts = [request.prompt_ids for request in prompt.requests]
            lag = sequences.history_tokens
            table = NgramTable(prompts, sequences, self.drafts.levels.depth, lag, decoder.config.vocab_size)
        noisy = self.rule == "exact" if self.params.noisy_ranks is None else self.params.noisy_ranks
        filler = TreeDrafter(self.drafts, table, sequences, noisy=noisy)
        return MedusaProposer(decoder, state, heads, filler, self.passes)


class MedusaProposer(Proposer):
    """Heads on the last accepted row's hidden state, or on that of a dense pass of the newest token.

    Before the first verification there is no hidden state: the first step of one-pass Medusa drafts from zeros.
    """

    def __init__(self, decoder: Decoder, verifier: DecodeState, heads: DraftHeads, filler: TreeDrafter, passes: int):
        self.decoder, self.verifier, self.heads, self.filler = decoder, verifier, heads, filler
        self.tree = filler.drafts.tree
        self.dense = DenseAttention((), decoder.config)
        self.state = self.dense.decode_in(verifier.cache) if passes else None
        self.states = (self.state,) if self.state is not None else ()
        size = (verifier.cache.batch, decoder.config.hidden_size)
        self.hidden = torch.zeros(size, device=decoder.device, dtype=decoder.dtype)

    def propose(self) -> Tensor:
        """See ``Proposer.propose``."""
        rows: list[Tensor] = []
        hidden = self.hidden
        if self.state is not None:
            self.state.active.copy_(self.verifier.active)
            cache = self.verifier.cache
            block = TokenBlock(self.filler.sequences.tokens[:, None], cache.positions[:, None])
            hidden = self.decoder.forward(block, self.state, self.dense)[:, 0]
            self.state.accept(torch.zeros_like(cache.positions))
            rows.append(hidden)
        rows += self.heads.states(hidden, hidden)
        return self.filler.fill(self.decoder.logits(torch.stack(rows, dim=1)))

    def keep(self, verified: Verified) -> None:
        """See ``Proposer.keep``; notes the hidden state of the last accepted row."""
        last = verified.rows.gather(1, (verified.kept - 1).clamp(min=0)[:, None])
        hidden = verified.hidden.gather(1, last[..., None].expand(-1, 1, verified.hidden.shape[2]))[:, 0]
        self.hidden.copy_(torch.where(verified.kept[:, None] > 0, hidden, self.hidden))
        self.filler.keep(verified)

    def counts(self) -> Mapping[str, Tensor]:
        """See ``Proposer.counts``."""
        return self.filler.counts()


METHOD = Medusa
