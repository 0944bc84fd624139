"""Small data sets in OGB's layout, to be changed by tests."""

import gzip
import itertools
import zipfile
from collections.abc import Mapping
from pathlib import Path

_SPLIT = {"train": "0\n3\n", "valid": "2\n", "test": "1\n"}

MOLECULES = {
    "raw/num-node-list": "3\n2\n1\n2\n",
    "raw/num-edge-list": "2\n1\n0\n0\n",
    "raw/edge": "1,0\n1,2\n0,1\n",
    "raw/node-feat": "".join(f"{v},0,4,5,3,0,2,0,{v % 2}\n" for v in (5, 6, 5, 118, 7, 5, 7, 5)),
    "raw/edge-feat": "0,0,0\n3,0,1\n1,5,0\n",
    "raw/graph-label": "1,nan\n0.0,1\n,0\n1.0,\n",
    "mapping/mol": "mol_id,works,kills,smiles\nm0,1,,CNC\nm1,0,1,CO\nm2,,0,C\nm3,1,,C.O\n",
    **{f"split/scaffold/{part}": text for part, text in _SPLIT.items()},
}
"""Four molecules: a path of 3 atoms, two atoms, one, and two without a bond. Two questions."""

CODE = {
    "raw/num-node-list": "4\n3\n1\n5\n",
    "raw/num-edge-list": "3\n2\n0\n4\n",
    "raw/edge": "0,1\n1,2\n1,3\n0,1\n0,2\n0,1\n1,2\n2,3\n3,4\n",
    "raw/node-feat": "0,0\n1,1\n2,2\n2,3\n0,0\n2,1\n1,0\n0,0\n0,0\n1,0\n2,3\n2,2\n2,1\n",
    "raw/node_depth": "0\n1\n2\n2\n0\n1\n1\n0\n0\n1\n2\n3\n23\n",
    "raw/node_dfs_order": "0\n1\n2\n3\n0\n1\n2\n0\n0\n1\n4\n3\n2\n",
    "raw/node_is_attributed": "0\n1\n1\n1\n0\n1\n0\n0\n0\n0\n1\n1\n1\n",
    "raw/graph-label": "get user\nset\nget user name of the old one\nset user\n",
    "mapping/typeidx2type": "type idx,type\n0,Module\n1,FunctionDef\n2,Name\n",
    "mapping/attridx2attr": 'attr idx,attr\n0,__NONE__\n1,"a,\nb"\n2,""""\n3,x\n',
    **{f"split/project/{part}": text for part, text in _SPLIT.items()},
}
"""Four methods. In the last one, depth-first order is not that of the nodes, and one node lies too deep to tell."""


def folder(
    path: Path, files: Mapping[str, str] | Mapping[str, bytes] = MOLECULES, without: tuple[str, ...] = ()
) -> Path:
    """The files below ``path``, as OGB keeps them."""
    for field, text in files.items():
        if field not in without:
            file = path / f"{field}.csv.gz"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(gzip.compress(text.encode() if isinstance(text, str) else text, mtime=0))
    return path


def zipped(folder: Path, path: Path, within: str = "") -> Path:
    """The files of ``folder`` as a zip, below ``within``."""
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(folder.rglob("*.gz")):
            archive.write(file, within + file.relative_to(folder).as_posix())
    return path


def beginning(path: Path, out: Path, graphs: int) -> Path:
    """The first graphs of the data set in the folder ``path``, without its split, as a folder."""

    def lines(field: str, count: int) -> list[str]:
        with gzip.open(path / f"{field}.csv.gz", "rt") as file:
            return list(itertools.islice(file, count))

    counts = {
        "node": sum(map(int, lines("raw/num-node-list", graphs))),
        "edge": sum(map(int, lines("raw/num-edge-list", graphs))),
    }
    for file in path.glob("raw/*.gz"):
        field = file.name.removesuffix(".csv.gz")
        count = counts.get(field[:4], graphs)
        folder(out, {f"raw/{field}": "".join(lines(f"raw/{field}", count))})
    (out / "mapping").mkdir()
    for file in path.glob("mapping/*.gz"):
        (out / "mapping" / file.name).write_bytes(file.read_bytes())
    return out
