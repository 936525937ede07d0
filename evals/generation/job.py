"""One job of long generation: every label, sampler and prompt of a run, each text resumable, each a record."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.attention import AttentionMethod
from longdecode.engine.config_reader import read_config, resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import resolve_device, resolve_dtype, sm_clock_mhz
from longdecode.engine.errors import ConfigError, ContextLimitError
from longdecode.engine.generation import Generator, Request, Sampling
from longdecode.engine.gpu_lease import lease_gpu
from longdecode.engine.weights import load_decoder
from longdecode.evals import provenance
from longdecode.evals.budgets import FULL_BUDGET, Budget
from longdecode.evals.failures import free_memory, status_of
from longdecode.evals.fingerprint import code_hash, file_hashes, hash_texts
from longdecode.evals.gate import Gate
from longdecode.evals.generation.law import law_measures, steps_of
from longdecode.evals.generation.measures import diversity, loss_by_full
from longdecode.evals.generation.prompts import prompts
from longdecode.evals.generation.run import LongRun, Saved, first_difference
from longdecode.evals.records import Cell, Provenance, Record
from longdecode.evals.run_config import RunConfig
from longdecode.evals.store import Store
from longdecode.evals.tokenizing import load_tokenizer
from longdecode.methods.registry import get_method

REFERENCE = "full"
SUITE = "generation"


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes: a label of the configuration, or one of its labels as the drafter of Full."""

    label: str
    method: str
    params: dict[str, Any]
    gated: str
    takes_budget: bool


@dataclass(frozen=True, slots=True)
class Text:
    """One text of the job: who writes it, how it is drawn, after which prompt."""

    writer: Writer
    sampler: str
    budget: Budget
    prompt_tokens: int
    number: int

    @property
    def key(self) -> tuple[str, str, str, int, int]:
        """Tell this text's record from the others."""
        return self.writer.label, self.sampler, self.budget.text, self.prompt_tokens, self.number

    @property
    def cell(self) -> Cell:
        """The cell whose sample the text is."""
        return Cell(self.writer.label, self.sampler, self.prompt_tokens, self.budget)


def write_texts(config: RunConfig, name: str, output: Path, device: str | None = None) -> None:
    """Write every text of a run and its records; a killed run goes on at the last mark of the text it was at.

    Raises:
        ConfigError: the configuration has no such run.
        CheckpointError: the model cannot be loaded.
        LockHeldError: another process writes the same run.
    """
    if config.generation is None or name not in config.generation.runs:
        raise ConfigError(f"{config.source}: no generation of the name {name!r} is configured (key 'generation')")
    with lease_gpu(resolve_device(device or config.device), alone=True) as target:
        job = GenerationJob(config, name, target, output)
        with Store(
            output, Record, job.cells, lambda cell: job.origin.fingerprint, samples=lambda cell: job.spec.books
        ) as store:
            job.run(store)
            store.finish()


