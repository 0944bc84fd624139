"""Builds sdist and wheel and checks them: `make release`.

    python tools/release.py FOLDER [ADDRESS]

A package index shows README alone, where relative links lead nowhere. ADDRESS is what the repository's files are found
under (``https://.../raw/0.3.0/``) and completes the links. Without it pictures are left out, and links are words.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "src")
PICTURE = re.compile(r'<picture>.*?<img src="([^"]+)"([^>]*)></picture>')
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)")


def complete_links(text: str, address: str) -> str:
    """``text`` with links that lead somewhere from anywhere; pictures are those of the light mode."""
    if address:
        text = PICTURE.sub(rf'<img src="{address}\1"\2>', text)
        return LINK.sub(rf"[\1]({address}\2)", text)
    return LINK.sub(r"\1", PICTURE.sub("", text))


def build(folder: Path, address: str = "") -> list[Path]:
    """The files that a package index takes, in ``folder``."""
    with tempfile.TemporaryDirectory() as scratch:
        for name in NEEDED:
            source, target = ROOT / name, Path(scratch, name)
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("*.egg-info", "__pycache__"))
            else:
                shutil.copy(source, target)
        readme = Path(scratch, "README.md")
        readme.write_text(complete_links(readme.read_text(encoding="utf-8"), address), encoding="utf-8")
        subprocess.run([sys.executable, "-m", "build", "--outdir", folder.resolve(), scratch], check=True)
    files = sorted(folder.glob("mnagt-*"))
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *files], check=True)
    return files


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build(Path(sys.argv[1]), "".join(sys.argv[2:]))
