"""From a file of SMILES to predictions: `mnagt screen`, `mnagt predict`, chemprop's predict, Morgan and forest.

``MNAGT_DATA`` names the folder with ogbg_molbace, on which each model is trained for an epoch (its scores are not the
matter), and ogbg_molhiv, whose molecules are predicted for. Each variant is a command in processes of its own. It
predicts for few molecules and for many. What one more molecule takes, in processor and in wall-clock seconds, is the
difference divided by the molecules between, without the start. Two cores give at most two divided by the processor
seconds.

The forest is scikit-learn's, of 500 trees over RDKit's Morgan fingerprints of 2048 bits, in as many processes as there
are cores. ``--chemprop`` names chemprop's command in an environment of its own.
"""

import csv
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common

from mnagt.data.readers.smiles import get_smiles, read_smiles
from mnagt.data.readers.text_table import read_table

TARGET = 5000
"""Molecules a second on two cores, with a lean model."""
MODELS = {
    "gin": ["--model", "gin"],
    "gin, lean": ["--model", "gin", "--dim", "32", "--depth", "3"],
    "mnagt": ["--model", "mnagt"],
    "mnagt-ensemble": [],
}
"""Ours, and the options that `mnagt train` takes: none for what it trains by default."""
CHUNK = 2048


def read_column(file: str) -> list[str]:
    table = read_table(common.data_file(file))
    return table.column(table.find_smiles_column())


def write_smiles(path: Path, smiles: list[str], targets: list[int] | None = None) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["smiles"] if targets is None else ["smiles", "y"])
        writer.writerows([text] if targets is None else [text, targets[i]] for i, text in enumerate(smiles))
    return path


# --- a forest over fingerprints ---


def fingerprints(smiles: list[str]) -> Any:
    """Rows of bits; none set where RDKit reads no molecule."""
    import numpy as np
    from rdkit.Chem import MolFromSmiles
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator
    from rdkit.rdBase import BlockLogs

    generator, bits = GetMorganGenerator(radius=2, fpSize=2048), np.zeros((len(smiles), 2048), np.float32)
    with BlockLogs():
        for row, text in enumerate(smiles):
            if (molecule := MolFromSmiles(text)) is not None:
                bits[row] = generator.GetFingerprintAsNumPy(molecule)
    return bits


def predict_by_forest(model: str, smiles: list[str]) -> list[float]:
    import pickle

    global forest
    if "forest" not in globals():
        forest = pickle.loads(Path(model).read_bytes())  # written by this script
    return forest.predict_proba(fingerprints(smiles))[:, 1].tolist()


