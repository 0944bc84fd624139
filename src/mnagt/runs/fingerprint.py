"""A digest of everything a model reads from a data set, by which a changed data set is noticed."""

import hashlib
import json
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from mnagt.data.packed import PackedDataset
from mnagt.graphs.molecules import TABLE_DESCRIPTORS
from mnagt.tasks import task_to_dict

_COLUMNS = ("node_labels", "node_values", "edge_labels", "edge_values")
_TENSORS = ("node_ptr", "edge_ptr", "source", "in_degree", "targets", *_COLUMNS, "row_weights", "edge_numbers")
_LATER_FIELDS = {
    "single-label": {"metric": "accuracy"},
    "multi-label": {"target_weights": ()},
    "regression": {"metric": "rmse", "transform": "standardise", "knots": (), "target_weights": ()},
}
"""Fields of tasks that digests before them lack, with their defaults: they count only where they differ."""
_CHUNK = 2**22
"""Rows that are converted at once: columns of a memory-mapped data set are never copied as a whole."""


def dataset_fingerprint(dataset: PackedDataset) -> dict[str, Any]:
    """Name, counts and a digest of edges, node and edge columns, targets, task and category names.

    Numbers enter the digest as int64 or float32: it does not depend on how a data set is stored.
    """
    digest = hashlib.blake2b(digest_size=12)
    for name in _TENSORS:
        tensor: Tensor | None = getattr(dataset, name)
        if tensor is not None:
            digest.update(f"{name} {tuple(tensor.shape)}".encode())
            dtype = torch.float32 if tensor.is_floating_point() else torch.int64
            for chunk in tensor.split(_CHUNK):
                digest.update(chunk.to("cpu", dtype).contiguous().numpy().data)
    if (described := dataset.encodings.get(TABLE_DESCRIPTORS)) is not None:
        digest.update(TABLE_DESCRIPTORS.encode() + described.cpu().contiguous().numpy().tobytes())
    names = {column: list(names) for column, names in dataset.vocabularies.items()}
    later = _LATER_FIELDS.get(dataset.task.kind, {})
    task = {name: value for name, value in task_to_dict(dataset.task).items() if later.get(name, ...) != value}
    digest.update(json.dumps([task, names], sort_keys=True).encode())
    return _counts(dataset) | {"digest": digest.hexdigest()}


def matches_fingerprint(saved: Any, dataset: PackedDataset) -> bool:
    """Whether ``saved`` is the fingerprint of ``dataset``; runs and studies of 0.1 have digests of fewer columns."""
    if not isinstance(saved, dict) or {**saved, "digest": None} != {**_counts(dataset), "digest": None}:
        return False
    digests = (dataset_fingerprint(dataset)["digest"], _digest_of_0_1_run(dataset), _digest_of_0_1_study(dataset))
    return saved["digest"] in digests


def _counts(dataset: PackedDataset) -> dict[str, Any]:
    nodes, edges = int(dataset.node_ptr[-1]), len(dataset.source)
    return {"name": dataset.name, "graphs": len(dataset), "nodes": nodes, "edges": edges}


def _digest_of_0_1_run(dataset: PackedDataset) -> str:
    """What 0.1 kept in ``run.json``: edges and targets."""
    digest = hashlib.blake2b(dataset.source.cpu().numpy().data, digest_size=12)
    digest.update(dataset.targets.cpu().numpy().tobytes())
    return digest.hexdigest()


def _digest_of_0_1_study(dataset: PackedDataset) -> str:
    """What 0.1 kept in ledgers and in shared studies: all tensors as they are stored."""
    digest = hashlib.blake2b(digest_size=12)
    for field in fields(dataset):
        if isinstance(value := getattr(dataset, field.name), Tensor) and field.name != "same_as":  # not in 0.1
            digest.update(f"{field.name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.cpu().contiguous().numpy().data)
    return digest.hexdigest()
