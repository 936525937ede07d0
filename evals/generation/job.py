"""One job of long generation: every variant, sampler and prompt of a run, each text resumable, each a record."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import cached_property, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from longdecode.engine.decoder import Decoder
from longdecode.engine.device import lease_gpu, resolve_device
from longdecode.engine.endless import without_ends
from longdecode.engine.errors import UnsupportedCellError, refuse_unknown
from longdecode.engine.generation import Generator, Request
from longdecode.evals.budgets import FULL_BUDGET
from longdecode.evals.fingerprint import code_hash, file_hashes, hash_texts
from longdecode.evals.gate import Gate, attempt
from longdecode.evals.generation import texts
from longdecode.evals.model_job import ModelJob
from longdecode.evals.records import Provenance, QualityCell, Record
from longdecode.evals.run_config import REFERENCE_METHOD, RunConfig
from longdecode.evals.store import Store

SUITE = "generation"


def write_texts(config: RunConfig, name: str, output: Path) -> None:
    """Write every text of a run and its records; a killed run goes on at the text it was at.

    Full's texts come first: the others are compared with them.

    Raises:
        ConfigError: the configuration has no such run.
        CheckpointError: the model cannot be loaded.
        LockHeldError: another process writes the same run.
    """
    asked = config.generation.runs.get(name)
    with lease_gpu(resolve_device(config.device), alone=asked is None or asked.timed) as target:
        job = GenerationJob(config, name, target, output)
        books = range(job.spec.books + job.spec.instructions)
        with Store(output, Record, job.cells, lambda _: job.origin.fingerprint, samples=lambda _: len(books)) as store:
            for number, cell in product(books, job.cells):
                if store.missing(cell, [number]):
                    reference = replace(cell, variant=REFERENCE_METHOD, budget=FULL_BUDGET)
                    theirs = store.of(reference) if reference in job.cells else []
                    full = next((record for record in theirs if record.index == number), None)
                    record = job.record(cell, number, full)
                    store.add(record)
                    print(json.dumps({"text": cell.key, "number": number, "status": record.status}), flush=True)
            store.finish()


class GenerationJob(ModelJob):
    """The objects that all texts of a run share.

    Raises:
        ConfigError: the configuration has no such run.
        CheckpointError: the checkpoint cannot be read.
    """

    def __init__(self, config: RunConfig, name: str, device: torch.device, output: Path):
        refuse_unknown(f"{config.source}: generation", "run", [name], config.generation.runs)
        self.name = name
        self.generation, self.spec = config.generation, config.generation.runs[name]
        super().__init__(config, self.spec.model, device)
        self.gate = Gate(config, device, output.parent.parent / "gate")
        # A sampler is a task, a prompt's length the context.
        places = product(self.spec.prompts, self.spec.samplers, self.spec.named)
        self.cells = [QualityCell(v, s, prompt, budget) for prompt, s, v in places for budget in config.budgets_of(v)]

    @cached_property
    def origin(self) -> Provenance:
        """Provenance of every text, with the fingerprint of all that they depend on."""
        model, used = self.spec.model, {name: self.config.methods[name] for name in self.spec.named}
        params = {name: spec.params_of(model) for name, spec in used.items()}
        drafters = {str(given["drafter"]) for given in params.values() if "drafter" in given}
        code = code_hash(["longdecode.evals.generation.job"], {spec.method for spec in used.values()} | drafters)
        files = [path for spec in used.values() for path in spec.files_of(model)]
        settings = {
            "run": [self.name, repr(self.spec), repr(self.generation.samplers)], "params": params,
            "budgets": {name: repr(self.config.budgets_of(name)) for name in used}, "seed": self.config.seed,
        }  # fmt: skip
        return self.provenance(settings, code, hash_texts(file_hashes(files)))

    @cached_property
    def decoder(self) -> Decoder:
        """The model, which never ends a text."""
        return without_ends(super().decoder, self.folder)

    def generator(self, sampler: str) -> Generator:
        """Return the generator that draws by a sampler of the configuration."""
        return Generator(self.decoder, self.generation.sampling(sampler))

    def record(self, cell: QualityCell, number: int, full: Record | None) -> Record:
        """Write one text, against Full's where there is one; what cannot be written is a record with its status."""
        made, status, reason = attempt(partial(self._written, cell, number, full), self.device)
        return made or self._record(cell, {}, sample_index=-1, status=status, reason=reason)

    def _written(self, cell: QualityCell, number: int, full: Record | None) -> Record:
        if refusal := self.gate.refusal(cell.variant, self.spec.model):
            raise refusal
        generator = self.generator(cell.task)
        method = self.build(cell.variant, cell.budget.tokens(cell.context), cell.context)
        if generator.sampling.history_tokens > cell.context:
            raise UnsupportedCellError(f"{cell.context} tokens are fewer than the penalty window of {cell.task}")
        books, known = self.config.data.get("pg19"), (cell.context, self.config.seed, self.tokenizer)
        book, prompt = texts.prompts(books, self.spec.books, *known, self.spec.instructions)[number]
        # The same noise for every variant, so that exact ones write the same text.
        name = f"{SUITE}/{cell.task}/{cell.context}/{number}/{self.config.seed}"
        seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
        request = Request(prompt, self.spec.tokens, seed=seed)
        ids, measures = texts.write_text(generator, method, request)
        if not self.spec.timed:
            measures = {key: value for key, value in measures.items() if not key.endswith("_ms")}
        theirs = None if full is None else full.output_ids
        same = theirs is not None and list(ids) == theirs
        measures |= texts.diversity(ids)
        if theirs is not None:
            parted = texts.first_difference(ids, theirs)
            measures |= {"identical": float(same), "same_tokens": float(len(ids) if parted is None else parted)}
        return self._record(
            cell, measures, sample_index=number, status="ok", score=measures["tokens_per_step"],
            prompt_sha256=hash_texts([book, *map(str, prompt)]), finish_reason="length",
            # A text that is Full's, token for token, is stored once.
            output_ids=None if same else list(ids), output_text=None if same else self.tokenizer.decode(ids),
        )  # fmt: skip

    def _record(self, cell: QualityCell, measures: dict[str, float], **result: Any) -> Record:
        spec, real = self.config.methods[cell.variant], not self.tokenizer.byte_level
        return Record(
            profile=self.config.profile, model=self.spec.model, variant=cell.variant, method=spec.method,
            params=spec.params_of(self.spec.model), suite=SUITE, task=cell.task, task_version=1,
            metric="tokens_per_step", unit="tokens", higher_is_better=True, data_source="real" if real else "generated",
            context=cell.context, batch=1, budget=cell.budget.text, budget_tokens=cell.budget.tokens(cell.context),
            seed=self.config.seed, measures=measures, provenance=self.origin, **result,
        )  # fmt: skip