def run_forest(model: str, source: str, out: str) -> None:
    """Predictions of the forest in as many processes as there are cores, as CSV."""
    with Path(source).open() as file:
        smiles = [row["smiles"] for row in csv.DictReader(file)]
    chunks = [smiles[at : at + CHUNK] for at in range(0, len(smiles), CHUNK)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool, Path(out).open("w", newline="") as file:
        writer = csv.writer(file)
        for chunk, found in zip(
            chunks, pool.starmap(predict_by_forest, [(model, chunk) for chunk in chunks]), strict=True
        ):
            writer.writerows(zip(chunk, found, strict=True))


def fit_forest(path: Path, smiles: list[str], targets: list[int]) -> None:
    import pickle

    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(500, random_state=0).fit(fingerprints(smiles), targets)
    path.write_bytes(pickle.dumps(forest))


# --- commands and what they take ---


def run(words: list[str], log: Path) -> tuple[float, float]:
    """Processor and wall-clock seconds of a command and its processes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    with log.open("w") as file:
        if subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, check=False).returncode:
            sys.exit(f"{' '.join(words)}\n{log.read_text()[-2000:]}")
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def make_commands(
    folder: Path, chemprop: str | None, wanted: list[str] | None
) -> dict[str, Callable[[Path, Path], list[str]]]:
    """For each variant, the command from a file of SMILES and a name for the output; the models are trained first."""
    table = read_table(common.data_file("ogbg_molbace/mapping/mol.csv.gz"))
    smiles, targets = table.column(table.find_smiles_column()), [int(text) for text in table.column("Class")]
    table_file, mnagt = write_smiles(folder / "known.csv", smiles, targets), [sys.executable, "-m", "mnagt"]
    commands: dict[str, Callable[[Path, Path], list[str]]] = {}

    def is_wanted(name: str) -> bool:
        return wanted is None or name in wanted

    for name, options in MODELS.items():
        run_of = folder / name.replace(", ", "-")
        verbs = [verb for verb in ("screen", *["predict"] * (name == "gin")) if is_wanted(f"mnagt {verb}, {name}")]
        if verbs and not run_of.exists():
            train = [*mnagt, "train", str(table_file), "--target", "y", "--epochs", "1", "--device", "cpu", *options]
            run([*train, "--out", str(run_of)], folder / "log")
        for verb in verbs:
            commands[f"mnagt {verb}, {name}"] = lambda source, out, verb=verb, run_of=run_of: [
                *mnagt, verb, str(run_of), str(source), "--out", str(out), "--device", "cpu",
            ]  # fmt: skip
    if is_wanted("Morgan and forest"):
        forest = folder / "forest"
        if not forest.exists():
            fit_forest(forest, smiles, targets)
        script = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import screening; screening.run_forest"
        )
        commands["Morgan and forest"] = lambda source, out: [
            sys.executable, "-c", f"{script}({str(forest)!r}, {str(source)!r}, {str(out)!r})",
        ]  # fmt: skip
    if chemprop and is_wanted("chemprop predict"):
        words = [
            chemprop,
            "train",
            "--data-path",
            str(table_file),
            "--smiles-columns",
            "smiles",
            "--target-columns",
            "y",
        ]
        words += ["--task-type", "classification", "--epochs", "3", "--accelerator", "cpu", "--output-dir"]
        if not (folder / "chemprop").exists():
            run([*words, str(folder / "chemprop")], folder / "log")
        (model,) = (folder / "chemprop").rglob("best.pt")
        commands["chemprop predict"] = lambda source, out: [
            chemprop, "predict", "--test-path", str(source), "--model-paths", str(model), "--accelerator", "cpu",
            "--num-workers", "1", "--batch-size", "256", "--preds-path", str(out.with_suffix(".csv")),
        ]  # fmt: skip
    return commands


def measure(command: Callable[[Path, Path], list[str]], files: dict[int, Path], scratch: Path) -> dict[str, float]:
    """Seconds for few and for many molecules, and what one more takes."""
    seconds = {}
    for number, path in files.items():
        out = scratch / f"out-{time.monotonic_ns()}"
        seconds[number] = run(command(path, out), scratch / "log")
    (few, (start, start_wall)), (many, (all_, all_wall)) = seconds.items()
    return {
        "processor_us": (all_ - start) / (many - few) * 1e6,
        "wall_us": (all_wall - start_wall) / (many - few) * 1e6,
        "start_processor_s": start - few * (all_ - start) / (many - few),
    }


def time_stages(model: Path, smiles: list[str]) -> dict[str, float]:
    """Microseconds of processor that each step takes a molecule, one after the other in this process."""
    import torch
    from rdkit.Chem import MolFromSmiles
    from rdkit.rdBase import BlockLogs

    from mnagt import load_model
    from mnagt.data.readers import rdkit_worker

    torch.set_num_threads(1)
    trained, stages = load_model(model), {}

    def time_step(name: str, step: Callable[[], Any]) -> Any:
        step()
        start = time.process_time()
        result = step()
        stages[name] = (time.process_time() - start) / len(smiles) * 1e6
        return result

    with BlockLogs():
        time_step("RDKit's parsing", lambda: [MolFromSmiles(text) for text in smiles])
    parts = [time_step("parsing and columns", lambda: rdkit_worker.graph_rows(smiles))]
    graphs = time_step("packing", lambda: read_smiles(smiles, parts=parts)).graphs
    aligned = trained.align(graphs)
    time_step("batches", lambda: [batch for _, batch in aligned.batches(torch.arange(len(aligned)), 256)])
    time_step("batches and network", lambda: trained.outputs(graphs))
    output, _ = time_step("batches, network and distances", lambda: trained.outputs_with_distances(graphs))
    time_step("decoding", lambda: trained.decode(output))
    return stages


def summarize(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The medians of rounds, and what follows from them."""
    row = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    processor = [each["processor_us"] for each in rounds]
    row |= {"spread_us": max(processor) - min(processor), "per_second_on_two_cores": 2e6 / row["processor_us"]}
    return row | {"days_for_a_billion": row["processor_us"] * 1e9 / 1e6 / 86_400}


def describe(name: str, row: dict[str, float]) -> str:
    return (
        f"{name:24}{row['processor_us']:9.0f} us of processor a molecule (spread {row['spread_us']:.0f}), "
        f"{row['wall_us']:.0f} us by the clock; at most {row['per_second_on_two_cores']:,.0f} a second on two cores"
    )


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--few", type=int, default=3000, help="at least 1,000 a core: less are one shard")
    parser.add_argument("--many", type=int, default=13_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--chemprop", help="chemprop's command, in an environment of its own")
    parser.add_argument("--models", type=Path, help="folder where the trained models are kept for another run")
    parser.add_argument("--only", nargs="+", help="only these variants")
    options = parser.parse_args()
    smiles = read_column("ogbg_molhiv/mapping/mol.csv.gz")
    smiles = get_smiles(
        read_smiles(smiles[:: max(1, len(smiles) // options.many)], workers=1).graphs
    )  # a bad one stops chemprop
    with tempfile.TemporaryDirectory() as name:
        folder, models = Path(name), options.models or Path(name) / "models"
        models.mkdir(exist_ok=True)
        files = {
            number: write_smiles(folder / f"{number}.csv", smiles[:: max(1, len(smiles) // number)][:number])
            for number in (options.few, options.many)
        }
        commands = make_commands(models, options.chemprop, options.only)
        runs = {name: models / name.replace(", ", "-") for name in MODELS}
        stages = {name: time_stages(run_of, smiles[::10]) for name, run_of in runs.items() if run_of.exists()}
        for name, each in stages.items():
            print(name, *(f"{step} {us:.0f}" for step, us in each.items()), sep="; ")
        found: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
        rows: dict[str, dict[str, float]] = {}
        for number in range(1, options.rounds + 1):
            for name, command in commands.items():
                found[name].append(measure(command, files, folder))
                print(f"round {number}: {describe(name, summarize(found[name]))}")
            rows = {name: summarize(rounds) for name, rounds in found.items()}
            figures = {"few": options.few, "many": options.many, "rounds": number, "variants": rows}
            common.write(options.out, {**figures, "stages_us": stages})
    best = max(row["per_second_on_two_cores"] for name, row in rows.items() if name.startswith("mnagt screen"))
    common.exit_if_missed([f"{best:,.0f} molecules/s, {TARGET:,} wanted"] if best < TARGET else [])


if __name__ == "__main__":
    main()
