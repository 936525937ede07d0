"""The engine as lm-eval's model ``longdecode``: contexts read densely, whatever follows decoded through a method."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import islice
from typing import Annotated, Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import normalize_gen_kwargs, postprocess_generated_text
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from pydantic import Field
from tqdm import tqdm

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.device import resolve_device, resolve_dtype
from longdecode.engine.errors import ConfigError, ContextLimitError, refuse_unknown
from longdecode.engine.generation import Completion, Generator, Request, Sampling
from longdecode.engine.tokenizer import eos_ids, load_tokenizer
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance
from longdecode.evals.config_values import read
from longdecode.evals.fingerprint import code_hash
from longdecode.methods.conformance import check_method
from longdecode.methods.registry import get_method

EncodedRequest = tuple[tuple[str, str], list[int], list[int]]
_KINDS: dict[str, tuple[type, ...]] = {
    "until": (str, list), "do_sample": (bool,), **dict.fromkeys(("temperature", "top_p", "min_p"), (int, float)),
    **dict.fromkeys(("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"), (int,)),
}  # fmt: skip
"""Generation arguments that the engine has, with the types of their values."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Set how one request is continued: sampling, most tokens, texts that end it."""

    sampling: Sampling
    max_new_tokens: int
    until: tuple[str, ...]


def read_generation(values: Mapping[str, Any], default_tokens: int) -> Generation:
    """Return the generation arguments of a request.

    Args:
        values: as a task gives them, under any of lm-eval's names for the number of tokens; null is absent.
        default_tokens: tokens to generate where none are asked for.

    Raises:
        ConfigError: an argument that the engine does not implement, or a value out of range or of another kind.
    """
    asked = {name: value for name, value in values.items() if value is not None}
    refuse_unknown("generation_kwargs", "argument", asked, _KINDS)
    for name, value in asked.items():
        kinds = _KINDS[name]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds)
            raise ConfigError(f"generation_kwargs: {name} is {value!r}, expected {wanted}")
    given = dict(normalize_gen_kwargs(asked, default_tokens))
    if (tokens := int(given["max_gen_toks"])) < 1:
        raise ConfigError(f"generation_kwargs: max_gen_toks is {tokens}, expected 1 or more")
    temperature = float(given.get("temperature", 1.0)) if given["do_sample"] else 0.0
    sampling = Sampling(temperature, float(given.get("top_p", 1.0)), float(given.get("min_p", 0.0)))
    return Generation(sampling, tokens, tuple(text for text in given["until"] if text))


