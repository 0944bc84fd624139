"""SDF files as tables: a row a molecule, with its SMILES by RDKit, its title and its properties."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mnagt.data.readers.attribute_columns import AttributeColumns
from mnagt.data.readers.molecule_reader import rdkit_version
from mnagt.data.readers.text_table import Table, read_text
from mnagt.errors import InputError, join_names

SUFFIX = ".sdf"
SMILES, NAME = "smiles", "name"
"""The columns of structures and of titles."""

_END_OF_RECORD, _END_OF_STRUCTURE = "$$$$", "M  END"
_log = logging.getLogger(__name__)


class Record(NamedTuple):
    """A molecule of the file."""

    line: int
    """Its first, counted from 1."""
    structure: str
    """The MOL block."""
    properties: dict[str, str]


def read_sdf(path: Path) -> Table:
    """The table of an SDF file: columns ``smiles``, ``name`` (the title) and one for each property.

    A structure that RDKit cannot read has no SMILES, and is reported with its line. A property that is called as one
    of the first two columns has '(property)' after its name.
    """
    rdkit_version()
    from rdkit.Chem import MolFromMolBlock, MolToSmiles
    from rdkit.rdBase import BlockLogs

    lines, unread = [], []
    columns = AttributeColumns("molecules", str(path), lambda row, name: f"{path}, line {lines[row]}, {name}")
    with BlockLogs():
        for record in _iterate_records(read_text(path)):
            molecule = MolFromMolBlock(record.structure)
            if molecule is None:
                unread.append(f"line {record.line}")
            title = record.structure.split("\n", 1)[0].strip()
            smiles = "" if molecule is None else MolToSmiles(molecule)
            properties = {
                f"{name} (property)" if name in (SMILES, NAME) else name: text
                for name, text in record.properties.items()
            }
            lines.append(record.line)
            columns.add({SMILES: smiles, NAME: title, **properties})
    if not lines:
        raise InputError(f"{path}: no molecule in it; an SDF file has records that end with {_END_OF_RECORD}")
    if unread:
        _log.warning("%s: %d structures cannot be read: %s", path, len(unread), join_names(unread))
    texts = {name: ["" if text is None else text for text in column] for name, column in columns.values.items()}
    return Table(str(path), texts, lines)


def _iterate_records(text: str) -> Iterator[Record]:
    """The records of a file; the last may lack its end."""
    first, lines = 1, text.replace("\r\n", "\n").split("\n")
    for number, line in enumerate([*lines, _END_OF_RECORD], start=1):
        if line.rstrip() == _END_OF_RECORD:
            record = lines[first - 1 : number - 1]
            if any(each.strip() for each in record):
                yield _parse_record(first, record)
            first = number + 1


def _parse_record(first: int, lines: list[str]) -> Record:
    ends = [index for index, line in enumerate(lines) if line.rstrip() == _END_OF_STRUCTURE]
    end = ends[0] + 1 if ends else len(lines)
    properties: dict[str, list[str]] = {}
    name = None
    for line in lines[end:]:
        if line.startswith(">") and "<" in line:
            name = line[line.index("<") + 1 : line.rindex(">")].strip()
            properties[name] = []
        elif name is not None and line.strip():
            properties[name].append(line.strip())
        else:
            name = None
    return Record(first, "\n".join(lines[:end]) + "\n", {name: " ".join(texts) for name, texts in properties.items()})
