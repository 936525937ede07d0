"""Compare variants of one method: labels that differ in a few parameters alone, where each really read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longdecode.reporting.figure import Figure, Layout
from longdecode.reporting.identity import INK, Look
from longdecode.reporting.papers import pairs
from longdecode.reporting.papers.blocks import Block, Comparison, Picture, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.published import PublishedFigure
from longdecode.reporting.papers.sections.equal_bytes import (
    RUNS,
    Place,
    against_nearest,
    point_table,
    run_points,
    score_figure,
)
from longdecode.reporting.results import REFERENCE_METHOD

_FULL = Look("full", INK, "", False, True)


@dataclass(frozen=True, slots=True)
class Variants:
    """Fill a part on variants of the method.

    Args:
        part: key of its words and name of its published table.
        knobs: parameters of a label to those that may differ; all others must be the method's own.
        kind: parameters of a label to the name of its variant; ``None`` leaves the label out.
        looks: variants in order, by name.
        focus: variants whose runs are held against all others.
        measure: what counts as read.
        printed: a variant to its published lead of the focus, if there is one.
    """

    part: str
    knobs: Callable[[Mapping[str, Any]], frozenset[str]]
    kind: Callable[[Mapping[str, Any]], str | None]
    looks: Mapping[str, Look]
    focus: frozenset[str]
    measure: pairs.Measure = pairs.sparse_tokens
    printed: Callable[[PaperInputs, str], PublishedFigure | None] = field(default=lambda inputs, name: None)

    def __call__(self, inputs: PaperInputs) -> list[Block]:
        """Return, for every model with at least two variants, the figure and the focus against each other one."""
        words = inputs.words(self.part)
        found: list[Block] = [Prose(words["text"].format(what=inputs.published.tables[self.part].what))]
        models = {model: self.names(inputs, model) for model in inputs.compared_models()}
        models = {model: names for model, names in models.items() if len(set(names.values())) > 1}
        if not models:
            return [*found, inputs.missing(words["missing"])]
        for model, names in models.items():
            found += self._of_model(inputs, model, names)
        return found

    def names(self, inputs: PaperInputs, model: str) -> dict[str, str]:
        """Return the labels that differ from the method's own in the knobs alone, and the variant of each."""
        own = inputs.label(inputs.spec.method, model)
        found = {}
        for label in inputs.labels(inputs.spec.method, model):
            params = inputs.params(label, model)
            name, knobs = self.kind(params), self.knobs(params)
            same = own is not None and inputs.params(label, model, knobs) == inputs.params(own, model, knobs)
            if same and name in self.looks:
                found[label] = str(name)
        return found

    def _of_model(self, inputs: PaperInputs, model: str, names: Mapping[str, str]) -> list[Block]:
        ends = dict.fromkeys(
            (suite, end) for suite in inputs.spec.suites if (swept := inputs.contexts(model, suite))
            for end in (swept[0], swept[-1])
        )  # fmt: skip
        curves = {place: run_points(inputs, model, place, names, self.measure) for place in ends}
        figure = self._figure(inputs, model, names, curves)
        found: list[Block] = [] if figure is None else [Picture(figure)]
        for place, points in curves.items():
            rows = [
                against_nearest(inputs, model, place, ours, name, rivals, self.printed(inputs, name))
                for ours in sorted(points, key=lambda p: p.share)
                if names.get(ours.label) in self.focus
                for name in self.looks
                if name not in self.focus
                if (rivals := [point for point in points if names.get(point.label) == name])
            ]
            if rows:
                caption = f"{inputs.words(self.part)['caption']}: {place[0]}, {place[1]:,} tokens. "
                fold = "" if len(found) < 2 else f"{place[0]} at {place[1]:,} tokens"
                found.append(Comparison(caption + inputs.about(model, None), RUNS, rows, "points", fold=fold))
        return found

    def _figure(
        self, inputs: PaperInputs, model: str, names: Mapping[str, str], curves: Mapping[Place, Sequence[pairs.Point]]
    ) -> Figure | None:
        data = point_table(inputs, model, curves)
        if data.empty:
            return None
        data["variant"] = data["method"].map({**names, REFERENCE_METHOD: _FULL.label})
        counts = data[data["variant"] != _FULL.label].groupby("variant", sort=False).size()
        words = {"readings": ", ".join(f"{name} {count} points" for name, count in counts.items())}
        layout = Layout("read by sparse heads (% of the context)", "right (%)", wide=2)
        looks = {_FULL.label: _FULL, **self.looks}
        return score_figure(inputs, model, self.part, data, "variant", looks, words, layout)
