"""RetroAttention in loops over sets of pages, in float64, for one sequence: the method as its formulas say it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from longdecode.engine.decoder import Decoder

Part = tuple[Tensor, Tensor]
"""``sum exp(q k / sqrt d) v`` and ``sum exp(q k / sqrt d)`` over the tokens of one page."""


class Reference:
    """A decode of one row whose rows keep what they read, page by page.

    ``loads[layer][head]`` lists the set of pages that each step loaded. ``parts[layer][position][query head]`` maps a
    page to the part of it that the row at that position holds.
    """

    def __init__(self, decoder: Decoder, window: int, pages: int, *, page: int = 16, dense: int = 2, join: str = "max",
                 old_query: bool = False, exact: bool = False, overwrite: str = "both", every: int = 1):  # fmt: skip
        self.decoder, self.config = decoder, decoder.config
        self.window, self.pages, self.page, self.dense, self.join = window, pages, page, dense, join
        self.old_query, self.exact, self.overwrite, self.every = old_query, exact, overwrite, every
        layers = range(self.config.num_layers)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.parts: list[dict[int, list[dict[int, Part]]]] = [{} for _ in layers]
        self.first_queries: list[dict[int, Tensor]] = [{} for _ in layers]
        self.dense_rows: list[dict[int, Tensor]] = [{} for _ in layers]
        self.loads: list[list[list[set[int]]]] = [[[] for _ in range(self.config.num_kv_heads)] for _ in layers]
        self.tokens: list[int] = []

    def prefill(self, tokens: Sequence[int]) -> None:
        """Run the prompt densely."""
        self.tokens = list(tokens)
        self.start = len(self.tokens)
        x = self.decoder.weights.embedding[list(tokens)]
        positions = list(range(len(tokens)))
        for layer in self.decoder.weights.layers:
            q, k, v = self.heads(layer, x, positions)
            self.keys.append(k)
            self.values.append(v)
            shared = k.repeat_interleave(self.config.group_size, dim=0)
            logits = q @ shared.transpose(1, 2) / math.sqrt(self.config.head_dim)
            logits = logits.masked_fill(torch.ones_like(logits[0], dtype=torch.bool).triu(1), -torch.inf)
            out = logits.softmax(dim=-1) @ v.repeat_interleave(self.config.group_size, dim=0)
            x = self.finish(layer, x, out)

    def step(self, token: int) -> Tensor:
        """Decode one token; return its logits ``[V]``."""
        self.tokens.append(token)
        newest = len(self.tokens) - 1
        rows = [p for p in range(newest - self.window + 1, newest + 1) if p >= self.start]
        x = self.decoder.weights.embedding[[self.tokens[p] for p in rows]]
        for index, layer in enumerate(self.decoder.weights.layers):
            q, k, v = self.heads(layer, x, rows)
            self.store(index, rows, k, v)
            outs = []
            if index < self.dense or (index - self.dense) % self.every == 0:
                chosen = None if index < self.dense else self.choose(index, q[:, -1])
            for at, row in enumerate(rows):
                if chosen is None:
                    if row == newest:
                        everything = list(range(newest + 1))
                        out = [self.ratio([self.part(index, h, q[h, at], everything)]) for h in range(len(q))]
                        self.dense_rows[index][row] = torch.stack(out)
                    outs.append(self.dense_rows[index][row])
                else:
                    outs.append(self.sparse_row(index, row, newest, q[:, at], chosen))
            if chosen is not None:
                for head, pages in enumerate(chosen):
                    self.loads[index][head].append(pages)
            x = self.finish(layer, x, torch.stack(outs, dim=1))
        return self.norm(x, self.decoder.weights.final_norm)[-1] @ self.decoder.weights.lm_head.T

    def sparse_row(self, index: int, row: int, newest: int, q: Tensor, chosen: list[set[int]]) -> Tensor:
        """Add to the row's parts those of the pages that it has not seen; return its output ``[Hq, D]``."""
        held = self.parts[index].setdefault(row, [{} for _ in q])
        first = self.first_queries[index].setdefault(row, q)
        for head in range(len(q)):
            kv_head = head // self.config.group_size
            query = first[head] if self.old_query else q[head]
            since = self.loads[index][kv_head][row - self.start :]
            for page in chosen[kv_head] - set().union(*since):
                tokens = [t for t in range(page * self.page, (page + 1) * self.page) if t <= row]
                if tokens:
                    held[head][page] = self.part(index, head, query, tokens)
            current = newest // self.page
            if self.exact and row // self.page == current:
                tokens = list(range(current * self.page, row + 1))
                held[head][current] = self.part(index, head, query, tokens)
        return torch.stack([self.ratio(list(parts.values())) for parts in held])

    def store(self, index: int, rows: list[int], k: Tensor, v: Tensor) -> None:
        """Append the newest token and write over the past ones."""
        for cache, new, name in ((self.keys, k, "keys"), (self.values, v, "values")):
            grown = torch.cat((cache[index], new[:, -1:]), dim=1).clone()
            if self.overwrite in ("both", name):
                grown[:, rows] = new
            cache[index] = grown

    def choose(self, index: int, q: Tensor) -> list[set[int]]:
        """Return the current page and the best others by bound, for each KV head."""
        chosen = []
        for head in range(self.config.num_kv_heads):
            group = q[head * self.config.group_size : (head + 1) * self.config.group_size]
            scores = []
            for page in self.keys[index][head].split(self.page):
                bounds = torch.maximum(group * page.amin(0), group * page.amax(0)).sum(dim=1)
                scores.append(float(bounds.max() if self.join == "max" else bounds.sum()))
            others = sorted(range(len(scores) - 1), key=lambda j: -scores[j])[: self.pages - 1]
            chosen.append({*others, len(scores) - 1})
        return chosen

    def part(self, index: int, head: int, q: Tensor, tokens: list[int]) -> Part:
        """Return numerator and denominator of attention over some tokens."""
        kv_head = head // self.config.group_size
        weights = (self.keys[index][kv_head, tokens] @ q / math.sqrt(self.config.head_dim)).exp()
        return weights @ self.values[index][kv_head, tokens], weights.sum()

    def ratio(self, parts: list[Part]) -> Tensor:
        """Return the attention over the union of disjoint parts."""
        return torch.stack([n for n, _ in parts]).sum(dim=0) / torch.stack([d for _, d in parts]).sum()

    def heads(self, layer, x: Tensor, positions: list[int]) -> list[Tensor]:
        """Return rotated queries and keys, and values, ``[H, T, D]``."""
        normed = self.norm(x, layer.input_norm)
        projected = (normed @ layer.qkv.T).unflatten(-1, (-1, self.config.head_dim)).transpose(0, 1)
        counts = (self.config.num_heads, self.config.num_kv_heads, self.config.num_kv_heads)
        q, k, v = projected.split(counts)
        cos, sin = (part[0].double() for part in self.decoder.rope.at(torch.tensor([positions])))
        return [*(y * cos + torch.cat((-y.chunk(2, -1)[1], y.chunk(2, -1)[0]), -1) * sin for y in (q, k)), v]

    def finish(self, layer, x: Tensor, out: Tensor) -> Tensor:
        """Project the attention's output ``[Hq, T, D]`` and run the MLP."""
        x = x + out.transpose(0, 1).flatten(1) @ layer.o.T
        gate, up = (self.norm(x, layer.mlp_norm) @ layer.gate_up.T).chunk(2, dim=-1)
        return x + (torch.nn.functional.silu(gate) * up) @ layer.down.T

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return the RMS norm."""
        return x * (x.square().mean(dim=-1, keepdim=True) + self.config.rms_norm_eps).rsqrt() * weight
