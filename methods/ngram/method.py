"""Prompt lookup: what followed earlier occurrences of the text's end is drafted, without any model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field
from torch import Tensor

from longdecode.engine.decode_state import DecodeState
from longdecode.engine.decoder import Decoder
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.request import Prompt
from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import DraftTree, Proposer, Speculation, Verified
from longdecode.methods.ngram_table import SuffixTable
from longdecode.methods.speculative import UnbudgetedSpeculation


@dataclass(frozen=True, slots=True)
class NgramParams:
    """Knobs of prompt lookup."""

    draft_tokens: Annotated[int, Field(ge=1, le=64)] = 4
    match_tokens: Annotated[int, Field(ge=1, le=32)] = 3
    places: Annotated[int, Field(ge=1, le=64)] = 1


class Ngram(UnbudgetedSpeculation):
    """The ``places`` of the text that agree with the longest end of it, up to ``match_tokens``, each propose a chain.

    Source: Saxena 2023, prompt lookup decoding; deviations in card.yaml.
    """

    name: ClassVar[str] = "ngram"
    Params: ClassVar[type] = NgramParams
    params: NgramParams

    def __init__(self, params: NgramParams, config: ModelConfig):
        super().__init__(params, config)
        self.draft = NgramDraft(params)


class NgramDraft(Speculation):
    """Chains from the newest token on."""

    def __init__(self, params: NgramParams):
        self.params = params
        self.tree = DraftTree(()).with_chains(0, params.places, params.draft_tokens)

    def start(self, decoder: Decoder, sequences: Sequences, state: DecodeState, prompt: Prompt) -> NgramProposer:
        """See ``Speculation.start``."""
        table = SuffixTable([request.prompt_ids for request in prompt.requests], sequences)
        return NgramProposer(self.params, self.tree, table)


class NgramProposer(Proposer):
    """Look the text's end up."""

    def __init__(self, params: NgramParams, tree: DraftTree, table: SuffixTable):
        self.params, self.tree, self.table = params, tree, table

    def propose(self) -> Tensor:
        """See ``Proposer.propose``."""
        params = self.params
        return self.table.look_up(params.match_tokens, params.draft_tokens, params.places).flatten(1)

    def keep(self, verified: Verified) -> None:
        """See ``Proposer.keep``."""
        self.table.add(verified.chosen, verified.kept)


METHOD = Ngram
