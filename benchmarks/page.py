"""What the kept figures say, as one HTML page with pictures, beside the targets that the benchmarks themselves set.

Nothing is timed here. The JSON files that the benchmarks wrote are read from a folder; into it go ``benchmarks.html``,
which needs nothing from outside, and its pictures as SVG in ``benchmarks/``. A file that is not there is named on the
page; a variant without a figure is shown with the reason.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import groupby
from pathlib import Path

from markupsafe import Markup
from page_sections import PARTS, NamedPicture, Part, Record, Target, format_figure, note

from mnagt.errors import InputError
from mnagt.files import read_json, write_text
from mnagt.reports.page import html
from mnagt.version import __version__

RESULTS = Path(__file__).parents[1] / "results"


def write_page(folder: Path) -> Path:
    """The page and its pictures, from the figures in ``folder``."""
    found = {part.file: read_json(folder / part.file) for part in PARTS if (folder / part.file).exists()}
    if not found:
        raise InputError(f"{folder}: none of the benchmarks' files is there; `make benchmarks` writes them")
    blocks = _headline(found)
    for part in (part for part in PARTS if part.file in found):
        body = list(part.show(found[part.file]))
        for each in body:
            if isinstance(each, NamedPicture):
                each.picture.save(folder / "benchmarks" / each.name, formats=("svg",))
        blocks.append(_section(part, found[part.file], body, _describe_date(folder / part.file, found[part.file])))
    page = folder / "benchmarks.html"
    write_text(page, html.page("mnagt: benchmarks", blocks, ("benchmarks/page.py", f"mnagt {__version__}")))
    return page


def _headline(found: Mapping[str, Record]) -> list[Markup]:
    targets = [(part, target) for part in PARTS if part.file in found for target in part.targets(found[part.file])]
    missed = [(part, target) for part, target in targets if not target.is_reached]
    tiles = [("targets reached", str(len(targets) - len(missed)), f" of {len(targets)}")]
    for kind in ("GPU", "CPU"):
        epochs = found.get(f"epoch-{kind.lower()}.json", {}).get("epochs", {})
        faster = [format_figure(of["variants"].get("padded", {}).get("speed_up")) for of in epochs.values()]
        if faster:
            tiles.append((f"padded over ours, steps on {' / '.join(epochs)}, {kind}", " / ".join(faster), " x"))
    text = "Ours beside what others do, each comparison in one run. Every figure is read from a file that a "
    text += "script in benchmarks/ wrote, and the targets are the scripts' own. All axes are logarithmic."
    blocks: list[Markup] = [html.title("Benchmarks"), html.paragraph(text, "lead"), html.tiles(tiles)]
    if missed:
        lines = [f"{part.title}: {t.what} {t.measured}, wanted {t.wanted}{_aside(t.note)}" for part, t in missed]
        blocks.append(html.notice(["Missed:"], lines))
    if absent := [part.file for part in PARTS if part.file not in found]:
        blocks.append(html.notice([f"Not there, and left out: {', '.join(absent)}."]))
    return blocks


def _section(part: Part, figures: Record, body: Iterable[Markup | NamedPicture], dated: str) -> Markup:
    script = f"benchmarks/{Path(str(part.script.__file__)).name}"
    docstring = (part.script.__doc__ or "").strip().split("\n\n")
    return html.section(
        part.title,
        [
            _targets([*part.targets(figures)]),
            *_group_pictures(body),
            html.details(f"How it was measured: {script}", [note(paragraph) for paragraph in docstring]),
            note(f"{part.file}, {dated}: {_machine(figures)}."),
        ],
    )


def _group_pictures(body: Iterable[Markup | NamedPicture]) -> Iterator[Markup]:
    """The blocks; pictures that follow each other stand side by side."""
    for is_picture, group in groupby(body, lambda each: isinstance(each, NamedPicture)):
        if is_picture:
            yield html.grid([html.figure(each.picture) for each in group if isinstance(each, NamedPicture)])
        else:
            yield from (each for each in group if isinstance(each, Markup))


def _targets(targets: Sequence[Target]) -> Markup:
    if not targets:
        return note("No targets were set.")
    lines = []
    for target in targets:
        word = "reached" if target.is_reached else "missed"
        what = target.what + _aside(target.note.split(";")[0])
        lines.append((what, target.wanted, target.measured, html.mark(word, word)))
    return html.table(("target", "wanted", "measured", ""), lines)


def _aside(words: str) -> str:
    return f" ({words})" if words else ""


def _machine(figures: Record) -> str:
    """The machine and settings that figures come from."""
    machine = figures["machine"]
    parts = [figures[key] for key in ("gpu", "device", "attention") if isinstance(figures.get(key), str)]
    parts += [f"{figures['bytes_per_second'] / 1e12:.2f} TB/s"] if "bytes_per_second" in figures else []
    parts.append(f"{machine['cpu']}, {machine['cores']} cores, load {machine['load']:.1f}")
    versions = ("python", "torch", "torch_geometric", "numpy", "mnagt")
    parts.append(", ".join(f"{name} {machine[name]}" for name in versions))
    settings = ("dtype", "precision", "threads", "batches", "rounds", "workers", "seed")
    given = [f"{name} {figures[name]}" for name in settings if isinstance(figures.get(name), str | int)]
    return "; ".join([*parts, ", ".join(given)] if given else parts)


def _describe_date(path: Path, figures: Record) -> str:
    """When the figures were taken; where they do not say it, when the file was committed or else written."""
    if "date" in figures:
        return f"measured {figures['date'][:10]}"
    if not _git(path, "status", "--porcelain") and (day := _git(path, "log", "-1", "--format=%cs")):
        return f"committed {day}"
    return f"written {date.fromtimestamp(path.stat().st_mtime)}"


def _git(path: Path, *words: str) -> str:
    """What git says about a file; nothing where there is no git."""
    try:
        process = subprocess.run(["git", *words, "--", path.name], cwd=path.parent, capture_output=True, text=True)
    except OSError:
        return ""
    return process.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to read from and write into [results]")
    try:
        print(write_page(parser.parse_args().results))
    except InputError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
