"""tidal's Cache Correction through the generation loop."""

from __future__ import annotations

import pytest
import torch

from longdecode.engine.correction import Correction
from longdecode.engine.errors import ConfigError
from longdecode.engine.generation import Completion, Generator, Request
from longdecode.methods.conformance_bench import make_bench
from longdecode.methods.conformance_model import CONFIG
from longdecode.methods.registry import get_method

BUDGET = 8


@pytest.fixture
def decode(seed: int):
    """A function of a method's name, budget and parameters: what it makes of two prompts of ragged lengths."""
    bench = make_bench("tidal", "cpu", {}, dtype=torch.float64, seed=seed % 2**31)
    prompts = [bench.prompts[0][:length] for length in (80, 30)]
    fed = [tuple(bench.prompts[1][first : first + 12].tolist()) for first in (0, 12)]

    def run(name: str, budget: int | None, **params: object) -> list[Completion]:
        method = get_method(name).from_budget(budget, CONFIG, **params)
        requests = [Request(tuple(p.tolist()), 3, f) for p, f in zip(prompts, fed, strict=True)]
        return Generator(bench.decoder).run(requests, method)

    return run


def test_parameters_become_a_correction() -> None:
    tidal = get_method("tidal")
    assert tidal.from_budget(BUDGET, CONFIG).correction is None
    assert tidal.from_budget(BUDGET, CONFIG, correction="rewrite").correction == Correction("rewrite", 32)
    corrected = tidal.from_budget(BUDGET, CONFIG, correction="dense_step", correction_period=5)
    assert corrected.correction == Correction("dense_step", 5)
    for wrong in ({"correction": "always"}, {"correction_period": 0}):
        with pytest.raises(ConfigError, match="tidal: correction"):
            tidal.from_budget(BUDGET, CONFIG, **wrong)


def test_dense_steps_every_step_are_full_attention(decode) -> None:
    full, tidal = decode("full", None), decode("tidal", BUDGET, correction="dense_step", correction_period=1)
    assert [(c.output_ids, c.forced_logprobs) for c in tidal] == [(c.output_ids, c.forced_logprobs) for c in full]


@pytest.mark.parametrize("selection", ["kv_head", "query_head"])
def test_a_rewrite_brings_the_cache_back_to_what_full_attention_stores(decode, selection: str) -> None:
    """With a rewrite after every step each one starts from full attention's cache, so that errors do not add up."""
    full = decode("full", None)
    params = {"selection": selection}
    plain = decode("tidal", BUDGET, **params)
    corrected = decode("tidal", BUDGET, correction="rewrite", correction_period=1, **params)
    for row in range(2):
        assert corrected[row].forced_logprobs[:2] == plain[row].forced_logprobs[:2]
        assert corrected[row].forced_logprobs[2:] != plain[row].forced_logprobs[2:]
        assert corrected[row].forced_logprobs != full[row].forced_logprobs
        # 14 steps, and a rewrite of all visible tokens after each but the last.
        visible = [[80, 30][row] + step for step in range(1, 15)]
        steps = plain[row].decode_steps
        extra = corrected[row].read_tokens_sparse - plain[row].read_tokens_sparse
        assert steps == 14 and extra * steps == pytest.approx(sum(visible[:-1]))


def test_a_correction_that_is_never_due_changes_nothing(decode) -> None:
    plain = decode("tidal", BUDGET)
    for mode in ("rewrite", "dense_step"):
        late = decode("tidal", BUDGET, correction=mode)
        assert [c.forced_logprobs for c in late] == [c.forced_logprobs for c in plain]
        assert [c.read_tokens_mean for c in late] == [c.read_tokens_mean for c in plain]
