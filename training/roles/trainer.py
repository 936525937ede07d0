"""The training loop: gates alone learn, on batches that depend on (seed, step) and nothing else."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator

import torch
from torch import Tensor

from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import ConfigError, ContextLimitError
from longdecode.evals.training_spec import RoleTraining
from longdecode.training.loop import take_step
from longdecode.training.roles.data.batch import SampleSource, TargetBatch, context_lengths
from longdecode.training.roles.gated_model import GatedModel
from longdecode.training.roles.gates import GATES, HeadGates
from longdecode.training.roles.gates.gate import FLOOR
from longdecode.training.roles.objective import ASCENT, CodeObjective, L1Objective, Loss, Objective, PaperObjective
from longdecode.training.roles.token_sets import SparseBranch

PREFILL_TOKENS = 65536
"""Tokens that one prefill chunk works on."""
GATE_SNAPSHOTS = 20
PROGRESS_LINES = 20
LOG_EVERY = 10
"""Steps between rows of the curve."""


Rows = list[list[float]]
"""Of curve.csv or gates.csv, in the order of ``artefacts``' columns."""


class Trainer:
    """One run of head identification on one decoder.

    Raises:
        ConfigError: more retrieval heads are asked for than there are, or fewer than layer 0 has.
        ContextLimitError: a context is longer than the model's.
    """

    def __init__(self, run: RoleTraining, decoder: Decoder, source: SampleSource):
        _refuse(run, decoder)
        config = decoder.config
        self.run = run
        self.decoder = decoder
        self.source = source
        self.contexts = context_lengths(*run.contexts, run.context_count)
        gates = GATES[run.kind](config.num_layers, config.num_kv_heads, 0.0 if run.objective == "code" else FLOOR)
        self.gates: HeadGates = gates.to(decoder.device)
        sparse = SparseBranch(run.sparse, run.inherit, run.selection, run.ratio, run.sink, run.recent)
        self.model = GatedModel(decoder, sparse)
        self.optimizer = torch.optim.AdamW(self.gates.parameters(), lr=run.gate_rate, weight_decay=0.0)
        self.generator = torch.Generator(decoder.device).manual_seed(run.seed)
        self.cache = decoder.new_cache(run.batch, max(self.contexts))
        self.objective = self._objective()

    def fit(self) -> tuple[Rows, Rows]:
        """Train; the gates are left as they end. Return the curve, and scores of the gates on the way."""
        curve, scores, started = Rows(), Rows(), time.perf_counter()
        steps = self.run.steps
        snapshots = {round(i * (steps - 1) / (GATE_SNAPSHOTS - 1)) for i in range(GATE_SNAPSHOTS)} | {steps - 1}
        shown = {round((i + 1) * (steps - 1) / PROGRESS_LINES) for i in range(PROGRESS_LINES)}
        for step, batch in enumerate(self._batches()):
            loss = self._gradients(batch)
            take_step(self.optimizer, self.run.gate_rate * trapezoid(step, steps))
            self.gates.clamp_()
            self.objective.ascend(loss)
            if step % LOG_EVERY == 0 or step == steps - 1 or step in shown:
                curve.append(self._row(step, loss, started))
                if step in shown:
                    _report(self.run, curve[-1])
            if step in snapshots:
                scores += self._gate_rows(step)
        return curve, scores

    def seconds_a_step(self) -> float:
        """Time a step at the shortest, the middle and the longest context, and weigh them; nothing is learned."""
        kept, times = self.generator.get_state(), []
        for context in (self.contexts[0], self.contexts[len(self.contexts) // 2], self.contexts[-1]):
            rngs = [random.Random(f"timing/{row}") for row in range(self.run.batch)]
            for _ in range(2):  # the first time kernels are compiled
                started = time.perf_counter()
                self._gradients(self.source.batch(rngs, context)).total.item()
                seconds = time.perf_counter() - started
            times.append(seconds)
        self.generator.set_state(kept)
        return (times[0] + 4 * times[1] + times[2]) / 6

    def _gradients(self, batch: TargetBatch) -> Loss:
        """One batch's loss; its gradients stand at the gates."""
        teacher, targets = self._teacher(batch)
        noise = self.gates.uniform(len(targets), self.generator)
        gates = self.gates.sample(noise)
        # A noisy gate that was clipped has no gradient; a plain number that stands at 0 has one.
        closed = (gates == 0).all(dim=2).all(dim=0).tolist() if self.gates.floor else None
        student = self.model.hidden(targets, self.cache, batch.start, gates, closed)
        loss = self.objective.loss(self.objective.distance(self.model, student, teacher), self.gates)
        self.optimizer.zero_grad(set_to_none=True)
        loss.total.backward()
        return loss

    @torch.no_grad()
    def _teacher(self, batch: TargetBatch) -> tuple[Tensor, Tensor]:
        """Read the contexts into the cache; return the teacher's final hidden states, and the targets on the device."""
        self.decoder.prefill(list(batch.contexts), self.cache, PREFILL_TOKENS)
        targets = batch.targets.to(self.decoder.device, non_blocking=True)
        config, total = self.decoder.config, batch.start + targets.shape[1]
        if total > config.max_positions:
            raise ContextLimitError(
                f"run {self.run.name}: a sample of {batch.start} + {targets.shape[1]} tokens; the model's limit is "
                f"{config.max_positions}"
            )
        return self.model.hidden(targets, self.cache, batch.start), targets

    def _objective(self) -> Objective:
        run, gates, device = self.run, self.gates, self.decoder.device
        if run.objective == "l1":
            return L1Objective(device)
        first = run.first_role_layer
        learned = run.target_heads - first * gates.kv_heads
        if run.objective == "code":
            return CodeObjective(learned / (gates.layers * gates.kv_heads), device)
        counted = (gates.layers - first) * gates.kv_heads
        return PaperObjective(first, learned, ASCENT * counted / (learned * run.steps), self._reference())

    @torch.no_grad()
    def _reference(self) -> Tensor:
        """The paper objective's distillation loss with every gate at 0, over one batch of the shortest context."""
        rngs = [random.Random(f"reference/{self.run.seed}/{row}") for row in range(self.run.batch)]
        batch = self.source.batch(rngs, self.contexts[0])
        teacher, targets = self._teacher(batch)
        closed = torch.zeros(len(targets), self.gates.layers, self.gates.kv_heads, device=targets.device)
        student = self.model.hidden(targets, self.cache, batch.start, closed)
        return PaperObjective.distance(self.model, student, teacher)

    def _batches(self) -> Iterator[TargetBatch]:
        """Context lengths go round in shuffled epochs; each sample has random numbers of its own."""
        order: list[int] = []
        for step in range(self.run.steps):
            if not order:
                order = list(self.contexts)
                random.Random(f"contexts/{self.run.seed}/{step}").shuffle(order)
            rngs = [random.Random(f"train/{self.run.seed}/{step}/{row}") for row in range(self.run.batch)]
            yield self.source.batch(rngs, order.pop())

    @torch.no_grad()
    def _row(self, step: int, loss: Loss, started: float) -> list[float]:
        """One row of the curve."""
        first = self.run.first_role_layer
        on, score = self.gates.p_nonzero()[first:], self.gates.score()[first:]
        undecided = ((score > 0.1) & (score < 0.9)).float().mean()
        scalars = (
            loss.total, loss.distill, loss.constraint, self.objective.lagrange,
            on.mean(), on.sum(), (score > 0.5).sum(), undecided,
        )  # fmt: skip
        values = torch.stack([scalar.detach().float() for scalar in scalars]).tolist()
        values[6] = int(values[6])
        return [step, *values, time.perf_counter() - started]

    @torch.no_grad()
    def _gate_rows(self, step: int) -> Rows:
        scores = self.gates.score().tolist()
        return [[step, layer, head, score] for layer, row in enumerate(scores) for head, score in enumerate(row)]


def trapezoid(step: int, steps: int) -> float:
    """Learning-rate factor: 0.1 to 1 over the first fifth of the steps, flat, and back to 0.1 over the last fifth."""
    ramp = max(1, steps // 5)
    return 0.1 + 0.9 * max(0.0, min(1.0, step / ramp, (steps - 1 - step) / ramp))


def _refuse(run: RoleTraining, decoder: Decoder) -> None:
    config = decoder.config
    fixed, heads = run.first_role_layer * config.num_kv_heads, config.num_layers * config.num_kv_heads
    if not fixed < run.target_heads < heads:
        raise ConfigError(
            f"run {run.name}: target_heads = {run.target_heads}; more than {fixed} and fewer than {heads} are possible "
            f"with {config.num_layers} layers of {config.num_kv_heads} KV heads"
        )
    if run.contexts[1] > config.max_positions:
        raise ContextLimitError(f"run {run.name}: a context of {run.contexts[1]}; the limit is {config.max_positions}")


def _report(run: RoleTraining, row: list[float]) -> None:
    step, loss, distill, constraint, lagrange, _, expected, count, undecided, seconds = row
    print(
        f"{run.name} {step + 1}/{run.steps}  loss {loss:.4g}  distill {distill:.4g}  constraint {constraint:.3f}  "
        f"lambda {lagrange:.3g}  expected {expected:.1f}  over 0.5: {count}  undecided {undecided:.0%}  "
        f"{seconds:.0f} s",
        file=sys.stderr,
    )
