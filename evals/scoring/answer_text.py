"""Read a short answer out of what a model wrote: its dressing taken off, the last box, an integer, a reference in it.

Source: github NVIDIA/RULER, scripts/eval/synthetic/constants.py (string_match_all, whose largest mark is
string_match_part); github princeton-nlp/HELMET, utils.py (substring_exact_match). HELMET marks the text behind the
answer's cue too and takes the better mark; that text is a part of the completion, so that its mark is never better.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections.abc import Mapping, Sequence

_MINUS = dict.fromkeys(map(ord, "\u2212\u2010\u2011\u2012\ufe63\uff0d"), "-")
_OTHERS = {ord("\u2044"): "/", ord("\u3000"): " "} | dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff"))
# An en dash is a minus where a number follows and none stands before: "3–5" is a range.
_EN_DASH = re.compile(r"(?<![\w.)\]}%])\u2013(?=[$\\]?[\d.])")
_THOUSANDS = re.compile(r"(?<=\d)(?:\\[,;: ]|[\u00a0\u2009\u202f'\u2019\u066c])(?=\d{3}(?!\d))")
_STYLES = (
    r"text(?:bf|it|rm|sf|tt|sc|up|normal)?|math(?:bf|it|rm|sf|tt|bb|cal|normal)|boldsymbol|bm|bf|rm|it|emph|underline"
    r"|operatorname|[mh]box|f(?:rame)?box|boxed"
)
_STYLE = re.compile(rf"\\(?:{_STYLES})\*?\s*\{{([^{{}}]*)\}}")
_SWITCH = re.compile(
    rf"\\(?:{_STYLES}|bfseries|boldmath|displaystyle|left|right|[bB]igg?[lr]?|large|Large|LARGE|[hH]uge)(?![A-Za-z])\s*"
)
_FRACTION = re.compile(
    r"(?:(?P<whole>\d) ?)?\\[dtc]?frac\s*\{\s*(?P<top>-?[\d.,]+)\s*\}\s*\{\s*(?P<bottom>[\d.,]+)\s*\}"
)
_COLOUR = re.compile(r"\\(?:text)?color\s*\{[^{}]*\}")
_SPACE = re.compile(r"\\(?:[,;: ]|quad|qquad)|[~\u00a0\u2009\u202f]")
_DELIMITER = re.compile(r"\\[()\[\]]|\\?\$")
_ESCAPED = re.compile(r"\\([_#%&{}*`-])")
_TIMES = re.compile(r"(?<=\d)\s*\*{1,2}\s*(?=[\d.(-])")
_EMPHASIS = re.compile(r"[*`]+|(?<![A-Za-z0-9])_+|_+(?![A-Za-z0-9])|</?(?:b|i|u|em|strong|h[1-6]|br)\s*/?>")
_MOST_NESTED = 8
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])(?:\[[^\[\]]*\])*")
_BRACE = re.compile(r"\s*\{")
_UNESCAPED = re.compile(r"\\.|[{}]", re.DOTALL)
"""A brace, or a character behind a backslash that is passed over."""
_BARE = re.compile(r"[ \t]*(?=\(?[-+\u2212]?(?:\d|\.\d|\\(?!boxed|fbox|framebox)[A-Za-z])|[A-Za-z](?![A-Za-z]))")
"""The beginning of an answer that stands behind a box's command without braces; a word is none."""
_INTEGER = re.compile(r"[+-]?\d+")
_GROUPED = re.compile(r"[+-]?\d{1,3}(?:(?:,\d{3})+|(?: \d{3})+)")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def folded(text: str) -> str:
    """Return ``text`` with ASCII for its look-alikes: minus signs, fullwidth forms, mathematical letters and digits."""
    if text.isascii():
        return text
    text = _EN_DASH.sub("-", text.translate(_MINUS | _OTHERS))
    return text if text.isascii() else "".join(map(_folded_character, text))


def plain(text: str) -> str:
    """Return ``text`` without LaTeX styles, dollars, Markdown emphasis and thousands separators in TeX or Unicode.

    Commas stay, because a comma may also separate values; a fraction of two numbers becomes ``a/b``.
    """
    text = _THOUSANDS.sub("", _COLOUR.sub("", folded(text)).replace("\\!", "").replace("{,}", ","))
    for _ in range(_MOST_NESTED):
        if (simpler := _STYLE.sub(r"\1", text)) == text:
            break
        text = simpler
    text = _FRACTION.sub(_slashed, _SWITCH.sub("", text))
    text = _ESCAPED.sub(r"\1", _DELIMITER.sub("", _SPACE.sub(" ", text)))
    return _EMPHASIS.sub("", _TIMES.sub(" x ", text))


