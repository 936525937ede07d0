"""Make the source of a run's samples from its settings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from longdecode.engine.decoder import Decoder
from longdecode.engine.errors import UnsupportedCellError
from longdecode.engine.tokenizer import TextTokenizer
from longdecode.evals.fingerprint import hash_texts
from longdecode.evals.training_spec import RoleTraining
from longdecode.training.miniature.books import book_folder
from longdecode.training.roles.data.batch import SampleSource
from longdecode.training.roles.data.hotpotqa import HotpotQA, read_hotpotqa, unasked, without_closed_book
from longdecode.training.roles.data.miniature import MiniPasskey, MiniTwoHop
from longdecode.training.roles.data.passkey import Passkey, book_haystack, generated_haystack


def sample_source(
    run: RoleTraining, decoder: Decoder, tokenizer: TextTokenizer, data: Mapping[str, Path | None]
) -> SampleSource:
    """Return the samples that a run trains on.

    Args:
        data: the configuration's ``data``: ``pg19`` (books for passkeys), ``hotpotqa``, and ``longbench``, whose
            questions are left out of the latter.

    Raises:
        DataUnavailableError: the data is not here; the message says how to fetch it.
        UnsupportedCellError: the miniature's data on a model whose tokens are not bytes.
    """
    first_answer = run.objective != "code"
    if run.data == "hotpotqa":
        questions = unasked(every := read_hotpotqa(data.get("hotpotqa")), data.get("longbench"))
        kept = without_closed_book(questions, decoder, tokenizer, run.steps * run.batch)
        source: SampleSource = HotpotQA(tokenizer, kept, first_answer)
        left = f"{len(every) - len(questions)} of LongBench's left out"
        source.read = [f"{len(kept)} questions, {left}, sha256 {hash_texts(asked.question for asked in kept)}"]
        return source
    if run.data == "passkey":
        return Passkey(tokenizer, generated_haystack(tokenizer), run.questions, run.passkey_words)
    if run.data == "passkey_books":
        hay, books = book_haystack(tokenizer, book_folder(data.get("pg19")), run.contexts[1])
        source = Passkey(tokenizer, hay, run.questions, run.passkey_words)
        source.read = books
        return source
    if not tokenizer.byte_level:
        raise UnsupportedCellError(
            f"run {run.name}: {run.data} needs a model whose tokens are bytes, which {run.model} is not; its data is "
            "passkey or hotpotqa"
        )
    return MiniPasskey(run.questions) if run.data == "mini_passkey" else MiniTwoHop(first_answer)
