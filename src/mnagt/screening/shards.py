"""One shard of a screening: its rows are read, predicted for and written, in a process of its own."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from mnagt.data.readers import descriptor_columns
from mnagt.data.readers.molecule_reader import shared_reader
from mnagt.data.readers.smiles import get_function, read_smiles
from mnagt.data.readers.text_table import Table
from mnagt.devices import pick_device
from mnagt.files import write_atomically
from mnagt.graphs.molecules import choose_row_format
from mnagt.inference.ensemble import load_models
from mnagt.inference.model_folder import TrainedModel
from mnagt.inference.predict import SelectedGraphs
from mnagt.screening.chunks import Chunk, read_chunks, read_numbers
from mnagt.screening.config import ScreenConfig
from mnagt.screening.inputs import Shard, check_unchanged
from mnagt.screening.outputs import BestRow, find_best, keep_best, open_writer


@dataclass(frozen=True)
class Screen:
    """What is the same for all shards."""

    model: str
    """The folder of the model."""
    out: str
    """The folder of the output."""
    smiles: tuple[str, ...]
    """The column of SMILES; of several components, the columns."""
    added: Mapping[str, str]
    """The columns beside those of the input, and Arrow's name of their types; the note comes last."""
    config: ScreenConfig
    device: str

    def path(self, shard: Shard) -> Path:
        """The file that is written for a shard."""
        by_input = "parquet" if shard.file.is_parquet else "csv"
        suffix = by_input if self.config.format == "auto" else self.config.format
        return Path(self.out) / f"part-{shard.number:05}.{suffix}"


@dataclass(frozen=True)
class PreparedChunk:
    """Rows as RDKit and the model read them."""

    chunk: Chunk
    smiles: list[tuple[str, ...]]
    """Of each row; empty texts where it has a problem."""
    numbers: Mapping[str, list[str]]
    """The columns that the model reads beside the graph."""
    problems: dict[int, str]
    """What is wrong with rows, besides what RDKit finds."""

    @property
    def texts(self) -> list[str]:
        """All SMILES, one after the other."""
        return [text for row in self.smiles for text in row]


def screen_shard(screen: Screen, shard: Shard) -> dict[str, Any]:
    """Write the predictions for the rows of a shard; how many they are, and the best of them."""
    check_unchanged(shard.file)
    path, rows, refused, best = screen.path(shard), 0, 0, list[BestRow]()
    options = {"suffix": path.suffix, "quotes_formulas": screen.config.quote_formulas}
    with write_atomically(path) as scratch, open_writer(scratch, shard, screen.added, **options) as write:
        for first, columns in _predict_chunks(screen, shard):
            write(columns)
            notes = columns[list(screen.added)[-1]]
            rows, refused = rows + len(notes), refused + len(notes) - notes.count(None)
            best = keep_best([*best, *find_best(columns, screen.config, shard, first)], screen.config)
    if rows != shard.rows:
        raise RuntimeError(f"{shard.file.path}: {rows} rows from row {shard.first} on, and they were {shard.rows}")
    return {"rows": rows, "refused": refused, "bytes": path.stat().st_size, "best": best}


def predict_chunk(
    trained: TrainedModel, prepared: PreparedChunk, parts: Sequence[Mapping[str, Any]], screen: Screen
) -> dict[str, list[Any]]:
    """The columns of the input and those of predictions, for molecules that RDKit has read (``parts``)."""
    name, chunk = Path(screen.out).name, prepared.chunk
    molecules = read_smiles(
        prepared.smiles, name=name, row_format=choose_row_format(trained.model.features), parts=parts
    )
    notes = {row.row: row.explain(screen.smiles) for row in molecules.refused} | prepared.problems
    predictions = {}
    if len(molecules.kept):
        table = Table(name, prepared.numbers, range(len(chunk)))
        rows, described = table.select(molecules.kept.tolist()), _descriptor_names(trained)
        with _log_errors_only(descriptor_columns.__name__):  # a chunk's notice would say how many rows lack a number
            graphs = descriptor_columns.with_descriptors(molecules.graphs, rows, screen.smiles, described)
        predictions = trained.predict(graphs, None, pick_device(screen.device), level=screen.config.level)
    selected = SelectedGraphs(molecules.graphs, molecules.kept, [], chunk.columns, molecules.kept, notes)
    return selected.join({name: list(map(_list_to_text, values)) for name, values in predictions.items()})


def _list_to_text(value: Any) -> Any:
    """Numbers of nodes as one text."""
    return str(value) if isinstance(value, list) else value


def _predict_chunks(screen: Screen, shard: Shard) -> Iterator[tuple[int, dict[str, list[Any]]]]:
    """The first row and the columns of each chunk. RDKit reads a chunk while the one before it is predicted for."""
    trained, waiting = load_once(screen.model, screen.config.level is not None, screen.device), None
    with shared_reader() as reader:
        for chunk in read_chunks(shard):
            prepared = prepare_chunk(trained, chunk, screen.smiles)
            parts = reader.receive() if waiting else []
            reader.send(prepared.texts, get_function(choose_row_format(trained.model.features)))
            if waiting:
                yield waiting.chunk.first, _complete(predict_chunk(trained, waiting, parts, screen), screen)
            waiting = prepared
        if waiting:
            yield waiting.chunk.first, _complete(predict_chunk(trained, waiting, reader.receive(), screen), screen)


def prepare_chunk(trained: TrainedModel, chunk: Chunk, smiles: Sequence[str]) -> PreparedChunk:
    """What RDKit and the model read of a chunk."""
    numbers, problems = read_numbers(chunk, _descriptor_names(trained))
    problems |= chunk.problems
    columns = [[" ".join(text.split()) for text in chunk.texts(name)] for name in smiles]
    rows = [("",) * len(smiles) if row in problems else texts for row, texts in enumerate(zip(*columns, strict=True))]
    return PreparedChunk(chunk, rows, numbers, problems)


def _complete(columns: dict[str, list[Any]], screen: Screen) -> dict[str, list[Any]]:
    """With the columns that predictions would have, where no row has any."""
    count = len(next(iter(columns.values())))
    names = [*(name for name in columns if name not in screen.added), *screen.added]
    return {name: columns[name] if name in columns else [None] * count for name in names}


def _descriptor_names(trained: TrainedModel) -> Sequence[str]:
    return trained.columns.get(descriptor_columns.KIND, ())


@contextmanager
def _log_errors_only(name: str) -> Iterator[None]:
    """Within this, a logger reports errors only."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


@lru_cache(maxsize=1)
def load_once(model: str, is_calibrated: bool, device: str) -> TrainedModel:
    """The model, which a process loads once."""
    return load_models([model], is_calibrated=is_calibrated, device=device)
