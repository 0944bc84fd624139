"""Lines of tables: a line is a row, so that a file can be cut anywhere and a bad line spoils no other."""

import csv
from collections.abc import Iterator
from typing import BinaryIO

MAX_LINE = 1 << 20
"""Bytes of a line; what a longer one has beyond them is not read."""


def split_line(line: str, delimiter: str | None, width: int | None) -> tuple[list[str], str]:
    """The fields of a line, and what is wrong with it; ``width`` of them, if it is not None.

    Without a ``delimiter`` the line is that of a .smi file: a SMILES and its name.

    >>> split_line("CCO,46.07", ",", 2)
    (['CCO', '46.07'], '')
    >>> split_line('"CCO,46.07', ",", 2)
    (['"CCO', '46.07'], 'a quote that does not end; a line is a row')
    """
    problem = ""
    if delimiter is None:
        fields = [*line.split(maxsplit=1), "", ""][:2]
        fields[1] = fields[1].rstrip()
    elif '"' in line:
        try:
            (fields,) = csv.reader([line], delimiter=delimiter, strict=True)
        except csv.Error as error:
            fields, problem = line.split(delimiter), f"{error}"
            if "end of data" in problem:
                problem = "a quote that does not end; a line is a row"
    else:
        fields = line.split(delimiter)
    if width is None or len(fields) == width:
        return fields, problem
    if line.strip() and not problem:
        problem = f"{len(fields)} fields, and the header has {width}"
    return [*fields, *[""] * width][:width], problem


def iterate_lines(file: BinaryIO, count: int) -> Iterator[tuple[str, str]]:
    """The next lines of a file, and what is wrong with each before it is split."""
    for _ in range(count):
        raw, problem = file.readline(MAX_LINE), ""
        if not raw.endswith(b"\n") and len(raw) == MAX_LINE:
            problem = f"over {MAX_LINE:,} bytes in a line"
            while (rest := file.readline(MAX_LINE)) and not rest.endswith(b"\n"):
                pass
        try:
            line = raw.decode()
        except UnicodeDecodeError as error:
            line, problem = raw.decode(errors="replace"), problem or f"byte 0x{raw[error.start]:02x} is not UTF-8"
        yield line.rstrip("\r\n"), problem
