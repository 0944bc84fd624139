"""How tables of molecules are read."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from mnagt.errors import InputError
from mnagt.settings import Settings


@dataclass(frozen=True)
class TableConfig(Settings):
    """Settings of reading a table of molecules.

    >>> TableConfig(duplicates="average").duplicates
    'average'
    """

    duplicates: Literal["keep", "average", "drop", "error"] = "keep"
    """Rows of the same molecule (canonical SMILES after salts): keep all of them; average their targets (classes: the
    majority); drop all but one, and all where targets differ; or refuse the table. They are in one part of every split:
    of a given one, the last that has the molecule keeps it, test before validation before training."""
    valid: str | None = None
    """Another table, whose molecules are the validation part."""
    test: str | None = None
    """Another table, whose molecules are the test part; without --valid, some of the training part validate."""
    row_weights: str | None = None
    """Column with the weight of each row in the loss, a number above 0: networks draw rows in proportion to it, other
    models weight them. Scores do not."""
    descriptor_file: str | None = None
    """Another table, with the columns that --descriptors names and the SMILES of all molecules, as they are written; by
    default they are columns of the table of molecules itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.valid and not self.test:
            raise InputError("--valid without --test; give the table of the test part, too")

    @property
    def part_files(self) -> dict[str, str]:
        """The tables of other parts than that of training, by part."""
        return {part: file for part, file in (("valid", self.valid), ("test", self.test)) if file is not None}

    def replace_files(self, change: Callable[[str], str | None]) -> "TableConfig":
        """The same settings with ``change`` of each path."""
        files = {**self.part_files, "descriptor_file": self.descriptor_file}
        return replace(self, **{name: change(file) for name, file in files.items() if file is not None})
