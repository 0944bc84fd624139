"""What a model folder may hold, and fingerprints that find what was damaged or edited; they are no signature."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mnagt.errors import InputError
from mnagt.files import SCRATCH

CONFIG, WEIGHTS, CALIBRATION, CARD = "config.json", "model.safetensors", "calibration.json", "README.md"
KNOWN = (CONFIG, WEIGHTS, CALIBRATION, CARD, "LICENSE")
"""All that a model folder holds."""

_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".bin", ".ckpt", ".joblib", ".dill")


def check_files(folder: Path) -> None:
    """Refuse pickles, and what else is not of a model; the folder of a run may hold more."""
    is_run = any((folder / name).exists() for name in ("run.json", "last.safetensors"))
    for path in sorted(folder.iterdir()):
        if path.name.endswith(SCRATCH):  # being written, or left by a writer that was killed
            continue
        if path.name in KNOWN:
            if not path.is_file():
                raise InputError(f"{path}: not a file; restore it or train again")
        elif _is_pickle(path):
            raise InputError(
                f"{path}: a pickle, which can run anything when it is read, and no model of mnagt has one; remove it "
                "if you put it there, else do not trust the folder"
            )
        elif not is_run:
            raise InputError(f"{path}: not of a model, whose folder holds {', '.join(KNOWN)}; move it elsewhere")


def _is_pickle(path: Path) -> bool:
    if path.name.lower().endswith(_PICKLES):
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(4096)
    is_plain = head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")
    return is_plain or (head.startswith(b"PK") and b".pkl" in head)  # torch.save writes a zip


def fingerprints(config: Path, weights: Mapping[str, Tensor]) -> dict[str, str]:
    """Digests of the config file and of the weights."""
    digest = hashlib.sha256()
    for name, tensor in sorted(weights.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return {"config": hashlib.sha256(config.read_bytes()).hexdigest(), "weights": digest.hexdigest()}


def check_fingerprints(folder: Path, weights: Mapping[str, Tensor], note: Any) -> None:
    """Refuse a config or weights that are not as they were saved. ``note`` came with the weights."""
    if not isinstance(note, dict):  # saved before there were any
        return
    found = fingerprints(folder / CONFIG, weights)
    for what, file in (("config", CONFIG), ("weights", WEIGHTS)):
        if note.get(what) != found[what]:
            raise InputError(f"{folder / file}: changed since the model was saved; restore it or train again")
