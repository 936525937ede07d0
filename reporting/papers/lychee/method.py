"""What the method is, in short, and which reading was implemented where its sources differ."""

from __future__ import annotations

from longdecode.reporting.papers.blocks import Block, Listing, Prose
from longdecode.reporting.papers.inputs import PaperInputs
from longdecode.reporting.papers.lychee.common import METHOD, WORDS
from longdecode.reporting.wording import slug


def blocks(inputs: PaperInputs) -> list[Block]:
    """Paragraphs, readings, and where the card is."""
    words = WORDS["method"]
    page = next((label for label in (METHOD, *inputs.pages) if inputs.pages.get(label) == METHOD), None)
    card = f"[method card](method-{slug(page)}.html)" if page else "`methods/lychee/card.yaml`"
    return [
        *(Prose(text) for text in words["text"]),
        Prose(f"{words['readings_title']}:"),
        Listing(words["readings"]),
        Prose(words["card"].format(card=card)),
    ]