def batches(lengths: Sequence[int], kinds: Sequence[Any], size: int) -> Iterator[list[int]]:
    """Yield indices of requests, longest first, at most ``size`` at once and never two kinds in one batch."""
    for kind in dict.fromkeys(kinds):
        members = sorted((i for i, other in enumerate(kinds) if other == kind), key=lambda i: -lengths[i])
        yield from (members[start : start + size] for start in range(0, len(members), size))


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the model; numbers may come as text, as lm-eval's command line hands them over at times.

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
    """

    pretrained: str
    revision: str | None = None
    method: str = "full"
    budget: Annotated[int, Field(ge=1)] | None = None
    device: str | None = None
    dtype: str = "auto"
    batch_size: Annotated[int, Field(ge=1)] = 1
    max_length: Annotated[int, Field(ge=2)] | None = None
    max_gen_toks: Annotated[int, Field(ge=1)] = 256
    decoded_context: Annotated[int, Field(ge=0)] = 1
    seed: Annotated[int, Field(ge=0)] = 0
    gate: bool = True
    max_batch_size: Any = None


@register_model("longdecode")
class LongDecodeLM(TemplateLM):
    """A checkpoint on our engine, decoding through one method.

    A context is prefilled densely up to its last ``decoded_context`` tokens; those and everything after them, scored
    continuation or generated text, go token by token through the method. With the default of one token even a choice of
    a single token, such as the letter of an answer, is the method's. With ``method=full`` the numbers are those of any
    correct implementation of the model.

    Args:
        pretrained: a local folder or a hub id.
        given: other fields of ``Options``, and the method's own knobs, as its card lists them.

    Raises:
        ConfigError: a value out of range, or an option that neither this class nor the method has.
        CheckpointError: the checkpoint cannot be loaded.
        GateError: the method fails its conformance checks.
    """

    def __init__(self, pretrained: str | None = None, **given: Any):
        super().__init__()
        own = {item.name: given.pop(item.name) for item in fields(Options) if item.name in given}
        self.options = options = read(Options, {"pretrained": pretrained} | own, "model_args")
        method = get_method(options.method)
        refuse_unknown("model_args", "option", given, [one.name for one in (*fields(Options), *fields(method.Params))])
        self.batch_size = options.batch_size
        folder = resolve_checkpoint(options.pretrained, options.revision)
        self._device = resolve_device(options.device or "auto")
        self.decoder = load_decoder(folder, device=self._device, dtype=resolve_dtype(options.dtype, self._device))
        limit = self.decoder.config.max_positions
        self.max_length = options.max_length or limit
        if self.max_length > limit:
            raise ConfigError(f"max_length is {self.max_length}, over the model's limit of {limit} tokens")
        self.method = method.from_budget(options.budget, self.decoder.config, **given)
        if options.gate:
            check_method(options.method, self._device, given)
        self.text = load_tokenizer(folder)
        self.tokenizer: Any = self.text.library
        self._eos_ids = eos_ids(folder, self.text)
        self._info = asdict(options) | {
            "params": given, "model_hash": provenance.checkpoint_hash(folder), "device": str(self._device),
            "code_hash": code_hash([__name__], [options.method]), "dtype": str(self.decoder.dtype),
        }  # fmt: skip
        self._steps, self._read_tokens = 0, 0.0

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: Any = None) -> LongDecodeLM:
        """From model_args and what lm-eval adds (device, batch size); model_args win."""
        return cls(**{name: value for name, value in (additional_config or {}).items() if value is not None} | arg_dict)

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        own = self.text.special_id("eos_token")
        if own is None and not self._eos_ids:
            raise ConfigError(f"{self.options.pretrained}: neither tokenizer nor configuration names an end of text")
        return min(self._eos_ids) if own is None else own

    @property
    def prefix_token_id(self) -> int:
        """The token that stands before a text without a context."""
        own = self.text.special_id("bos_token")
        return self.eot_token_id if own is None else own

    @property
    def tokenizer_name(self) -> str:
        """Name the tokenizer, so that request caches stay apart."""
        return self.options.pretrained.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """For lm-eval's results: what ran, and how many tokens a KV head read in a step on average."""
        read = self._read_tokens / self._steps if self._steps else None
        return self._info | {"read_tokens_mean": read, "decode_steps": self._steps}

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Token ids, with the tokenizer's first tokens unless they are there already or not wanted."""
        ids, first = self.text.encode(string), self.text.first_ids
        return list(ids if add_special_tokens is False or ids[: len(first)] == first else first + ids)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """A conversation in the checkpoint's chat template; see ``TextTokenizer.conversation``."""
        return self.text.conversation(chat_history, continues=not add_generation_prompt)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return texts up to the first stop text, the end of text, or the number of tokens asked for."""
        asked = [read_generation(instance.args[1], self.options.max_gen_toks) for instance in requests]
        contexts = [instance.args[0] for instance in requests]
        made = [self._continued(context, own, i) for i, (context, own) in enumerate(zip(contexts, asked, strict=True))]
        texts: list[str] = [""] * len(requests)
        for i, completion in self._run(made, [g.sampling for g in asked], "generate_until", disable_tqdm):
            texts[i] = postprocess_generated_text(self.text.decode(completion.output_ids), list(asked[i].until), None)
            self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
        return texts

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return log-likelihoods of whole texts, each token decoded through the method: a step a token."""
        texts = [self.tok_encode(instance.args[0], add_special_tokens=False) for instance in requests]
        windows = [[*get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, 1)] for ids in texts]
        pairs: list[EncodedRequest] = [(("", ""), *make_disjoint_window(window)) for own in windows for window in own]
        scored = iter(self._loglikelihood_tokens(pairs, disable_tqdm))
        sums = [sum((logprob for logprob, _ in islice(scored, len(own))), 0.0) for own in windows]
        for instance, total in zip(requests, sums, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", instance.args, total)
        return sums

    def _loglikelihood_tokens(
        self, requests: list[EncodedRequest], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        """Return the log-probability of each continuation, and whether greedy decoding would have written it."""
        answers: list[tuple[float, bool]] = [(0.0, True)] * len(requests)
        made = [self._forced(context, continuation) for _, context, continuation in requests]
        for i, completion in self._run(made, [Sampling()] * len(requests), "loglikelihood", disable_tqdm):
            text, _, continuation = requests[i]
            if scored := len(continuation):
                answers[i] = (sum(completion.forced_logprobs[-scored:]), all(completion.forced_greedy[-scored:]))
            if text != ("", ""):
                self.cache_hook.add_partial("loglikelihood", text, answers[i])
        return answers

    def _continued(self, context: str | Sequence[int], asked: Generation, index: int) -> Request:
        """Return the request of a generation; the context's beginning is dropped where both do not fit."""
        tokens = asked.max_new_tokens
        own = (self.tok_encode(context) if isinstance(context, str) else context) or [self.prefix_token_id]
        prompt, forced = self._split(own, self.max_length - tokens, f"{tokens} tokens to generate")
        stops = {token for text in asked.until if (token := self.text.sole_token(text)) is not None}
        noise = int.from_bytes(hashlib.sha256(f"{self.options.seed}/{index}".encode()).digest()[:4], "big")
        return Request(prompt, tokens, forced, self._eos_ids | stops, noise)

    def _forced(self, context: Sequence[int], continuation: Sequence[int]) -> Request:
        room = self.max_length + 1 - len(continuation)  # the last token of all is scored, not read
        prompt, forced = self._split(context, room, f"a continuation of {len(continuation)} tokens")
        return Request(prompt, 0, forced + tuple(continuation))

    def _split(self, context: Sequence[int], room: int, what: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Split the end of a context, before ``what``, into what is prefilled, one token at least, and decoded."""
        if room < 1:
            raise ContextLimitError(f"{what} in a context of {self.max_length}")
        kept = tuple(context[-room:])
        cut = max(1, len(kept) - self.options.decoded_context)
        return kept[:cut], kept[cut:]

    @torch.no_grad()
    def _run(
        self, requests: Sequence[Request], samplings: Sequence[Sampling], name: str, disable_tqdm: bool
    ) -> Iterator[tuple[int, Completion]]:
        """Yield the completions with the places of their requests, batch by batch."""
        lengths = [len(request.prompt_ids) + len(request.forced_ids) for request in requests]
        with tqdm(total=len(requests), desc=name, disable=disable_tqdm) as bar:
            for batch in batches(lengths, samplings, self.batch_size):
                generator = Generator(self.decoder, samplings[batch[0]])
                for i, completion in zip(batch, generator.run([requests[i] for i in batch], self.method), strict=True):
                    self._steps += completion.decode_steps
                    self._read_tokens += completion.read_tokens_mean * completion.decode_steps
                    yield i, completion
                bar.update(len(batch))
