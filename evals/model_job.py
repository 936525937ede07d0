"""A model on a leased device: what quality, generation and retrospection jobs share."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import read_config
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import resolve_dtype, sm_clock_mhz
from longdecode.engine.tokenizer import TextTokenizer, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance
from longdecode.evals.records import Provenance
from longdecode.evals.run_config import RunConfig


class ModelJob:
    """A model of a run; weights and tokenizer are loaded when they are first needed.

    Args:
        config: the run.
        model: a key of ``config.models``.
        device: the device leased for this job.

    Raises:
        CheckpointError: the checkpoint cannot be read.
    """

    def __init__(self, config: RunConfig, model: str, device: torch.device):
        self.config, self.model, self.device = config, model, device
        self.dtype = resolve_dtype(config.dtype, device)
        self.folder = config.models[model].checkpoint()
        self.model_config = read_config(self.folder)

    @cached_property
    def decoder(self) -> Decoder:
        """The model on the job's device."""
        return load_decoder(self.folder, device=self.device, dtype=self.dtype)

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The model's tokenizer."""
        return load_tokenizer(self.folder)

    @cached_property
    def model_hash(self) -> str:
        """Hash of the checkpoint."""
        return provenance.checkpoint_hash(self.folder)

    @cached_property
    def clock_mhz(self) -> int | None:
        """The GPU's clock when the job began; asked for once."""
        return sm_clock_mhz(self.device)

    def build(self, variant: str, budget_tokens: int | None, context: int = 0) -> AttentionMethod:
        """Build a variant of the run at a budget, for prompts of so many tokens where they are told.

        Raises:
            UnsupportedCellError: the method cannot honour the budget on this model, or at this context.
        """
        method = self.config.methods[variant].build(budget_tokens, self.model_config, self.model)
        if context:
            method.refuse_context(context)
        return method

    def provenance(self, settings: Mapping[str, Any], code: str, data: str) -> Provenance:
        """Return the provenance of records that depend on these settings, code and data, on the model and device."""
        return provenance.collect(
            settings=settings, code=code, model=self.model_hash, data=data, device=self.device, dtype=self.dtype,
            clock_mhz=self.clock_mhz,
        )  # fmt: skip
