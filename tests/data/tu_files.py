"""A small data set in the TU text layout, to be changed by tests."""

import zipfile
from collections.abc import Mapping
from pathlib import Path

SMALL = {
    "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n",
    "graph_indicator": "1\n1\n1\n2\n2\n3\n4\n4\n",
    "graph_labels": "7\n-1\n7\n3\n",
    "node_labels": "4, 0\n2, 0\n4, 1\n9, 0\n2, 1\n2, 0\n4, 0\n4, 0\n",
    "edge_labels": "1\n1\n0\n0\n5\n5\n",
    "node_attributes": "".join(f"{v}.5, -{v}e-1, 0\n" for v in range(8)),
    "edge_attributes": "0.25\n0.25\n1e3\n1e3\n-2\n-2\n",
}
"""Four graphs: a path of 3 nodes, one edge, a single node, and two nodes without an edge."""


def folder(
    path: Path,
    changed: Mapping[str, str] | Mapping[str, bytes] | None = None,
    name: str = "SMALL",
    without: tuple[str, ...] = (),
) -> Path:
    """``SMALL`` as a folder, with some files changed and some left out."""
    path.mkdir(parents=True, exist_ok=True)
    for field, text in (SMALL | dict(changed or {})).items():
        if field not in without:
            content = text if isinstance(text, bytes) else text.encode()
            (path / f"{name}_{field}.txt").write_bytes(content)
    return path


def zipped(folder: Path, path: Path, within: str = "", compression: int = zipfile.ZIP_DEFLATED) -> Path:
    """The files of ``folder`` as a zip, below ``within``."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{within}{file.name}")
    return path
