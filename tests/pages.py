"""The pages and notebooks that show code and commands, and the files that their readers have."""

import json
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from mnagt import RunConfig, TrainConfig, load_dataset, train
from mnagt.cli import main
from mnagt.data.registry import EMBEDDED

ROOT = Path(__file__).parents[1]
USERS = ["engineer", "practitioner", "researcher"]
TINY = {"dim": 8, "depth": 1}
QUICKER = {
    "train": ("--epochs", "2", "--dim", "8", "--depth", "1"),
    "compare": ("--epochs", "2", "--seeds", "1", "--curve-seeds", "0"),
    "tune": ("--epochs", "2", "--trials", "2", "--jobs", "1"),
    "trials": ("--seeds", "1"),
}
"""Options that make a command quick."""


class Block(NamedTuple):
    kind: str
    """python, console or sh; of console only lines with a prompt are commands."""
    text: str

    def lines(self) -> list[str]:
        """The commands of a console or sh block, without the prompt."""
        if self.kind not in ("console", "sh"):
            return []
        lines = self.text.replace("\\\n", " ").splitlines()
        lines = [line.removeprefix("$ ") for line in lines if self.kind == "sh" or line[:2] == "$ "]
        return [line for line in lines if line.strip() and not line.startswith("#")]

    def typed(self) -> list[str]:
        """The commands of a console block that call mnagt: those whose output the page shows."""
        return self.commands() if self.kind == "console" else []

    def commands(self) -> list[str]:
        """Those that call mnagt."""
        return [line for line in self.lines() if "mnagt" in shlex.split(line, comments=True)]


def blocks_of(path: Path) -> list[Block]:
    """The code of a Markdown page or of a notebook, in order."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        return [Block("python", "".join(cell["source"])) for cell in cells_of(path) if cell["cell_type"] == "code"]
    return [Block(*found) for found in re.findall(r"```(python|console|sh|toml|json)\n(.*?)```", text, re.DOTALL)]


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    return json.loads(notebook.read_text(encoding="utf-8"))["cells"]


def words_of(command: str) -> list[str]:
    """What follows ``mnagt`` in a command."""
    words = shlex.split(command, comments=True)
    return words[words.index("mnagt") + 1 :]


def run_python(blocks: list[Block], where: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python among ``blocks`` one after the other; the names that they leave."""
    for block in (block for block in blocks if block.kind == "python"):
        source = block.text
        if source.startswith('"') and not source.startswith('"""'):  # an entry of a registry
            source = f"entry = {{{source}}}"
        exec(compile(source, where, "exec"), names)
    return names


def run_command(command: str, *more: str) -> None:
    """Run a command; an export in a process of its own, since what is traced has no shapes to check."""
    words = [*words_of(command), *more]
    if words[0] == "export":
        subprocess.run([sys.executable, "-m", "mnagt", *words], check=True)
    else:
        assert main(words) == 0, command


def replace_all(text: str, replacements: dict[str, str]) -> str:
    for old, new in replacements.items():
        text = re.sub(old, new, text)
    return text


README = blocks_of(ROOT / "README.md")
DOCS = {path.stem: blocks_of(path) for path in sorted((ROOT / "docs").glob("*.md"))}
TUTORIALS = {name: blocks_of(ROOT / "docs" / "tutorials" / f"{name}.md") for name in USERS}
NOTEBOOKS = {name: ROOT / "notebooks" / f"{name}.ipynb" for name in USERS}


def find_inline(pages: Iterable[Path]) -> list[str]:
    """The code in the running text of pages, each once."""
    texts = (path.read_text(encoding="utf-8") for path in pages if path.name not in ("CHANGELOG.md", "log.md"))
    found = (re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL)) for text in texts)
    return sorted({" ".join(code.split()) for codes in found for code in codes})


INLINE = [code for code in find_inline([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]) if code.startswith("mnagt ")]
"""Commands in running text, often without all their arguments."""
PROGRAMS = re.compile(
    r"(\w+=\S+ )*(make|pip|python|apt|pytest|ray|serve|source|chemprop|torchrun|docker|curl|mnagt) \S"
)
SHOWN_IN_TEXT = [code for code in find_inline([ROOT / "README.md", *ROOT.glob("docs/**/*.md")]) if PROGRAMS.match(code)]
"""Commands in the running text of README and docs, of all programs."""
COMMANDS = [
    (page, command)
    for page, blocks in {"README": README, **DOCS, **TUTORIALS}.items()
    for block in blocks
    for command in block.commands()
]


def fill_desk(folder: Path) -> Path:
    """Write the files and models that the pages speak of into a folder."""

    def save_run(name: str, dataset: str, **settings: Any) -> None:
        config = RunConfig(dataset, "mnagt", TINY, TrainConfig(epochs=1, batch_size=32, **settings), device="cpu")
        train(config, folder / "runs" / name, dataset=load_dataset(dataset))

    smiles = ["C" * (n + 1) + end for n in range(15) for end in ("O", "N")]
    (folder / "my.csv").write_text("smiles,active\n" + "".join(f"{s},{int(s.endswith('N'))}\n" for s in smiles))
    rows = [
        f"{s},{solvent},{n / 10 - k}\n" for n, s in enumerate(smiles[::2]) for k, solvent in enumerate(["O", "CCO"])
    ]
    (folder / "solubility.csv").write_text("solute,solvent,logs\n" + "".join(rows))
    rows = [f'{s},"{[0.1 * i for i in range(n // 2 + 2)]}"\n' for n, s in enumerate(smiles)]
    (folder / "charges.csv").write_text("smiles,charge\n" + "".join(rows))
    chains = ["".join(f"[CH2:{i}]" for i in range(1, n)) for n in range(3, 15)]
    rows = [
        f"[{x}:80]{c}C.[OH-:90]>>[OH:90]{c}C.[{x}-:80],{n + len(x)}\n"
        for n, c in enumerate(chains)
        for x in ("Cl", "I")
    ]
    (folder / "reactions.csv").write_text("rxn,energy\n" + "".join(rows))
    graphs = [
        {"nodes": n, "edges": [[i, i + 1] for i in range(n - 1)], "y": "odd" if n % 2 else "even", "family": n % 5}
        for n in range(2, 42)
    ]
    (folder / "my.jsonl").write_text("".join(json.dumps(graph) + "\n" for graph in graphs))
    raw = folder / "pyg" / "MUTAG" / "raw"  # where TUDataset of PyTorch Geometric looks for it
    with zipfile.ZipFile(EMBEDDED / "MUTAG.zip") as archive:
        archive.extractall(raw)
    (raw / "MUTAG").rename(raw.with_name("files"))
    raw.rmdir()
    raw.with_name("files").rename(raw)
    save_run("mutag", "MUTAG")
    save_run("mine", str(folder / "my.csv"))
    save_run("paths", str(folder / "my.jsonl"))
    for seed, name in enumerate("abc"):
        save_run(name, "MUTAG", seed=seed)
    (folder / "runs" / "nci1").mkdir()
    (folder / "runs" / "nci1" / "not-finite.json").write_text(json.dumps({"dataset": "MUTAG", "graphs": [3, 14]}))
    return folder
