"""A method from outside the repository, whose files no revision covers, is named with its folder and hash."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from longdecode.evals.fingerprint import folder_hash
from longdecode.evals.records import Record
from longdecode.evals.store import read_records, write_records
from longdecode.methods.registry import METHODS
from longdecode.reporting.build import build_report


@pytest.mark.usefixtures("no_drawing")
def test_provenance_and_the_method_page_name_the_folder(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "my-methods" / "mine"
    shutil.copytree(METHODS.folder / "quest", own)
    card = (own / "card.yaml").read_text(encoding="utf-8")
    (own / "card.yaml").write_text(card.replace("name: quest", "name: mine", 1), encoding="utf-8")
    monkeypatch.setenv(METHODS.variable, str(own.parent))
    folder = make_run(methods=("full", "quest"), suites=("mini_recall",))

    def pages() -> tuple[str, str]:
        build_report(folder / "config.yaml", folder, tmp_path / "report")
        names = ("provenance.html", "method-quest.html")
        provenance, method = ((tmp_path / "report" / name).read_text(encoding="utf-8") for name in names)
        return provenance, method

    assert all("outside the repository" not in page for page in pages())
    for path in (folder / "records").rglob("*/quest/*.parquet"):
        write_records(path, [r.model_copy(update={"method": "mine"}) for r in read_records(path, Record)], Record)
    provenance, method = pages()
    row = f"<code>my-methods/mine</code></td><td><code>{folder_hash(own)}</code>"
    assert row in provenance and str(tmp_path) not in provenance
    assert "outside the repository, in the folder <code>my-methods/mine</code>" in method
