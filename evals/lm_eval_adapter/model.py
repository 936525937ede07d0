"""The engine as lm-eval's model ``longdecode``: contexts read densely, whatever follows decoded through a method."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, simple_parse_args_string
from tqdm import tqdm

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError, ContextLimitError
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance
from longdecode.evals.fingerprint import code_hash
from longdecode.evals.lm_eval_adapter.arguments import Generation, batches, cut_before, read_generation
from longdecode.evals.tokenizing import eos_ids, load_tokenizer
from longdecode.methods.conformance import check_method
from longdecode.methods.registry import get_method

Pair = tuple[tuple[str, str], list[int], list[int]]


@register_model("longdecode")
class LongDecodeLM(TemplateLM):
    """A checkpoint on our engine, decoding through one method.

    A context is prefilled densely up to its last ``decoded_context`` tokens; those and everything after them, scored
    continuation or generated text, go token by token through the method. With the default of one token even a choice of
    a single token, such as the letter of an answer, is the method's. With ``method=full`` the numbers are those of any
    correct implementation of the model.

    Args:
        pretrained: a local folder or a hub id.
        revision: branch, tag or commit of a hub id.
        method: a registered method.
        budget: tokens a query may read per KV head; none for methods that read everything.
        device, dtype: as in a configuration: ``auto``, or names.
        batch_size: requests decoded at once; ragged batches need no padding.
        max_length: tokens that the model reads, of context and continuation together; the model's limit by default.
            Longer contexts lose their beginning, as in lm-eval's own models.
        max_gen_toks: tokens to generate where a task names no number.
        decoded_context: last tokens of a context that the method reads too.
        seed: of sampled generation; each request has noise of its own.
        gate: run the method's conformance checks first; a method that fails them is not scored.
        max_batch_size: what lm-eval's automatic batch sizes would use; not used.
        parameters: the method's own knobs, as its card lists them.

    Raises:
        ConfigError: a value out of range, or a knob that the method does not have.
        CheckpointError: the checkpoint cannot be loaded.
        GateError: the method fails its conformance checks.
    """

    def __init__(
        self,
        pretrained: str,
        revision: str | None = None,
        method: str = "full",
        budget: int | None = None,
        device: str | None = None,
        dtype: str = "auto",
        batch_size: int | str = 1,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        decoded_context: int = 1,
        seed: int = 0,
        gate: bool = True,
        max_batch_size: int | None = None,
        **parameters: Any,
    ):
        super().__init__()
        self.batch_size = _whole("batch_size", batch_size, 1)
        self.max_gen_toks = _whole("max_gen_toks", max_gen_toks, 1)
        self.decoded_context = _whole("decoded_context", decoded_context, 0)
        self.seed = _whole("seed", seed, 0)
        budget = None if budget is None else _whole("budget", budget, 1)
        self.pretrained = pretrained
        folder = resolve_checkpoint(pretrained, revision)
        self._device = resolve_device(device or "auto")
        self.decoder = load_decoder(folder, device=self._device, dtype=resolve_dtype(dtype, self._device))
        limit = self.decoder.config.max_positions
        self.max_length = limit if max_length is None else _whole("max_length", max_length, 2)
        if self.max_length > limit:
            raise ConfigError(f"max_length is {self.max_length}, over the model's limit of {limit} tokens")
        self.method = get_method(method).from_budget(budget, self.decoder.config, **parameters)
        if gate:
            check_method(method, self._device, parameters)
        self.text = load_tokenizer(folder)
        self.tokenizer: Any = self.text.library
        self._eos_ids = eos_ids(folder, self.text)
        self._info = {
            "pretrained": pretrained, "revision": revision, "method": method, "budget": budget, "params": parameters,
            "decoded_context": self.decoded_context, "model_hash": provenance.checkpoint_hash(folder),
            "code_hash": code_hash([__name__], [method]), "device": str(self._device), "dtype": str(self.decoder.dtype),
        }  # fmt: skip
        self._steps = 0
        self._read_tokens = 0.0

    @classmethod
    def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> LongDecodeLM:
        """From ``key=value,...`` and what lm-eval adds; see ``create_from_arg_obj``."""
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> LongDecodeLM:
        """From model_args and what lm-eval adds (device, batch size); model_args win."""
        added = {name: value for name, value in (additional_config or {}).items() if value is not None}
        return cls(**added | arg_dict)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        own = self.text.special_id("eos_token")
        if own is None and not self._eos_ids:
            raise ConfigError(f"{self.pretrained}: neither the tokenizer nor the configuration names an end of text")
        return min(self._eos_ids) if own is None else own

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text without a context."""
        own = self.text.special_id("bos_token")
        return self.eot_token_id if own is None else own

    @property
    def tokenizer_name(self) -> str:
        """Name the tokenizer, so that request caches stay apart."""
        return self.pretrained.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """For lm-eval's results: what ran, and how many tokens a KV head read in a step on average."""
        read = self._read_tokens / self._steps if self._steps else None
        return self._info | {"read_tokens_mean": read, "decode_steps": self._steps}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids, with the tokenizer's first tokens unless they are there already or not wanted."""
        ids, first = self.text.encode(string), self.text.first_ids
        begun = add_special_tokens is False or ids[: len(first)] == first
        return list(ids if begun else first + ids)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation in the checkpoint's chat template; see ``TextTokenizer.conversation``."""
        return self.text.conversation(chat_history, continues=not add_generation_prompt)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Texts up to the first stop text, the end of text, or the number of tokens asked for."""
        asked = [read_generation(instance.args[1], self.max_gen_toks) for instance in requests]
        contexts = [self._fitting(instance.args[0], g) for instance, g in zip(requests, asked, strict=True)]
        texts: list[str] = [""] * len(requests)
        with tqdm(total=len(requests), desc="generate_until", disable=disable_tqdm) as bar:
            for batch in batches([len(context) for context in contexts], [g.sampling for g in asked], self.batch_size):
                made = [self._continued(contexts[i], asked[i], i) for i in batch]
                for i, completion in zip(batch, self._run(made, asked[batch[0]].sampling), strict=True):
                    texts[i] = cut_before(self.text.decode(completion.output_ids), asked[i].until)
                    self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                bar.update(len(batch))
        return texts

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihoods of whole texts, each token decoded through the method: as many steps as there are tokens."""
        pairs: list[Pair] = []
        owners: list[int] = []
        for index, instance in enumerate(requests):
            ids = self.tok_encode(instance.args[0], add_special_tokens=False)
            windows = get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)
            for context, continuation in map(make_disjoint_window, windows):
                pairs.append((("", ""), context, continuation))
                owners.append(index)
        sums = [0.0] * len(requests)
        for index, (logprob, _) in zip(owners, self._loglikelihood_tokens(pairs, disable_tqdm), strict=True):
            sums[index] += logprob
        for instance, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", instance.args, total)
        return sums

    def _loglikelihood_tokens(
        self, requests: list[Pair], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Log-probability of each continuation, and whether greedy decoding would have written it."""
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        lengths = [len(context) + len(continuation) for _, context, continuation in requests]
        with tqdm(total=len(requests), desc="loglikelihood", disable=disable_tqdm) as bar:
            for batch in batches(lengths, [None] * len(requests), self.batch_size):
                made = [self._forced(*requests[i][1:]) for i in batch]
                for i, completion in zip(batch, self._run(made, Sampling()), strict=True):
                    (text, _, continuation) = requests[i]
                    scored = -len(continuation)
                    answers[i] = (
                        sum(completion.forced_logprobs[scored:]), all(completion.forced_greedy[scored:])
                    ) if continuation else (0.0, True)  # fmt: skip
                    if text != ("", ""):
                        self.cache_hook.add_partial("loglikelihood", text, answers[i])
                bar.update(len(batch))
        return answers

    def _fitting(self, context: str, asked: Generation) -> list[int]:
        """A context's tokens, its beginning dropped where it and the generation do not fit."""
        room = self.max_length - asked.max_new_tokens
        if room < 1:
            raise ContextLimitError(f"{asked.max_new_tokens} tokens to generate in a context of {self.max_length}")
        return (self.tok_encode(context) or [self.prefix_token_id])[-room:]

    def _continued(self, context: Sequence[int], asked: Generation, index: int) -> Request:
        prompt, forced = self._split(context)
        stops = {token for text in asked.until if (token := self.text.sole_token(text)) is not None}
        noise = hashlib.sha256(f"{self.seed}/{index}".encode()).digest()
        return Request(
            prompt, asked.max_new_tokens, forced, self._eos_ids | stops,
            int.from_bytes(noise[:4], "big"),
        )  # fmt: skip

    def _forced(self, context: Sequence[int], continuation: Sequence[int]) -> Request:
        room = self.max_length + 1 - len(continuation)  # the last token of all is scored, not read
        if room < 1:
            raise ContextLimitError(f"a continuation of {len(continuation)} tokens in a context of {self.max_length}")
        prompt, forced = self._split(list(context)[-room:])
        return Request(prompt, 0, forced + tuple(continuation))

    def _split(self, context: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split a context into what is prefilled, one token at least, and what the method decodes."""
        cut = max(1, len(context) - self.decoded_context)
        return tuple(context[:cut]), tuple(context[cut:])

    @torch.no_grad()
    def _run(self, requests: Sequence[Request], sampling: Sampling) -> list[Completion]:
        completions = Generator(self.decoder, sampling).run(requests, self.method)
        for completion in completions:
            self._steps += completion.decode_steps
            self._read_tokens += completion.read_tokens_mean * completion.decode_steps
        return completions


def _whole(name: str, value: Any, least: int) -> int:
    """A whole number; lm-eval's command line hands numbers over as text at times.

    Raises:
        ConfigError: the value is none, or too small.
    """
    is_text = isinstance(value, str) and value.isdecimal()
    if isinstance(value, bool) or not (isinstance(value, int) or is_text) or int(value) < least:
        raise ConfigError(f"model_args: {name} is {value!r}, a whole number of at least {least} is needed")
    return int(value)
