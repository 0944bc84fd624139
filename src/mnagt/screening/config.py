"""Settings of a screening."""

from dataclasses import dataclass
from typing import Annotated, Literal

from mnagt.errors import InputError
from mnagt.settings import Ge, Gt, Le, Lt, Settings


@dataclass(frozen=True)
class ScreenConfig(Settings):
    """What a screening writes. It goes on only with the settings that it was begun with."""

    smiles: str | None = None
    """The column of SMILES, or several with commas between; by default named as in training, or guessed."""
    top_k: Annotated[int, Ge(0), Le(10_000)] = 0
    """Rows that are the best by one column, kept in top.csv; 0 for none."""
    by: str | None = None
    """The column of numbers that says which rows are the best."""
    lowest: bool = False
    """Whether small numbers are the best."""
    level: Annotated[float, Gt(0), Lt(1)] | None = None
    """Add prediction sets or intervals that hold the target this often; the model must be calibrated."""
    format: Literal["auto", "csv", "parquet"] = "auto"
    """Of the shards that are written; auto is that of the input."""
    quote_formulas: bool = False
    """In CSV, write ' before texts that a spreadsheet would take for formulas (=, +, -, @)."""
    rows_per_shard: Annotated[int, Ge(1000)] = 100_000
    """Rows of a shard at most; what is under way when the process is killed is done again by shards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if bool(self.top_k) != (self.by is not None):
            raise InputError("top_k and by go together: how many rows, and the column that says which (--by distance)")
        if self.lowest and not self.top_k:
            raise InputError("lowest is for top_k rows; say how many (--top-k 1000)")
