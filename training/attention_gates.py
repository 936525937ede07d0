"""Distil SeerAttention-R's gates from a frozen model: ``python -m longdecode.training.attention_gates --help``.

The model reads a window of text densely. In every layer a gate learns, from some of the queries, how much attention the
blocks before each one get: the largest probability of any of a block's keys and of any query head of the group, over
its sum. The loss is the Kullback-Leibler divergence from that to the softmax of the gate's scores.

Source: Gao et al. 2025 (arXiv 2506.08889), section 2.3, and the released code (microsoft/SeerAttention aba03e3). There
all queries of the second half of a text teach, and the block of the query takes part; here it does not, as it is always
read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from longdecode.engine.config_reader import resolve_checkpoint
from longdecode.engine.decoder import Decoder
from longdecode.engine.device import lease_gpu, resolve_device, resolve_dtype
from longdecode.engine.kv_cache import CacheShape
from longdecode.engine.prefill import PrefillObserver, Seen
from longdecode.engine.tokenizer import load_tokenizer
from longdecode.engine.weights import load_decoder, model_hash
from longdecode.evals.provenance import revision
from longdecode.kernels.rope.naive import rotate
from longdecode.methods.seerattention_r.gates import LayerGate, Rotation, new_gates, write_gates
from longdecode.training.draft_heads.data import Books
from longdecode.training.files import append_log, run_commands, write_json
from longdecode.training.loop import Loop, take_step, warmed_cosine

WARMUP = 20
LEAST = 0.01
"""Share of the peak rate that the cosine ends at; both as released."""


class GateTrainer(PrefillObserver):
    """Watches prefills of a model and adds to the gradients of its gates.

    Args:
        decoder: the model.
        block_size: tokens in a block.
        queries: queries that teach in each layer of a piece.
        seed: of the first weights and of the queries.
    """

    key = "attention gates"

    def __init__(self, decoder: Decoder, block_size: int, queries: int, seed: int):
        self.size, self.queries, self.rotation = block_size, queries, Rotation(decoder.config)
        layers = new_gates(decoder.config, seed).layers
        parts = [part.to(decoder.device) for gate in layers for part in gate.parts]
        self.weights = torch.nn.ParameterList(parts)
        self.losses = torch.zeros(len(layers), device=decoder.device)
        self.rng = torch.Generator().manual_seed(seed)

    @property
    def gates(self) -> Iterator[LayerGate]:
        """Yield the gate of each layer."""
        each = len(self.weights) // len(self.losses)
        yield from (LayerGate(*self.weights[each * n : each * n + each]) for n in range(len(self.losses)))

    def begin(self, shape: CacheShape, lengths: Sequence[int]) -> None:
        """See ``PrefillObserver.begin``."""
        self.losses.zero_()

    def layer(self, layer: int) -> Tensor:
        """Return the summed loss of a layer's pieces."""
        return self.losses[layer]

    @torch.enable_grad()
    def see(self, seen: Seen) -> None:
        """Compare the gate with the attention of some queries that have two whole blocks or more before them."""
        stop, first = seen.keys.shape[2], max(seen.start, 2 * self.size)
        if stop <= first:
            return
        at = (first + torch.randperm(stop - first, generator=self.rng)[: self.queries]).to(seen.keys.device)
        blocks = stop // self.size
        ends = (torch.arange(blocks, device=at.device) + 1) * self.size
        before = ends <= at[:, None]  # [n, N]
        q, keys = seen.q[:, :, at - seen.start].float(), seen.keys.float()
        with torch.no_grad():
            wanted = self.attention(q, keys, at, before)
        slots = torch.arange(blocks * self.size, device=at.device)[None]
        plain = rotate(keys[:, :, : slots.shape[1]], *self.rotation.back(slots)).unflatten(2, (blocks, self.size))
        gate = list(self.gates)[seen.layer]
        gated = rotate(gate.of_blocks(plain), *self.rotation.forth(slots[:, :: self.size]))
        asked = rotate(gate.of_queries(rotate(q, *self.rotation.back(at[None]))), *self.rotation.forth(at[None]))
        scores = (asked @ gated.mT * q.shape[-1] ** -0.5).masked_fill(~before, float("-inf"))
        gaps = torch.where(before, wanted.clamp(min=1e-12).log() - scores.log_softmax(dim=-1), 0)
        loss = (wanted * gaps).sum(dim=-1).mean()
        loss.backward()
        self.losses[seen.layer] += loss.detach()

    def attention(self, q: Tensor, keys: Tensor, at: Tensor, before: Tensor) -> Tensor:
        """Return the share of attention of the blocks ``before`` each query, ``[R, Hkv, n, N]``.

        Args:
            q: ``[R, Hq, n, D]``, rotated.
            keys: ``[R, Hkv, S, D]``, rotated.
            at: ``[n]`` int64, positions of the queries.
            before: ``[n, N]`` bool.
        """
        rows, heads, stop, dim = keys.shape
        best = q.new_zeros(rows, heads, len(at), before.shape[1])
        future = torch.arange(stop, device=at.device) > at[:, None]
        for head in q.unflatten(1, (heads, -1)).unbind(2):  # one of each group at a time: weights are [R, Hkv, n, S]
            weights = (head @ keys.mT * dim**-0.5).masked_fill(future, float("-inf")).softmax(dim=-1)
            blocked = weights[..., : before.shape[1] * self.size].unflatten(-1, (-1, self.size)).amax(dim=-1)
            best = best.maximum(blocked)
        best = best * before
        return best / best.sum(dim=-1, keepdim=True).clamp(min=1e-9)


