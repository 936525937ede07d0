"""A stranger's eight questions: each is answered on a page at most two clicks from the Overview."""

from __future__ import annotations

import re

import pytest

from site_pages import Parsed

ROADS = {
    "which method at 32K, how much faster": (r"What to take.*32K, batch 8.*?FP8 cache: 1\.26×", []),
    "is quality kept, on what": (r"Lost against Full.*RULER.*\[.*points", []),
    "does 2.7 times come out": (r"LycheeDecode Speed over full attention.*?2\.7×.{0,40}?1\.63×.*?not", []),
    "does 5.04 times come out": (r"NOSA Decode throughput over full attention.*?5\.04×.*?3\.95×.*?partly", []),
    "does +21.9 % come out": (r"RetroAttention Accuracy over .*Accuracy over Quest's, relative, at best.*?21\.9", []),
    "does 3 times over 100K tokens come out": (r"TokenSwift.*?3\.13×.{0,40}?1\.62×", []),
    "what stands in the paper's own table": (r"The paper’s tables.*MultiFieldQA", ["paper-lychee.html"]),
    "on what hardware": (r"torch 2\.11.*NVIDIA H200", ["trust.html#runs"]),
    "where are the raw numbers": (r"Raw tables.*summary\.csv.*speed\.csv.*comparisons\.csv", ["trust.html#raw"]),
    "how do I run it on my Llama-3.1-8B": (r"longdecode run --model \./Llama-3\.1-8B", ["index.html"]),
    "how do I add a method": (r"longdecode methods new my_method.*longdecode check", []),
    "which method for long answers": (r"Other needs.*Long answers.*?loses \d\.\d points", []),
    "all long answers": (r"Long answers.*Scores by budget.*Quest", ["task-mini-longgen.html"]),
    "a method's card": (r"LycheeDecode.*Smallest budget within the margin.*Differences", ["method-lychee.html"]),
    "which knobs ran": (r"Knobs that ran.*window 64.*kernel_size 255.*?qwen", ["method-snapkv.html"]),
    "every variant at 32K": (r"Compare all variants.*LycheeDecode.*PyramidKV untuned", ["compare.html"]),
    "what others print": (r"Same order in 16 of 18 pairs.*kvpress", ["compare.html"]),
    "a task from a method": (r"RULER.*Scores by budget", ["method-quest.html", "task-ruler.html"]),
}


@pytest.mark.parametrize("question", ROADS)
def test_a_question_is_answered_within_two_clicks(pages: dict[str, Parsed], question: str) -> None:
    answer, clicks = ROADS[question]
    page = pages["index"]
    for link in clicks:
        assert link in [target for target, _ in page.links], f"{page.name} has no link to {link}"
        page = pages[link.partition("#")[0].removesuffix(".html")]
    assert len(clicks) <= 2
    assert re.search(answer, page.text), f"{page.name} does not say {answer}"