class GenerationJob:
    """The objects that all texts of a run share."""

    def __init__(self, config: RunConfig, name: str, device: torch.device, output: Path):
        assert config.generation is not None
        self.config, self.name, self.device, self.output = config, name, device, output
        self.spec = config.generation.runs[name]
        self.samplers = config.generation.samplers
        place = config.models[self.spec.model]
        self.folder = resolve_checkpoint(place.path, place.revision)
        self.dtype = resolve_dtype(config.dtype, device)
        self.model_config = read_config(self.folder)
        self.model_hash = provenance.checkpoint_hash(self.folder)
        self.tokenizer = load_tokenizer(self.folder)
        self.gate = Gate(config, device, output.parent.parent / "gate")
        drafters = {writer.params["drafter"] for writer in self.writers if "drafter" in writer.params}
        methods = {writer.method for writer in self.writers} | drafters
        self.code = code_hash(["longdecode.evals.generation.job"], methods)

    @cached_property
    def decoder(self) -> Decoder:
        """The model on the job's device."""
        return load_decoder(self.folder, device=self.device, dtype=self.dtype)

    @cached_property
    def writers(self) -> list[Writer]:
        """Full, the labels, and every drafter with every size of draft."""
        spec, model, found = self.spec, self.spec.model, list[Writer]()
        for label in dict.fromkeys((REFERENCE, *spec.labels)):
            entry = self.config.methods[label]
            found.append(Writer(label, entry.method, entry.params_of(model), label, entry.takes_budget))
        for label in spec.drafters:
            entry = self.config.methods[label]
            for drafts in spec.draft_tokens:
                for branches in spec.branches:
                    params = {"drafter": entry.method, "draft_tokens": drafts, "drafter_params": entry.params_of(model)}
                    shape = f"{drafts}x{branches}" if branches > 1 else f"{drafts}"
                    params |= {"branches": branches} if branches > 1 else {}
                    found.append(Writer(f"{label}+{shape}", "speculate", params, label, True))
        return found

    @property
    def _law_label(self) -> str | None:
        """Return the first label of the run that is TokenSwift by its exact rule; more would give the same law."""
        exact = (w.label for w in self.writers if w.method == "tokenswift" and w.params.get("mode", "exact") == "exact")
        return next(exact, None)

    @cached_property
    def origin(self) -> Provenance:
        """Provenance of every text, with the fingerprint of all that they depend on."""
        files = [path for label in self.spec.named for path in self.config.methods[label].files_of(self.spec.model)]
        settings = {
            "run": [self.name, repr(self.spec), repr(self.samplers)],
            "writers": [asdict(writer) for writer in self.writers],
            "seed": self.config.seed,
        }
        return provenance.collect(
            settings=settings, code=self.code, model=self.model_hash,
            data=hash_texts([self.spec.source, *file_hashes(files)]), device=self.device, dtype=self.dtype,
            clock_mhz=sm_clock_mhz(self.device),
        )  # fmt: skip

    def texts(self) -> Iterator[Text]:
        """Yield every text; Full's before those that are compared with it."""
        for prompt_tokens in self.spec.prompts:
            for number in range(self.spec.books):
                for sampler in self.spec.samplers:
                    for writer in self.writers:
                        for budget in self._budgets(writer):
                            yield Text(writer, sampler, budget, prompt_tokens, number)

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell, in the order of the texts."""
        return list(dict.fromkeys(text.cell for text in self.texts()))

    def run(self, store: Store[Cell, Record]) -> None:
        """Write the texts that the store lacks."""
        for text in self.texts():
            if not store.missing(text.cell, [text.number]):
                continue
            reference = Cell(REFERENCE, text.sampler, text.prompt_tokens, FULL_BUDGET)
            known = store.of(reference) if reference in store.cells else []
            full = next((r for r in known if r.index == text.number and text.writer.label != REFERENCE), None)
            record: Record | None = None
            failure: Exception | None = None
            try:
                record = self._write(text, full)
            except Exception as error:  # status_of tells which are the text's own
                failure = error
            if failure is not None:
                status = status_of(failure)
                if status is None:
                    raise failure
                record = self._record(text, {}, sample_index=-1, status=status, reason=str(failure))
                free_memory(self.device, failure)
            assert record is not None
            store.add(record)
            print(json.dumps({"text": text.key, "status": record.status, "tokens_per_step": record.score}))

    def _write(self, text: Text, full: Record | None) -> Record:
        spec, total = self.spec, text.prompt_tokens + self.spec.tokens
        if total > self.model_config.max_positions:
            raise ContextLimitError(
                f"{text.prompt_tokens} prompt + {spec.tokens} written tokens are {total}; the model's context is "
                f"{self.model_config.max_positions}"
            )
        if refusal := self.gate.refusal(text.writer.gated, spec.model):
            raise refusal
        method = self._method(text)
        found = prompts(
            spec.source, self.config.data.get("pg19"), text.number + 1, text.prompt_tokens, self.config.seed,
            self.tokenizer,
        )  # fmt: skip
        book, prompt = list(found.items())[text.number]
        generator = Generator(self.decoder, Sampling(**asdict(self.samplers[text.sampler])))
        request = Request(prompt, spec.tokens, seed=self._seed(text))
        file = self.output.with_name("-".join([self.name, *map(str, text.key)]) + ".state")
        saved: Saved | None = None
        run = LongRun(generator, method, file, hash_texts(map(str, self.origin.fingerprint or ())))
        for saved in run.write(request, spec.mark, spec.keep_every):
            print(json.dumps({"text": text.key, **asdict(saved.marks[-1])}), flush=True)
        ids, measures = run.finished(saved)
        difference = None if full is None or full.output_ids is None else first_difference(ids, full.output_ids)
        same = difference is None and full is not None
        written = self.tokenizer.decode(ids)
        depth = method.draft.tree.depth if method.draft else 0
        measures |= {"depth": depth, "rows": method.draft.tree.rows if method.draft else 1}
        measures |= diversity(ids, written)
        measures["loss_full"] = (
            full.measures["loss_full"] if same and full is not None else loss_by_full(self.decoder, prompt, ids)
        )
        if full is not None:
            measures |= {"identical": float(same), "same_tokens": len(ids) if difference is None else difference}
        if spec.law_positions and text.writer.label == self._law_label:
            laws, drafts = steps_of(generator, method, request, spec.law_positions)
            measures |= law_measures(laws, drafts, self.config.seed, self.config.confidence)
        record = self._record(
            text, measures, sample_index=text.number, status="ok", score=measures["tokens_per_step"],
            prompt_sha256=hash_texts([book, *map(str, prompt)]), finish_reason="length",
            # A text that is Full's, token for token, is stored once.
            output_ids=None if same else list(ids), output_text=None if same else written,
        )  # fmt: skip
        file.unlink(missing_ok=True)
        return record

    def _method(self, text: Text) -> AttentionMethod:
        tokens = text.budget.tokens(text.prompt_tokens) if text.writer.takes_budget else None
        method = get_method(text.writer.method).from_budget(tokens, self.model_config, **text.writer.params)
        method.refuse_context(text.prompt_tokens)
        return method

    def _budgets(self, writer: Writer) -> tuple[Budget, ...]:
        if not writer.takes_budget:
            return (FULL_BUDGET,)
        return self.spec.budgets or self.config.budgets_of(writer.gated)

    def _seed(self, text: Text) -> int:
        """Return the seed of a text's noise: the same for every writer, so that exact ones write the same text."""
        name = f"{SUITE}/{text.sampler}/{text.prompt_tokens}/{text.number}/{self.config.seed}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")

    def _record(self, text: Text, measures: dict[str, float], **result: Any) -> Record:
        tokens = text.budget.tokens(text.prompt_tokens) if text.writer.takes_budget else None
        return Record(
            profile=self.config.profile, model=self.spec.model, variant=text.writer.label, method=text.writer.method,
            params=text.writer.params, suite=SUITE, task=text.sampler, task_version=1, metric="tokens_per_step",
            unit="tokens", higher_is_better=True, data_source="real" if self.spec.source == "pg19" else "generated",
            context=text.prompt_tokens, batch=1, budget=text.budget.text, budget_tokens=tokens, seed=self.config.seed,
            measures=measures, provenance=self.origin, **result,
        )  # fmt: skip
