"""Take off what an answer is dressed in: Unicode look-alikes, LaTeX and Markdown; its letters and digits stay."""

from __future__ import annotations

import re
import unicodedata

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
