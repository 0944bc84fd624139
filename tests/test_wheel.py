"""The wheel, installed in new virtual environments, trains, predicts and explains, and has its recipes."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import release  # type: ignore[import-not-found]  # noqa: E402

SMOKE = """
import csv, sys
from pathlib import Path
from mnagt.runs.recipes import shipped_recipe
import mnagt
assert not Path(mnagt.__file__).is_relative_to(sys.argv[1]), mnagt.__file__
assert shipped_recipe("NCI1", "gin") is not None
rows = list(csv.DictReader(open("predictions.csv")))
assert len(rows) == 40 and {row["prediction"] for row in rows} <= {"path", "ring"}, rows[:2]
"""


def find_interpreter(version: str) -> str | None:
    """Python of this version: on the path, or among those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = [shutil.which(f"python{version}"), *map(str, sorted(pyenv.glob(f"versions/{version}.*/bin/python")))]
    return next((path for path in reversed(found) if path and _is_version(path, version)), None)


def _is_version(path: str, version: str) -> bool:
    done = subprocess.run(
        [path, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True, text=True
    )
    return done.stdout.strip() == version


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built from this checkout, in an environment of its own."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--wheel", "--outdir", str(folder), str(ROOT)], folder)
    (path,) = folder.glob("*.whl")
    return path


def run(command: list[str], folder: Path) -> str:
    """Without what this process has on its path."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def test_links_of_the_readme_lead_somewhere_from_a_package_index():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    whole = release.complete_links(text, "https://example.org/")
    assert "(https://example.org/docs/results.md)" in whole
    assert whole.count('<img src="https://example.org/docs/pictures/') == text.count("<picture>") == 2
    for each in (whole, release.complete_links(text, "")):
        assert not release.LINK.search(each)
        assert "srcset" not in each


@pytest.mark.slow
def test_a_release_is_what_a_package_index_takes(tmp_path):
    wheel, sdist = release.build(tmp_path)
    assert (wheel.suffix, sdist.suffixes[-2:]) == (".whl", [".tar", ".gz"])
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("METADATA")]
        told = message_from_bytes(archive.read(name))
    assert told["Project-URL"] == "Paper, https://arxiv.org/abs/2211.07970"
    assert "What is measured" in told.get_payload()


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_wheel_works_where_nothing_else_is_installed(version, wheel, tmp_path):
    python = find_interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    run([python, "-m", "venv", "venv"], tmp_path)
    installed = tmp_path / "venv" / "bin"
    pip = [str(installed / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    run([*pip, str(wheel)], tmp_path)
    graphs = []
    for size in range(4, 24):  # rings and paths
        path = [[node, node + 1] for node in range(size - 1)]
        graphs += [{"nodes": size, "edges": path, "y": "path"}]
        graphs += [{"nodes": size, "edges": [*path, [size - 1, 0]], "y": "ring"}]
    (tmp_path / "graphs.jsonl").write_text("".join(json.dumps(graph) + "\n" for graph in graphs))
    command = str(installed / "mnagt")
    assert "0." in run([command, "--version"], tmp_path)
    run(
        [
            command,
            "train",
            "graphs.jsonl",
            "--target",
            "y",
            "--epochs",
            "2",
            "--dim",
            "16",
            "--depth",
            "2",
            "--out",
            "run",
        ],
        tmp_path,
    )
    run([command, "predict", "run", "graphs.jsonl", "--out", "predictions.csv"], tmp_path)
    run([command, "explain", "run", "graphs.jsonl", "--out", "explained.html"], tmp_path)
    run([str(installed / "python"), "-c", SMOKE, str(ROOT)], tmp_path)
