"""Papers' declarations: those that ship are whole, a malformed one is refused, and a printed number finds its row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from longdecode.evals.analysis.declaration import DeclarationError, Ours, load_declaration, load_declarations
from longdecode.evals.analysis.query import Query

FOLDER = Path(__file__).parents[3] / "reporting" / "papers"
PAPERS = load_declarations(FOLDER)


def test_every_paper_is_declared() -> None:
    assert {"lychee", "nosa", "retro", "tokenswift"} <= set(PAPERS)
    assert all(name == paper.method for name, paper in PAPERS.items())


def test_averages_of_complete_rows_are_those_in_print() -> None:
    """Means of the eight tasks, worked out anew; also a check that no task was typed wrong."""
    table = PAPERS["lychee"].tables["longbench"]
    tasks = [name for name in table.columns if name != "avg"]
    whole = [row for row in table.rows if all(row.get(task) is not None for task in tasks)]
    assert len(whole) == 6
    for row in whole:
        assert sum(row[task] for task in tasks) / 8 == pytest.approx(row["avg"], abs=0.0101), row


@pytest.mark.parametrize("name", PAPERS)
def test_queries_name_columns_that_tables_have(name: str) -> None:
    """A misspelt column would leave every cell grey."""
    from longdecode.evals.analysis import comparisons, measures
    from longdecode.evals.summary import COLUMNS as SUMMARY
    from longdecode.evals.throughput.summary import COLUMNS as SPEED

    known = {
        "summary": SUMMARY,
        "speed": {*SPEED, "variant"},
        "comparisons": comparisons.COLUMNS,
        "measures": measures.COLUMNS,
    }
    paper, asked = PAPERS[name], list[Query]()
    for table in paper.tables.values():
        if table.ours:
            found = [table.ours.query_of(row, column) for row in table.rows for column in table.columns]
            assert any(found), f"{name}: no printed number of the table has a query"
            asked += [query for query in found if query]
    asked += [query for claim in paper.claims for query in (claim.like, claim.best) if query]
    for query in asked:
        assert set(query.where) <= set(known[query.table]), query
        assert query.longest is None or query.longest in known[query.table]


def test_numbers_are_worded_as_in_print() -> None:
    paper = PAPERS["lychee"]
    table, row, column = paper.printed(paper.claims[3])
    assert (table.text(row, column), table.mark(row, column)) == ("up to 7.0", "digest A; digest B; digest C")
    longbench = paper.tables["longbench"]
    assert longbench.text(longbench.rows[3], "narrativeqa") == ""  # not found in print


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mark": "hearsay"}, "without explanation"),
        ({"speed": 3}, r"a row has \['speed'\]"),
        ({"mark": None}, "lacks"),
        ({"baseline": "tidal"}, "named twice"),
    ],
)
def test_a_malformed_row_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    values = yaml.safe_load((FOLDER / "lychee.yaml").read_text(encoding="utf-8"))
    row = values["tables"]["latency"]["rows"][0]
    row |= {key: value for key, value in change.items() if value is not None}
    for key in [key for key, value in change.items() if value is None]:
        del row[key]
    with pytest.raises(DeclarationError, match=said):
        load_declaration(written(tmp_path, values))


def test_a_claim_without_a_number_in_print_is_refused(tmp_path: Path) -> None:
    values = yaml.safe_load((FOLDER / "lychee.yaml").read_text(encoding="utf-8"))
    values["claims"][0]["published"]["context"] = 7
    with pytest.raises(DeclarationError, match="names 0 rows"):
        load_declaration(written(tmp_path, values))


def test_a_key_that_the_table_lacks_is_refused(tmp_path: Path) -> None:
    values = yaml.safe_load((FOLDER / "lychee.yaml").read_text(encoding="utf-8"))
    values["tables"]["latency"]["ours"]["keys"] = {"base": "over"}
    with pytest.raises(DeclarationError, match=r"ours names \['base'\]"):
        load_declaration(written(tmp_path, values))


def test_a_printed_number_becomes_a_query() -> None:
    ours = Ours(
        query=Query(table="summary", where={"suite": "ruler"}), keys={"budget": "budget"}, column="task",
        values={"method, head": {"nosa, dma": {"model": "fork"}}},
    )  # fmt: skip
    found = ours.query_of({"method": "nosa", "head": "dma", "budget": "1024"}, "vt")
    assert found is not None
    assert found.where == {"suite": "ruler", "budget": "1024", "task": "vt", "model": "fork"}
    assert ours.query_of({"method": "nosa", "head": "other", "budget": "1024"}, "vt") is None


def written(folder: Path, values: dict[str, Any]) -> Path:
    path = folder / "paper.yaml"
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")
    return path
