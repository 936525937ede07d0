"""Acceptance of drafted tokens: the exact rule, and TokenSwift's rule as printed and as released."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from longdecode.engine.sequences import Sequences
from longdecode.engine.speculation import AcceptRule, PlacedTree
from longdecode.kernels.draw import gumbel_noise, uniform_noise
from longdecode.kernels.tree_walk import tree_walk

_PATH_NOISE = 0x3C6EF372FE94F82B
_BONUS_NOISE = 0x1F83D9ABFB41BD6B
"""Added to a request's seed, so that a faithful rule's draws are independent of those of plain decoding."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The path that a step takes through its block.

    Args:
        rows: ``[B, depth + 1]`` int64, the rows along it; past ``counts`` any.
        chosen: ``[B, depth + 1]`` int64, the token chosen after each of these rows.
        counts: ``[B]`` int64, tokens chosen: the accepted drafts and one more.
    """

    rows: Tensor
    chosen: Tensor
    counts: Tensor


def accept(
    placed: PlacedTree, nodes: Tensor, logits: Tensor, sequences: Sequences, rule: AcceptRule = "exact"
) -> Accepted:
    """Choose the tokens that a verified block yields.

    Args:
        placed: the block's shape.
        nodes: ``[B, T - 1]`` int64, the drafted tokens.
        logits: ``[B, T, V]``, after each row.
        sequences: the batch, at the newest token.
        rule: ``exact`` gives the tokens of plain decoding under the same noise. ``faithful`` and ``released`` are
            TokenSwift's: one draw for each path and depth, which is not the target's law.
    """
    if rule != "exact":
        return _by_paths(placed, nodes, logits, sequences, released=rule == "released")
    if placed.tree.is_chain or sequences.sampling.is_simple:
        chosen = sequences.choose_in_tree(placed, nodes, logits.float())
        return Accepted(*tree_walk(chosen, nodes, placed.ancestors, placed.depths))
    return _walk(placed, nodes, logits, sequences)


def _walk(placed: PlacedTree, nodes: Tensor, logits: Tensor, sequences: Sequences) -> Accepted:
    """Draw once after the newest token, go on at the drafts that carry the token drawn, and so on.

    Serves the rules that sort a vocabulary: only the rows along the path go through the sampling.
    """
    undrawn, vocab = -2, logits.shape[2]
    drawn = torch.full((len(nodes), placed.tree.rows), undrawn, dtype=torch.int64, device=nodes.device)
    path = Accepted(*tree_walk(drawn, nodes, placed.ancestors, placed.depths))
    for depth in range(placed.tree.depth + 1):
        row = path.rows[:, depth : depth + 1]
        here = logits.gather(1, row[..., None].expand(-1, -1, vocab)).float()
        token = sequences.choose(here, path.chosen[:, :depth], depth)
        known = drawn.gather(1, row)  # the path may have ended before
        drawn = drawn.scatter(1, row, torch.where(known == undrawn, token, known))
        path = Accepted(*tree_walk(drawn, nodes, placed.ancestors, placed.depths))
    return path


def _by_paths(placed: PlacedTree, nodes: Tensor, logits: Tensor, sequences: Sequences, released: bool) -> Accepted:
    """Accept along each path by draws of its own and take one of the longest paths, each alike.

    A path's token at a depth equals its draft with the target's probability of that draft, so one uniform number
    decides; the token after the accepted ones is drawn from the target without the draft that was missed. That is the
    law of one draw from the target for each path and depth.

    Source: TokenSwift (arXiv 2502.18890), algorithm 1. Its released code penalises only what the first path reads of
    row 0 (``gather`` with an index whose leading dimensions are 1); that is ``released``.
    """
    batch, rows, vocab = logits.shape
    sampling, depth = sequences.sampling, placed.tree.depth
    tokens = torch.cat((sequences.tokens[:, None], nodes), dim=1)
    logits = logits.float()
    history = None if released else sequences.history_of(placed, tokens)
    kept = sampling.processed(logits.reshape(-1, vocab), history).view(batch, rows, vocab)
    first = sampling.processed(logits[:, 0], sequences.history()) if released else kept[:, 0]
    chance = placed.along_paths(kept.log_softmax(dim=2), tokens)
    if released:
        draft = tokens.index_select(1, placed.path_rows[0, 1:2]).clamp(min=0)
        chance[:, 0, 0] = first.log_softmax(dim=1).gather(1, draft)[:, 0]
    forced, is_forced = (part[:, None] for part in sequences.forced_ahead(depth + 1))
    drafts = tokens[:, placed.path_rows[:, 1:]]
    certain = torch.where(drafts == forced[..., :-1], 0.0, -torch.inf)
    chance = torch.where(is_forced[..., :-1], certain.to(chance.dtype), chance)
    inside = (torch.arange(depth, device=nodes.device) < placed.path_lengths[:, None]) & (drafts >= 0)
    place = sequences.prompt_lengths + sequences.counts
    paths = len(placed.path_rows)
    noise = uniform_noise(sequences.seeds + _PATH_NOISE, place, paths * (depth + 1)).view(batch, paths, depth + 1)
    matched = ((noise[..., :-1] < chance.exp()) & inside).long().cumprod(dim=2).sum(dim=2)
    longest = matched.amax(dim=1, keepdim=True)
    taken = torch.where(matched == longest, noise[..., -1], -1.0).argmax(dim=1)
    path = placed.path_rows[taken]
    after = kept.gather(1, path.gather(1, longest)[..., None].expand(-1, 1, vocab))[:, 0]
    if released:
        after = torch.where((taken[:, None] == 0) & (longest == 0), first, after)
    missed = tokens.gather(1, path.gather(1, (longest + 1).clamp(max=depth)))
    has_missed = (longest < placed.path_lengths[taken][:, None]) & (missed >= 0)
    missed = missed.clamp(min=0)
    after = after.scatter(1, missed, torch.where(has_missed, -torch.inf, after.gather(1, missed)))
    if sampling.temperature > 0:
        after = after.double() + gumbel_noise(sequences.seeds + _BONUS_NOISE, place, vocab)
    bonus = after.argmax(dim=1, keepdim=True)
    bonus = torch.where(is_forced[:, 0].gather(1, longest), forced[:, 0].gather(1, longest), bonus)
    chosen = torch.cat((tokens.gather(1, path[:, 1:]), bonus), dim=1).scatter(1, longest, bonus)
    return Accepted(path, chosen, longest[:, 0] + 1)