def run(
    model: str, books: str, output: Path, steps: int = 800, length: int = 16384, sequences: int = 4,
    block_size: int = 64, queries: int = 128, rate: float = 1e-3, seed: int = 0, device: str = "auto",
) -> None:  # fmt: skip
    """Distil the gates of a model: OUTPUT/gates.safetensors, with config.json beside it; a killed run goes on.

    Args:
        model: a checkpoint's folder, a built model's name or a hub id.
        books: folder of ``*.txt`` books, a hub id such as ``emozilla/pg19``, or ``*.npz`` of token ids.
        output: folder.
        steps: of ``sequences`` windows of ``length`` tokens each.
        length: tokens of a window.
        sequences: windows a step.
        block_size: tokens in a block.
        queries: queries of a window that teach in every layer.
        rate: peak learning rate of AdamW, without decay.
        seed: of first weights, windows and queries.
        device: ``auto``, ``cpu`` or ``cuda``.
    """
    folder = resolve_checkpoint(model, None)
    output.mkdir(parents=True, exist_ok=True)
    with lease_gpu(resolve_device(device)) as target:
        decoder = load_decoder(folder, device=target, dtype=resolve_dtype("auto", target))
        text = Books(books, load_tokenizer(folder), length)
        trainer = GateTrainer(decoder, block_size, queries, seed)
        optimizer = torch.optim.AdamW(trainer.weights.parameters(), lr=rate, weight_decay=0.0)
        settings = (model_hash(folder), length, sequences, block_size, queries, rate, seed, steps)
        state, parts = output / "state.pt", {"gates": trainer.weights, "optimizer": optimizer}
        loop = Loop(state, settings, target, parts, steps)
        for step, _ in loop.over(range(loop.step, steps)):
            trainer.rng.manual_seed(seed * steps + step)
            losses = torch.zeros_like(trainer.losses)
            for row in range(sequences):
                ids = torch.from_numpy(text.window(seed, step, row))
                decoder.prefill([ids], decoder.new_cache(1, length), length, None, (trainer,))
                losses += trainer.losses / sequences
            take_step(optimizer, rate * warmed_cosine(step, WARMUP, loop.passed, LEAST))
            append_log(output / "log.jsonl", {"step": step + 1, "divergence": round(float(losses.mean()), 4)})
        write_gates(output / "gates.safetensors", list(trainer.gates))
        about = {
            "model": model, "checkpoint": model_hash(folder), "revision": revision(), "steps": steps,
            "tokens": steps * sequences * length, "seerattn_gate_block_size": block_size,
        }  # fmt: skip
        write_json(output / "config.json", about)
    state.unlink(missing_ok=True)


if __name__ == "__main__":
    run_commands(run)
