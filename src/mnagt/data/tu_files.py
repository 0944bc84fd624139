"""Where the text files of a TU data set are, in a folder or a zip."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mnagt.data.archives import Archive
from mnagt.errors import InputError

FIELDS = (
    "A",
    "graph_indicator",
    "graph_labels",
    "graph_attributes",
    "node_labels",
    "node_attributes",
    "edge_labels",
    "edge_attributes",
)


@dataclass(frozen=True)
class TuFiles:
    """The text files of one data set, by field: 'A', 'graph_indicator', ..."""

    name: str
    archive: Archive
    members: dict[str, str]

    def __contains__(self, field: str) -> bool:
        return field in self.members

    @classmethod
    def found(cls, path: Path) -> "TuFiles":
        archive = Archive(path)
        members = archive.names("*.txt", "*/*.txt")
        edges = [m for m in members if m.endswith("_A.txt")]
        if not edges:
            raise InputError(f"{path}: no NAME_A.txt inside; expected a data set in the TU text layout")
        edges = [m for m in edges if PurePosixPath(m).name in (f"{path.name}_A.txt", f"{path.stem}_A.txt")] or edges
        edges = [m for m in edges if m.count("/") == min(e.count("/") for e in edges)]
        if len(set(edges)) > 1:
            raise InputError(f"{path}: several data sets inside, {edges[0]!r} and {edges[1]!r}; give one")
        stem = edges[0].removesuffix("A.txt")
        present = set(members)
        files = cls(
            name=PurePosixPath(stem).name.removesuffix("_"),
            archive=archive,
            members={field: f"{stem}{field}.txt" for field in FIELDS if f"{stem}{field}.txt" in present},
        )
        if "graph_indicator" not in files:
            raise InputError(f"{path}: no {files.name}_graph_indicator.txt; it says which graph each node belongs to")
        return files

    def label(self, field: str) -> str:
        """The file of ``field``, as messages name it."""
        return self.archive.label(self.members[field])

    def blocks(self, field: str) -> Iterator[bytes]:
        """The file of ``field`` piece by piece."""
        return self.archive.blocks(self.members[field])
