"""Embeddings of graphs in a file."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.files import write_atomically
from mnagt.inference.model_folder import load_model
from mnagt.inference.predict import select_graphs


def embed_to(
    out: Path,
    folder: Path | str,
    dataset: str,
    *,
    graphs: Sequence[int] | None = None,
    smiles: str | None = None,
    device: str = "auto",
) -> tuple[int, int]:
    """Write the embedding of each graph that ``predict`` would predict for; their number and dimension.

    ``out`` ends in .npy, a matrix, or in .parquet, with the columns graph, name and v0, v1, ... Rows of a table that
    give no graph are rows of NaN, and null in Parquet.
    """
    if out.suffix not in (".npy", ".parquet"):
        raise InputError(f"{out}: vectors are written as .npy or .parquet; choose such a name")
    if out.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"{out}: Parquet needs pyarrow, which is not installed: pip install 'mnagt[parquet]'")
    trained = load_model(folder)
    selected = select_graphs(trained, dataset, graphs=graphs, smiles=smiles)
    if len(selected.indices) == 0:
        raise InputError(f"{dataset}: no graph to embed")
    embedded = trained.embed(selected.graphs, selected.indices, pick_device(device))
    vectors = torch.full((selected.count, embedded.shape[1]), torch.nan).index_copy(0, selected.rows, embedded).numpy()
    if out.suffix == ".npy":
        with write_atomically(out) as scratch, scratch.open("wb") as file:
            np.save(file, vectors)
    else:
        numbers = range(selected.count) if graphs is None else graphs
        name_of = dict(zip(selected.rows.tolist(), selected.names, strict=True))
        _write_parquet(out, list(numbers), [name_of.get(row) for row in range(selected.count)], vectors)
    return vectors.shape


def _write_parquet(out: Path, numbers: list[int], names: list[str | None], vectors: np.ndarray) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {f"v{i}": pyarrow.array(column, from_pandas=True) for i, column in enumerate(vectors.T)}  # NaN is null
    table = pyarrow.table({"graph": numbers, "name": pyarrow.array(names, pyarrow.string())} | columns)
    with write_atomically(out) as scratch:
        parquet.write_table(table, scratch)