def _folded_character(character: str) -> str:
    # Not every character: a superscript's compatible form is a digit like any other.
    fullwidth = "\uff01" <= character <= "\uff5e"
    if fullwidth or (character > "\x7f" and unicodedata.category(character) in ("Lu", "Ll", "Nd")):
        return unicodedata.normalize("NFKC", character)
    return character


def _slashed(found: re.Match[str]) -> str:
    before = f"{found['whole']} " if found["whole"] else ""  # a mixed number
    return f"{before}{found['top']}/{found['bottom']}"


def final_answer(text: str) -> str | None:
    """Return the content of a text's last box, boxes within it included; ``None`` where no box is closed.

    Without braces (``\\boxed 73``) the answer ends at white space, a dollar or the end of the formula. A generation
    that was cut off within its last box is read by the box before, and an empty box is a mention of one.
    """
    boxes = box_contents(text)
    return boxes[-1][0] if boxes else None


def box_contents(text: str) -> list[tuple[str, int]]:
    """Return the content of each closed box that holds something, with the place where the box ends."""
    found: list[tuple[str, int]] = []
    end = 0
    closings = _closing_braces(text)
    for box in _BOX.finditer(text):
        if box.start() < end:
            continue  # within the box before
        content: str | None = None
        if opening := _BRACE.match(text, box.end()):
            closing = closings.get(opening.end() - 1)
            if closing is not None:
                content, end = text[opening.end() : closing], closing + 1
        elif bare := _BARE.match(text, box.end()):
            end = _bare_end(text, bare.end(), closings)
            content = text[bare.end() : end].rstrip(".,;:!?*")
        if content is not None and content.strip():
            found.append((content.strip(), end))
    return found


def integer_answer(answer: str) -> int | None:
    """The integer that an answer is, dressed as contest answers are (``$073$``, ``\\textbf{(073)}``, ``1{,}000``).

    ``None`` for anything that would have to be computed.
    """
    undressed = plain(answer).strip().rstrip(".").strip()
    while undressed[:1] + undressed[-1:] in ("()", "{}"):
        undressed = undressed[1:-1].strip()
    if _GROUPED.fullmatch(undressed):  # "2,4" is two answers
        undressed = re.sub("[, ]", "", undressed)
    return int(undressed) if len(undressed) <= 32 and _INTEGER.fullmatch(undressed) else None


def _closing_braces(text: str) -> dict[int, int]:
    """Return where each brace is closed, by where it is opened; escaped braces do not count."""
    closings: dict[int, int] = {}
    open_at: list[int] = []
    for brace in _UNESCAPED.finditer(text):
        if brace[0] == "{":
            open_at.append(brace.start())
        elif brace[0] == "}" and open_at:
            closings[open_at.pop()] = brace.start()
    return closings


def _bare_end(text: str, start: int, closings: Mapping[int, int]) -> int:
    """Return where an answer without braces of its own ends."""
    at = start
    while (
        at < len(text) and not text[at].isspace() and text[at] not in "$}" and text[at : at + 2] not in ("\\)", "\\]")
    ):
        closing = closings.get(at) if text[at] == "{" else at
        if closing is None:
            break
        at = closing + 1
    return at


def string_match_all(completion: str, references: Sequence[str]) -> tuple[float, ...]:
    """One mark a reference: whether it stands in the completion, in any case of letters."""
    said = completion.lower()
    return tuple(float(reference.lower() in said) for reference in references)


def substring_exact_match(completion: str, reference: str) -> float:
    """Return 1 where the reference stands in the completion, whatever case, punctuation, articles and blanks are."""
    return float(normalized(reference) in normalized(completion))


def exact_match(completion: str, reference: str) -> float:
    """Return 1 where the completion's first line, what follows ``label:`` in it, is the reference."""
    line = completion.strip().partition("\n")[0]
    return float(normalized(re.split(r"(?i)label:", line)[-1]) == normalized(reference))


def normalized(text: str) -> str:
    """Return a text lowered, without punctuation and articles, its words a blank apart (SQuAD's normalization)."""
    bare = text.lower().translate(_PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())
