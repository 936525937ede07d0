"""Generation over several GPUs: this process decides what is run, ranks that share the model run it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.device import resolve_dtype
from longdecode.engine.generation import Generator
from longdecode.engine.model_config import ModelConfig
from longdecode.engine.ranks import Rank, Ranks
from longdecode.engine.request import Completion, Prompt, Request
from longdecode.engine.sampling import Sampling
from longdecode.engine.tensor_parallel import load_share, refuse_method


class ShareGenerator:
    """A rank's part of a ``SplitGenerator``: it holds a share of the model, and of the prompt read last."""

    def __init__(self, folder: Path, dtype: str, rank: Rank, device: torch.device):
        self.decoder = load_share(folder, rank, device, resolve_dtype(dtype, device))
        self.prompt: Prompt | None = None

    def __call__(
        self, name: str, sampling: Sampling, requests: Sequence[Request], methods: Sequence[AttentionMethod],
        keeps_prompt: bool, options: Mapping[str, Any],
    ) -> Iterator[Any]:  # fmt: skip
        """Run a method of ``Generator``, through attention methods of the whole model, on the rank's heads."""
        if not keeps_prompt:
            self.prompt = None
        generator, own = Generator(self.decoder, sampling), list[Any](map(self.decoder.share, methods))
        if name == "prefill":
            self.prompt = generator.prefill(requests, own)
        elif name == "stream":
            yield from generator.stream(requests, *own, **options)
        elif self.prompt is None or name == "run":  # new processes read a prompt again
            yield generator.run(requests, *own)
        else:
            yield generator.decode(replace(self.prompt, requests=tuple(requests)), *own, **options)


class SplitGenerator(Generator):
    """A generator whose model is split over ranks; results are the model's, times those of rank 0.

    Args:
        ranks: make ``ShareGenerator``.
        config: the whole model's; methods are built for it.

    Raises:
        ConfigError: the model cannot be split over so many.
    """

    def __init__(self, ranks: Ranks, config: ModelConfig, sampling: Sampling | None = None):
        Rank(0, len(ranks.devices)).share_of(config)
        self.ranks, self.config, self.sampling = ranks, config, sampling or Sampling()
        self._has_prompt = False

    def run(self, requests: Sequence[Request], method: AttentionMethod) -> list[Completion]:
        """See ``Generator.run``."""
        (ranks,) = self._answers("run", requests, [method])
        return [self._joined(method, row) for row in zip(*ranks, strict=True)]

    def prefill(self, requests: Sequence[Request], methods: Sequence[AttentionMethod] = ()) -> Prompt:
        """See ``Generator.prefill``; the ranks hold what was read, until this generator's next prefill."""
        self._has_prompt = False
        for _ in self._answers("prefill", requests, methods):
            pass
        self._has_prompt = True
        return Prompt(tuple(requests), cast(Any, None), torch.empty(0), 0.0)

    def decode(self, prompt: Prompt, method: AttentionMethod, *, keep_prompt: bool = True) -> list[Completion]:
        """See ``Generator.decode``; of the last prompt alone."""
        (ranks,) = self._answers("decode", prompt.requests, [method], keep_prompt=keep_prompt)
        return [self._joined(method, row) for row in zip(*ranks, strict=True)]

    def stream(
        self, requests: Sequence[Request], method: AttentionMethod, rows: int, wanted: Iterable[int] | None = None
    ) -> Iterator[tuple[int, Completion]]:
        """See ``engine.refill.stream``."""
        for ranks in self._answers("stream", requests, [method], rows=rows, wanted=wanted and [*wanted]):
            yield ranks[0][0], self._joined(method, [one for _, one in ranks])

    def _answers(
        self, name: str, requests: Sequence[Request], methods: Sequence[AttentionMethod], **options: Any
    ) -> Iterator[list[Any]]:
        for method in methods:
            refuse_method(method.name)
        return self.ranks.answers(name, self.sampling, [*requests], [*methods], self._has_prompt, options)

    def _joined(self, method: AttentionMethod, ranks: Sequence[Completion]) -> Completion:
        """Return a request's result: tokens are the same on all ranks, reads the mean of their heads.

        Ranks may have different numbers of heads that the budget governs.
        """
        count = self.config.num_kv_heads
        mine = [{*range(count)[Rank(index, len(ranks)).part(count)]} for index in range(len(ranks))]
        governed = [sum(len(heads - dense) for dense in method.dense_heads()) for heads in mine]
        sparse = fmean([one.read_tokens_sparse for one in ranks], governed if any(governed) else None)
        read = fmean(one.read_tokens_mean for one in ranks)
        return replace(ranks[0], read_tokens_mean=read, read_tokens_sparse=sparse)
