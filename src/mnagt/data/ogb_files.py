"""Where the files of a data set in OGB's layout are, in a folder or a zip: ``raw/``, ``mapping/`` and ``split/``."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from mnagt.data.archives import Archive
from mnagt.errors import InputError

SUFFIX = ".csv.gz"
FIRST = f"raw/num-node-list{SUFFIX}"
"""The file that tells the layout."""
MAPPINGS = ("mapping/mol", "mapping/typeidx2type", "mapping/attridx2attr")
OFFICIAL_SPLITS = ("scaffold", "project")

_PATTERNS = [f"{above}{inside}" for above in ("", "*/") for inside in ("raw/*.gz", "mapping/*.gz", "split/*/*.gz")]


@dataclass(frozen=True)
class OgbFiles:
    """The files of one data set, by their path without ``.csv.gz``: 'raw/edge', 'split/scaffold/train', ..."""

    name: str
    archive: Archive
    members: dict[str, str]

    def __contains__(self, field: str) -> bool:
        return field in self.members

    @classmethod
    def found(cls, path: Path) -> "OgbFiles":
        """Those in a zip or a folder, or in the folder above if it is ``raw/`` that was given."""
        path = path.parent if path.is_dir() and path.name == "raw" else path
        archive = Archive(path)
        names = archive.names(*_PATTERNS)
        heads = {name.removesuffix(FIRST) for name in names if f"/{name}".endswith(f"/{FIRST}")}
        heads = {head for head in heads if head.count("/") == min(head.count("/") for head in heads)}
        if not heads:
            raise InputError(f"{path}: no {FIRST} inside; expected a data set in OGB's layout")
        if len(heads) > 1:
            one, other, *_ = sorted(heads)
            raise InputError(f"{path}: several data sets inside, {one!r} and {other!r}; give one")
        (head,) = heads
        fields = {name.removeprefix(head).removesuffix(SUFFIX): name for name in names if name.startswith(head)}
        read = {field: name for field, name in fields.items() if field in MAPPINGS or not field.startswith("mapping/")}
        return cls(PurePosixPath(head).name or path.resolve().stem, archive, read)

    @property
    def split(self) -> str | None:
        """The kind of split that comes with the data set."""
        kinds = {field.split("/")[1] for field in self.members if field.startswith("split/")}
        official = [kind for kind in OFFICIAL_SPLITS if kind in kinds] or sorted(kinds)
        return official[0] if official else None

    @property
    def paths(self) -> list[Path]:
        """What is read, on disk: the zip, or the files of the folder that count."""
        if not self.archive.path.is_dir():
            return [self.archive.path]
        return [self.archive.path / name for _, name in sorted(self.members.items())]

    def label(self, field: str) -> str:
        """The file of ``field``, as messages name it."""
        return self.archive.label(self.members[field])

    def blocks(self, field: str) -> Iterator[bytes]:
        """The file of ``field`` piece by piece."""
        if field not in self.members:
            raise InputError(f"{self.archive.path}: no {field}{SUFFIX} inside; fetch the data set again")
        return self.archive.blocks(self.members[field])

    def text(self, field: str) -> str:
        try:
            return b"".join(self.blocks(field)).decode()
        except UnicodeDecodeError as error:
            raise InputError(f"{self.label(field)}: not UTF-8 ({error.reason}); write it again") from None


def holds_ogb(path: Path) -> bool:
    """Whether a data set in OGB's layout lies in this zip or folder."""
    if path.is_dir():
        base = path.parent if path.name == "raw" else path
        return (base / FIRST).is_file() or any(base.glob(f"*/{FIRST}"))
    return any(f"/{name}".endswith(f"/{FIRST}") for name in Archive(path).names())
