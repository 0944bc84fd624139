"""One bit flipped in a file that mnagt wrote and reads again: noticed, harmless, or silent?

A folder of each kind is made once. Then one bit of one of its files is flipped, and the folder is read. Noticed: an
``InputError`` of one line, or a warning. Harmless: what was read is what was written, bit for bit. Anything else is
silent, and is wrong. Not flipped: pages, pictures and tables for people, recipes, which people edit, and Optuna's
database.
"""

import json
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, is_dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).parents[1]))

import common  # type: ignore[import-not-found]
import torch
from reliability.fuzzing import assert_refusal

from mnagt import load_dataset
from mnagt.data import encodings
from mnagt.data.cache import load_packed, save_packed
from mnagt.data.memmap import open_packed, write_packed
from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger
from mnagt.inference.ensemble import load_models
from mnagt.inference.export import OnnxModel, check_export, export_onnx
from mnagt.inference.model_folder import load_model
from mnagt.inference.predict import calibrate
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.folder import LAST, read_run_config
from mnagt.training import run as training
from mnagt.training.run import Result, resume, train
from mnagt.training.several_runs import resume_several, train_several

SETTINGS = {"dim": 8, "depth": 1}
SIZE = "random-walk"


@dataclass(frozen=True)
class Kind:
    """Files that are written and read together."""

    write: Callable[[Path], object]
    read: Callable[[Path], Any]
    flips: tuple[str, ...] = ("*",)
    """Patterns of the files that bits are flipped in."""


