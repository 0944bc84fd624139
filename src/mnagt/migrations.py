"""Names that version 0.1 used, and the names that replace them; what 0.1 saved is read through these tables.

To rename something that is saved, add a line here.
"""

import re
from collections.abc import Collection, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from mnagt.errors import InputError
from mnagt.files import write_text

if TYPE_CHECKING:
    from sqlalchemy import Engine
    from torch import Tensor

Value = TypeVar("Value")

SETTINGS = {
    "choose_over": "selection_window",
    "average": "ema_decay",
    "balance": "class_weights",
    "smoothing": "label_smoothing",
    "record": "cuda_graphs",
    "recompute": "activation_checkpointing",
    "balls": "ego_radius",
    "subtrees": "wl_iterations",
    "subtree_rows": "wl_vocabulary_size",
    "subtree_graphs": "wl_min_graphs",
    "subtree_dropout": "wl_dropout",
    "trees": "forest_trees",
    "leaves": "forest_max_leaves",
    "forest_share": "forest_weight",
    "scale": "layer_scale",
}
"""Settings of training and of models: old name, new name. An old name counts only where the new one is a setting."""

CHOICES: dict[str, dict[str, str]] = {
    "readout": {"joined": "sum-mean-max", "virtual": "virtual-node"},
}
"""Values of settings: by the setting's new name, old value and new value."""

WEIGHTS: tuple[tuple[str, str], ...] = (
    (r"\bsharpness$", "logit_scale"),
    (r"\bencoder\.balls\.", "encoder.ego_statistics."),
    (r"^subtrees\.", "readout.parts.1."),
    (r"^norm\.", "readout.norm."),
    (r"^readout\.deep\.", "readout.network."),
    (r"^readout\.wide\.", "readout.members.wide."),
    (r"^forest\.asked$", "forest.feature"),
    (r"^forest\.following$", "forest.child"),
)
"""Names of a model's weights: a regular expression, and what replaces its matches."""

CONCAT_WEIGHTS = ((r"^readout\.", "readout.parts.0."), *WEIGHTS)
"""The same for models whose readouts are concatenated: in 0.1, those with weights called ``norm``."""

EXPORT_INPUTS = {"balls": "ego-statistics", "subtrees": "wl-colours", "fragments": "fragment-colours"}
"""Inputs of exported files: old name, new name."""

OLD_NAMES = {new: old for old, new in SETTINGS.items()}


def rename_settings(values: Mapping[str, Any], fields: Container[str]) -> dict[str, Any]:
    """``values``, whose names and choices may be those of 0.1, with the names of today.

    ``fields`` are the names that the settings have today. A name among them is never taken for an old one.

    >>> rename_settings({"subtrees": 4, "readout": "joined"}, {"wl_iterations", "readout"})
    {'wl_iterations': 4, 'readout': 'sum-mean-max'}
    """
    renamed: dict[str, Any] = {}
    for name, value in values.items():
        new = SETTINGS.get(name, name)
        new = name if name in fields or new not in fields else new
        if new != name and new in values:
            raise InputError(f"{name!r} is the old name of {new!r}; give only one of them")
        renamed[new] = rename_choice(new, value)
    return renamed


def rename_choice(setting: str, value: Any) -> Any:
    """A value of ``setting`` as it is called today."""
    return CHOICES.get(setting, {}).get(value, value) if isinstance(value, str) else value


def rename_weights(tensors: Mapping[str, Value]) -> dict[str, Value]:
    """Weights of a model that any version wrote, under the names that its ``state_dict`` has today."""
    renamed, table = {}, CONCAT_WEIGHTS if "norm.weight" in tensors else WEIGHTS
    for name, tensor in tensors.items():
        for pattern, replacement in table:
            name = re.sub(pattern, replacement, name)
        renamed[name] = tensor
    return renamed


def add_tree_roots(tensors: dict[str, "Tensor"], trees: int) -> dict[str, "Tensor"]:
    """``tensors`` with the roots of a forest's trees, each of which had room for as many tree nodes in 0.1."""
    import torch

    child = tensors.get("forest.child")
    if child is None or "forest.root" in tensors or not trees:
        return tensors
    return tensors | {"forest.root": torch.arange(trees, dtype=torch.int32) * (len(child) // trees)}


def reorder_members(tensors: dict[str, "Tensor"]) -> dict[str, "Tensor"]:
    """``tensors`` with the weight of the network first; that of the linear model came first in 0.2."""
    is_reversed = any(name.startswith("readout.wide.") for name in tensors)
    return tensors | {"head.weights": tensors["head.weights"].flip(0)} if is_reversed else tensors


def parameters_of_0_1(dims: Mapping[str, int]) -> list[str]:
    """The parameters of a model, given by name and number of dimensions, in the order that 0.1's optimisers had.

    Checkpoints of 0.1 number them: matrices first, and in each part what is now in ``readout`` after the head.
    """

    def is_after_head(name: str) -> bool:
        return name.startswith(("readout.parts.1.", "readout.norm."))

    names = [*(name for name in dims if not is_after_head(name)), *filter(is_after_head, dims)]
    return [*(name for name in names if dims[name] >= 2), *(name for name in names if dims[name] < 2)]


def rename_in_database(engine: "Engine", names: Collection[str]) -> bool:
    """Rename the parameters of the Optuna studies in a database, and their choices, in one transaction.

    ``names`` are the settings that are searched. The result says whether there was anything to rename.
    """
    from sqlalchemy import text

    updates = []
    for old, new in _pairs(names):
        updates.append(("trial_params", "param_name", old, new, "param_name = :old"))
        where = "key = 'fixed_params' AND value_json LIKE :like"
        updates.append(("trial_system_attributes", "value_json", f'"{old}":', f'"{new}":', where))
    for setting, choices in CHOICES.items():
        where = f"param_name = '{setting}' AND distribution_json LIKE :like"
        updates += [
            ("trial_params", "distribution_json", f'"{old}"', f'"{new}"', where) for old, new in choices.items()
        ]
    changed = 0
    with engine.begin() as connection:
        for table, column, old, new, where in updates:
            statement = text(f"UPDATE {table} SET {column} = REPLACE({column}, :old, :new) WHERE {where}")
            changed += connection.execute(statement, {"old": old, "new": new, "like": f"%{old}%"}).rowcount
    return bool(changed)


def rename_in_journal(path: Path, names: Collection[str]) -> bool:
    """The same for a journal file of Optuna, which is replaced as a whole."""
    if not path.exists():
        return False
    before = after = path.read_text(encoding="utf-8")
    for old, new in _pairs(names):
        after = re.sub(rf'("param_name":\s*)"{old}"', rf'\1"{new}"', after)
        after = re.sub(rf'"{old}"(\s*:)', rf'"{new}"\1', after)
    for choices in CHOICES.values():
        for old, new in choices.items():
            after = after.replace(f'\\"{old}\\"', f'\\"{new}\\"')
    if after != before:
        write_text(path, after)
    return after != before


def _pairs(names: Collection[str]) -> list[tuple[str, str]]:
    return [(old, new) for old, new in SETTINGS.items() if new in names and old not in names]
