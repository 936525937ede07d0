"""Write the data of a figure: what is drawn, and what is the same in every row only once."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from longdecode.evals.store import write_table


def write_data(path: Path, data: pd.DataFrame) -> str:
    """Write a figure's rows as CSV without the columns that hold one value in all of them.

    Returns:
        Those columns with their values, as ``name=value; name=value``; empty ones are not named.
    """
    same = [name for name in data.columns if len(data) > 1 and data[name].nunique(dropna=False) == 1]
    write_table(path, data.drop(columns=same))
    first = {name: data[name].iloc[0] for name in same}
    return "; ".join(f"{name}={value}" for name, value in first.items() if pd.notna(value) and value != "")