def freeze(value: Any) -> Any:
    """Something to compare: tensors by their bytes, numbers by all of their digits."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.detach().contiguous().numpy().tobytes()
    if is_dataclass(value) and not isinstance(value, type):
        value = vars(value) if isinstance(value, PackedDataset) else asdict(value)
    if isinstance(value, dict):
        return {str(key): freeze(each) for key, each in value.items()}
    return [freeze(each) for each in value] if isinstance(value, list | tuple) else repr(value)


@cache
def mutag() -> PackedDataset:
    return load_dataset("MUTAG")


def _config(epochs: int = 1) -> RunConfig:
    return RunConfig("MUTAG", "gcn", SETTINGS, TrainConfig(epochs=epochs, batch_size=188), device="cpu")


def _write_run(folder: Path) -> None:
    train(_config(), folder, dataset=mutag())
    calibrate(folder, device="cpu")


def _read_run(folder: Path) -> Any:
    run, trained = resume(folder), load_model(folder)
    answers = trained.predict(mutag(), torch.arange(9), level=0.9)
    known = trained.settings, trained.origin, trained.vocabularies, trained.columns, trained.domain
    return run.result, vars(run.split), run.history, read_run_config(folder), answers, *known


def _write_interrupted(folder: Path) -> None:
    remove, training.remove_checkpoint = training.remove_checkpoint, lambda path: None
    try:
        train(_config(), folder, dataset=mutag())
    finally:
        training.remove_checkpoint = remove
    for path in folder.iterdir():
        if path.name not in ("run.json", "split.json", "metrics.jsonl", LAST):
            path.unlink()


def _read_interrupted(folder: Path) -> Any:
    run = resume(folder, dataset=mutag())
    weights = dict(run.trained.model.state_dict())
    return run.result.test, weights, vars(run.split), run.history, read_run_config(folder)


def _write_ensemble(folder: Path) -> None:
    train_several(_config(), folder, "ensemble", 2, dataset=mutag())


def _read_ensemble(folder: Path) -> Any:
    return resume_several(folder).ensemble, load_models([folder]).outputs(mutag(), torch.arange(9))


def _write_ledger(folder: Path) -> None:
    result = Result("accuracy", 1, 0.5, {"accuracy": 0.5}, 7, 0.1, "a CPU")
    for seed in range(3):
        Ledger(folder / "trials.jsonl").append(RunConfig("MUTAG", "gin", train=TrainConfig(seed=seed)), result)


def _read_ledger(folder: Path) -> Any:
    """The trials; what a flip makes of the name of their digest is one entry more."""
    names = ("config", "result", "date", "machine", "versions", "commit")
    return [{name: record.get(name) for name in names} for record in Ledger(folder / "trials.jsonl").records()]


def _write_encoding(folder: Path) -> None:
    before, os.environ["MNAGT_CACHE"], encodings._LONG = os.environ.get("MNAGT_CACHE"), str(folder), 0.0
    try:
        encodings._load_or_compute(mutag(), SIZE, 3)
    finally:
        encodings._LONG = 2.0
        os.environ.pop("MNAGT_CACHE")
        os.environ.update({} if before is None else {"MNAGT_CACHE": before})


def _read_encoding(folder: Path) -> Any:
    (path,) = (folder / "encodings").iterdir()
    if (found := encodings._load(path, SIZE)) is None:
        raise InputError("computed again")
    return found


def _write_onnx(folder: Path) -> None:
    train(_config(), folder, dataset=mutag())
    export_onnx(folder, folder / "it.onnx")


def _read_onnx(folder: Path) -> Any:
    trained = load_model(folder)
    check_export(model := OnnxModel(folder / "it.onnx", trained), trained)
    return model(mutag().batch(torch.arange(9)))


KINDS = {
    "run": Kind(_write_run, _read_run),
    "interrupted run": Kind(_write_interrupted, _read_interrupted),
    "ensemble": Kind(_write_ensemble, _read_ensemble, ("*.json",)),
    "ledger": Kind(_write_ledger, _read_ledger),
    "cache": Kind(lambda f: save_packed(mutag(), f / "it.safetensors"), lambda f: load_packed(f / "it.safetensors")),
    "cached encoding": Kind(_write_encoding, _read_encoding, ("encodings/*",)),
    "mapped data": Kind(lambda f: write_packed(f / "it", [mutag()]), lambda f: open_packed(f / "it"), ("it/*",)),
    "ONNX": Kind(_write_onnx, _read_onnx, ("*.onnx",)),
}


class Attempts:
    """Flips bits in copies of one folder of a kind."""

    def __init__(self, kind: Kind, scratch: Path) -> None:
        self.kind, self.whole, self.copy = kind, scratch / "whole", scratch / "copy"
        self.whole.mkdir(parents=True)
        kind.write(self.whole)
        self.files = sorted(path for each in kind.flips for path in self.whole.glob(each) if path.is_file())
        self.files = [path for path in self.files if path.stat().st_size]
        self.expected = self.read()

    def read(self) -> Any:
        shutil.rmtree(self.copy, ignore_errors=True)
        shutil.copytree(self.whole, self.copy)
        return freeze(self.kind.read(self.copy))

    def flip(self, drawn: Random) -> tuple[str, str]:
        """What came of it, and where the bit was."""
        path = drawn.choice(self.files)
        content = bytearray(whole := path.read_bytes())
        at, bit = drawn.randrange(len(content)), drawn.randrange(8)
        content[at] ^= 1 << bit
        where = f"{path.name}, bit {bit} of byte {at}"
        warned: list[str] = []
        listener = logging.Handler(logging.WARNING)
        listener.emit = lambda record: warned.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("mnagt").addHandler(listener)
        try:
            path.write_bytes(content)
            found = self.read()
        except InputError as error:
            assert_refusal(error)
            return "noticed", where
        finally:
            logging.getLogger("mnagt").removeHandler(listener)
            path.write_bytes(whole)
        return ("harmless" if found == self.expected else "noticed" if warned else "silent"), where


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--flips", type=int, default=2000, help="in all [2000]")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), metavar="NAME", help="[all]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    drawn, found, silent = Random(options.seed), {}, []
    for name in options.kinds:
        with tempfile.TemporaryDirectory() as scratch:
            attempts, counts = Attempts(KINDS[name], Path(scratch)), Counter()
            for _ in range(-(-options.flips // len(options.kinds))):
                try:
                    outcome, where = attempts.flip(drawn)
                except Exception as error:
                    outcome, where = "silent", f"{type(error).__name__}: {error}"[:300]
                counts[outcome] += 1
                silent += [f"{name}: {where}"] if outcome == "silent" else []
            found[name] = {"files": sorted({path.name for path in attempts.files}), **counts}
        print(f"{name}: {json.dumps(found[name])}", flush=True)
    flips = sum(count for each in found.values() for what, count in each.items() if what != "files")
    common.write(options.out, {"flips": flips, "kinds": found, "silent": silent})
    common.exit_if_missed([f"{len(silent)} flips were silent: {silent[:20]}"] * bool(silent))


if __name__ == "__main__":
    main()
