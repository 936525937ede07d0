"""TokenSwift: the model drafts on a partial KV cache, heads and n-grams widen it to a tree, one pass verifies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
from pydantic import Field
from torch import Tensor

from longdecode.engine.attention import Traffic
from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.prefill import PrefillObserver
from longdecode.engine.request import Prompt
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import AcceptRule, Speculation, Verified
from longdecode.engine.token_block import TokenBlock
from longdecode.methods.draft_heads import DraftHeads, check_source, heads_bytes, load_heads
from longdecode.methods.ngram_table import NgramTable
from longdecode.methods.partial_attention import PartialAttention, RenewingProposer
from longdecode.methods.partial_cache import PartialCache
from longdecode.methods.speculative import SpeculativeMethod, parse_tree
from longdecode.methods.tree_drafts import TreeDrafter, TreeDrafts


@dataclass(frozen=True, slots=True)
class TokenSwiftParams:
    """Knobs of TokenSwift."""

    mode: AcceptRule = "exact"
    heads: str = ""
    tree: str = "1,3,3,3"
    ngrams: Annotated[int, Field(ge=0, le=200)] = 20
    ngrams_few: Annotated[int, Field(ge=0)] | None = None
    ngram_lag: Annotated[int, Field(ge=0)] | None = None
    sinks: Annotated[int, Field(ge=0)] = 16
    noisy_ranks: bool | None = None


class TokenSwift(SpeculativeMethod):
    """One pass over ``budget`` tokens per KV head drafts, one pass over all keys verifies a tree of drafts.

    The newest token runs through the model over the partial cache. Its own LM head proposes the next token, three
    chained heads the three after it; with the LM head shared, all four rows are one read of it. Ranks fill the tree, an
    n-gram table adds continuations of its first token. ``mode`` is the rule of acceptance: ``exact`` writes the text of
    plain decoding. With ``ngrams_few`` steps verify so many continuations or all, whichever lately wrote faster.

    Source: TokenSwift (arXiv 2502.18890), section 3 and algorithm 1; released code at f927281; deviations in card.yaml.
    """

    name: ClassVar[str] = "tokenswift"
    Params: ClassVar[type] = TokenSwiftParams
    params: TokenSwiftParams

    def __init__(self, params: TokenSwiftParams, config: ModelConfig, budget_tokens: int):
        super().__init__(params, config, budget_tokens)
        check_source(params.heads)
        self.draft = TokenSwiftDraft(params, config, budget_tokens)

    @classmethod
    def minimum_budget(cls, params: TokenSwiftParams) -> tuple[int, str]:
        """Return the sinks and the tokens that two steps may add before the cache is built anew."""
        most = parse_tree(cls.name, params.tree).depth + 1
        return params.sinks + 2 * most, f"{params.sinks} sinks and two steps of {most} tokens"


class TokenSwiftDraft(Speculation):
    """A tree by ranks of the model's and the heads' logits, and chains of n-grams from its first token."""

    method: PartialAttention

    def __init__(self, params: TokenSwiftParams, config: ModelConfig, budget: int):
        self.params, self.config = params, config
        levels = parse_tree("tokenswift", params.tree)
        self.drafts = TreeDrafts(levels, params.ngrams)
        self.tree = self.drafts.tree
        self.rule = params.mode
        if (few := params.ngrams_few) is not None:
            if params.mode != "exact":
                raise ConfigError(f"tokenswift: ngrams_few in mode {params.mode}: its text would depend on the clock")
            if few >= self.drafts.chains:
                raise ConfigError(f"tokenswift: ngrams_few = {few} of {self.drafts.chains} chains; fewer are needed")
            self.narrow = self.drafts.with_ngrams(few)
        self.method = PartialAttention(config, budget, params.sinks, 1, 1)

    @property
    def passes(self) -> int:
        """See ``Speculation.passes``."""
        return 1

    def traffic(self, context_tokens: int, bytes_per_element: int) -> Traffic:
        """See ``Speculation.traffic``."""
        return self.method.traffic(context_tokens, bytes_per_element)

    def draft_bytes(self, context_tokens: int, bytes_per_element: int, weight_bytes: int, batch: int) -> int:
        """See ``Speculation.draft_bytes``."""
        heads = heads_bytes("chained", self.drafts.levels.depth - 1, self.config, bytes_per_element)
        return heads + super().draft_bytes(context_tokens, bytes_per_element, weight_bytes, batch)

    def observers(self) -> tuple[PrefillObserver, ...]:
        """See ``Speculation.observers``."""
        return self.method.observers()

    def start(self, decoder: Decoder, sequences: Sequences, state: DecodeState, prompt: Prompt) -> TokenSwiftProposer:
        """See ``Speculation.start``.

        Raises:
            DataUnavailableError: no heads are named or there.
            CheckpointError: the heads belong to another checkpoint.
            UnsupportedCellError: the vocabulary is over the n-gram table's integer.
        """
        params, order = self.params, self.drafts.levels.depth
        heads = load_heads(params.heads, "chained", order - 1, decoder)
        table = None
        if self.drafts.chains:
            lag = sequences.history_tokens if params.ngram_lag is None else params.ngram_lag
            prompts = [request.prompt_ids for request in prompt.requests]
            table = NgramTable(prompts, sequences, order, lag, decoder.config.vocab_size)
        noisy = self.rule == "exact" if params.noisy_ranks is None else params.noisy_ranks
        penalised = 1 if self.rule == "released" else None
        filler = TreeDrafter(self.drafts, table, sequences, noisy=noisy, penalised_rows=penalised)
        own = self.method.make_cache(state.cache.shape) is not None
        draft_state = self.method.start(prompt) if own else self.method.decode_in(state.cache)
        return TokenSwiftProposer(decoder, state, self.method, draft_state, heads, filler)


class TokenSwiftProposer(RenewingProposer):
    """One draft pass, heads, ranks and n-grams; the partial cache follows what is verified."""

    def __init__(
        self, decoder: Decoder, verifier: DecodeState, method: PartialAttention, state: DecodeState, heads: DraftHeads,
        filler: TreeDrafter,
    ):  # fmt: skip
        self.decoder, self.verifier, self.method, self.state = decoder, verifier, method, state
        self.heads, self.filler = heads, filler
        self.tree = filler.drafts.tree
        self.states = (state,)
        self.partial = cast(PartialCache, state.cache) if state.cache is not verifier.cache else None
        self.renew(method, state, verifier)

    def propose(self) -> Tensor:
        """See ``Proposer.propose``."""
        state, sequences = self.state, self.filler.sequences
        state.active.copy_(self.verifier.active)
        self.begin_renewal()
        block = TokenBlock(sequences.tokens[:, None], state.cache.positions[:, None])
        hidden = self.decoder.forward(block, state, self.method)[:, 0]
        state.accept()
        rows = [hidden, *self.heads.states(state.residual[:, 0], hidden)]
        return self.filler.fill(self.decoder.logits(torch.stack(rows, dim=1)))

    def keep(self, verified: Verified) -> None:
        """See ``Proposer.keep``; the drafted token's keys and values go, the verified ones are taken over."""
        if self.partial is not None:
            self.end_renewal(verified)
            width = self.tree.depth + 1
            self.partial.take_over_from(self.verifier.dense, verified.starts, verified.kept, width)
        self.filler.keep(verified)

    def counts(self) -> Mapping[str, Tensor]:
        """See ``Proposer.counts``."""
        return self.filler.counts()


METHOD = TokenSwift
