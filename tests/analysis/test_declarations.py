"""Papers' declarations: those that ship are whole, a malformed one is refused, and a printed number finds its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from longdecode.analysis.declaration import DeclarationError, Ours, PrintedTable, Query, load_declarations
from longdecode.analysis.stage import printed_of

FOLDER = Path(__file__).parents[2] / "reporting" / "papers"
PAPERS = load_declarations(FOLDER)
LYCHEE = PAPERS["lychee"]
EACH = pytest.mark.parametrize("paper", PAPERS.values(), ids=PAPERS)


def test_averages_of_complete_rows_are_those_in_print() -> None:
    """Means of the eight tasks, worked out anew; also a check that no task was typed wrong."""
    table, keys = LYCHEE.tables["longbench"], ("model", "method", "budget")
    means = {tuple(row[key] for key in keys): row["avg"] for row in LYCHEE.tables["longbench_mean"].rows}
    whole = [row for row in table.rows if all(row.get(task) is not None for task in table.columns)]
    assert len(whole) == 6
    for row in whole:
        mean = means[tuple(row[key] for key in keys)]
        assert sum(row[task] for task in table.columns) / 8 == pytest.approx(mean, abs=0.0101), row


@EACH
def test_queries_name_columns_that_tables_have(paper: Any) -> None:
    """A misspelt column would leave every cell grey."""
    from longdecode.analysis import cells, comparisons, measures

    known = {
        "summary": cells.COLUMNS, "speed": {*cells.SPEED_COLUMNS, "variant", "method"},
        "comparisons": comparisons.COLUMNS, "measures": measures.COLUMNS,
    }  # fmt: skip
    asked = list[Query]()
    for table in paper.tables.values():
        if table.ours:
            found = [table.ours.query_of(row, column) for row in table.rows for column in table.columns]
            assert any(found), f"{paper.name}: no printed number of the table has a query"
            asked += [query for query in found if query]
    asked += [query for claim in paper.claims for query in (claim.like, claim.best, claim.bound) if query]
    asked += [claim.instead.query for claim in paper.claims if claim.instead]
    for query in asked:
        assert set(query.where) <= set(known[query.table]), query
        assert query.longest is None or query.longest in known[query.table]


def test_numbers_are_worded_as_in_print() -> None:
    printed = printed_of(LYCHEE, LYCHEE.claims[3])
    assert (printed.text, printed.mark, printed.number) == ("up to 7.0", "summary 1; summary 2; summary 3", 7.0)
    assert LYCHEE.tables["longbench"].text({"narrativeqa": None}, "narrativeqa") == ""  # not found in print


@EACH
def test_rows_have_their_keys_once_known_columns_and_explained_marks(paper: Any) -> None:
    for table in paper.tables.values():
        places = [tuple(row[key] for key in table.keys) for row in table.rows]
        assert len(set(places)) == len(places), places
        known = {*table.keys, *table.columns, "mark", "marks", "form", "digits"}
        known |= {f"{column}_std" for column in table.columns}
        for row in table.rows:
            assert {*table.keys, "mark"} <= set(row) <= known, row
            marks = "; ".join([row["mark"], *(row.get("marks") or {}).values()])
            assert set(marks.split("; ")) <= set(paper.marks), row
        if table.ours:
            named = {*table.ours.keys, *", ".join(table.ours.values).split(", ")} - {""}
            assert named <= {*table.keys, "column"}, named


@EACH
def test_claims_have_a_number_in_print_conditions_and_a_reason(paper: Any) -> None:
    for claim in paper.claims:
        printed = printed_of(paper, claim)
        assert all((printed.text, printed.mark, claim.conditions, claim.why, claim.run)), claim.claim


def test_differences_of_printed_numbers_are_taken_and_shown_as_such() -> None:
    printed = {claim.claim: printed_of(LYCHEE, claim) for claim in LYCHEE.claims}
    gain = printed["LongBench over full attention at 4,096 tokens, Llama-3"]
    assert (gain.text, gain.mark) == ("+0.74", "summary 1: 33.07 \u2212 32.33") and gain.number == pytest.approx(0.74)
    words = printed["Ratio is the best of the four selection strategies at equal sparsity"]
    assert (words.text, words.number) == ("best of four", None)
    assert {p.text for p in printed.values()} >= {"+0.46", "+1.72", "+1.01", "+0.94", "+1.9", "+6.7"}


def test_a_claim_without_a_number_in_print_is_refused() -> None:
    published = {**LYCHEE.claims[0].published, "context": 7}
    with pytest.raises(DeclarationError, match="names 0 rows"):
        printed_of(LYCHEE, LYCHEE.claims[0].model_copy(update={"published": published}))


@pytest.mark.parametrize(("text", "said"), [("claims: [", "while parsing"), ("claims: []", "summary")])
def test_a_file_that_is_no_declaration_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "paper.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(DeclarationError, match=rf"(?s)paper\.yaml.*{said}"):
        load_declarations(tmp_path)


def test_a_printed_number_becomes_a_query() -> None:
    ours = Ours(
        query=Query(table="summary", where={"suite": "ruler"}), keys={"budget": "budget"}, column="task",
        values={"method, head": {"nosa, dma": {"model": "fork"}}},
    )  # fmt: skip
    found = ours.query_of({"method": "nosa", "head": "dma", "budget": "1024"}, "vt")
    assert found is not None and found.where == {"suite": "ruler", "budget": "1024", "task": "vt", "model": "fork"}
    assert ours.query_of({"method": "nosa", "head": "other", "budget": "1024"}, "vt") is None


def test_a_row_with_lists_stands_for_one_each_and_needs_all_its_numbers() -> None:
    given = {"section": "", "unit": "", "digits": 0, "what": "", "keys": ["a", "b"], "columns": ["c"]}
    table = PrintedTable.model_validate(given | {"rows": [{"a": 1, "b": [2, 3], "mark": "m", "c": [4, 5]}]})
    assert [(r["a"], r["b"], r["c"]) for r in table.rows] == [(1, 2, 4), (1, 3, 5)]
    with pytest.raises(ValueError, match="c: a number for each of 2 rows"):
        PrintedTable.model_validate(given | {"rows": [{"a": [1, 2], "b": 3, "mark": "m", "c": [4]}]})
