"""A run: data set, split, model and settings in; a folder with a trained model and its figures out."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import DATASETS, find_graph_reader
from mnagt.data.splits import Split
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.files import hold_lock, write_json
from mnagt.inference.model_folder import CONFIG, TrainedModel
from mnagt.models.registry import full_settings
from mnagt.runs.config import RunConfig
from mnagt.runs.fingerprint import dataset_fingerprint
from mnagt.runs.folder import LAST, RESULT, RUN, SPLIT, load_run_dataset, read_run_config, read_split
from mnagt.runs.split import make_split
from mnagt.training.distributed import Ranks, join_ranks
from mnagt.training.fit_model import FittedModel, Result, fit_model
from mnagt.training.memory_check import explain_out_of_memory
from mnagt.training.progress import Reporter, RunLogs


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    trained: TrainedModel
    result: Result
    split: Split
    history: list[dict[str, float]]
    """One record an epoch."""


def train(
    config: RunConfig,
    out: Path | str | None = None,
    *,
    dataset: PackedDataset | None = None,
    reporter: Reporter | None = None,
    tensorboard: bool = False,
) -> Run:
    """Train a model and score it once on the test part.

    Args:
        config: Data set, model, training and split.
        out: A folder for settings, split, logs, checkpoints and the model; None to keep nothing.
        dataset: The data set, if it is in memory already.
        reporter: Called with the progress.
        tensorboard: Write TensorBoard logs into ``out``.

    Ctrl-C or SIGTERM saves the state and raises ``Interrupted``. After any end, even kill -9, ``resume`` continues from
    the last checkpoint. Processes that torchrun started train one model together, and rank 0 writes.

    >>> from mnagt import RunConfig, TrainConfig, train
    >>> run = train(RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1), device="cpu"))
    >>> list(run.result.test)
    ['accuracy']
    """
    out = None if out is None else Path(out)
    with join_ranks() as ranks:
        if out is not None and ranks.broadcast_from_rank0(lambda: (out / RUN).exists() or (out / CONFIG).exists()):
            raise InputError(f"{out}: holds a run already; go on with --resume {out}, or choose another --out")
        config, dataset = _resolve_run(config, dataset)
        split = ranks.broadcast_from_rank0(lambda: make_split(config.split, dataset))
        return _run(config, dataset, split, out, reporter, tensorboard, ranks)


def _resolve_run(config: RunConfig, dataset: PackedDataset | None) -> tuple[RunConfig, PackedDataset]:
    """The settings of a new run in full, and graphs that can be learned from."""
    if dataset is None:
        dataset = load_run_dataset(config)
        path = Path(config.dataset).expanduser()
        if config.dataset not in DATASETS and path.exists():  # must hold from elsewhere too
            config = replace(config, dataset=str(path.resolve()))
    if not dataset.task.is_labelled:
        where = "name the columns that hold them (--target)"
        if dataset.texts is None and not find_graph_reader(config.dataset):
            where = (
                f"the TU layout keeps them in {dataset.name}_graph_labels.txt (classes) or "
                f"{dataset.name}_graph_attributes.txt (numbers)"
            )
        raise InputError(f"{dataset.name}: no targets to learn from; {where}")
    return replace(config, settings=full_settings(config.model, config.settings)), dataset


def resume(out: Path | str, *, reporter: Reporter | None = None, tensorboard: bool = False) -> Run:
    """Continue the interrupted run in a folder from its last checkpoint.

    Args:
        out: The folder of the run. The number of ranks may differ from before.
        reporter: Called with the progress.
        tensorboard: Write TensorBoard logs into the folder.

    >>> from mnagt import resume
    >>> resume("runs/mutag").result.epoch  # a finished run stays as it is
    1
    """
    out = Path(out)
    with join_ranks() as ranks:
        config = ranks.broadcast_from_rank0(lambda: read_run_config(out))
        dataset = load_run_dataset(config)
        split = ranks.broadcast_from_rank0(lambda: read_split(out, dataset))
        return _run(config, dataset, split, out, reporter, tensorboard, ranks)


def _run(
    config: RunConfig,
    dataset: PackedDataset,
    split: Split,
    out: Path | None,
    reporter: Reporter | None,
    tensorboard: bool,
    ranks: Ranks,
) -> Run:
    """Train from the start, or from the checkpoint in ``out`` if there is one."""
    device = ranks.local_device(pick_device(config.device))
    fingerprint = dataset_fingerprint(dataset)
    if ranks.broadcast_from_rank0(lambda: fingerprint) != fingerprint:
        raise InputError(
            f"rank {ranks.rank} reads another {dataset.name} than rank 0 ({fingerprint}); give both the same"
        )
    log_folder, shown = (out, reporter or Reporter()) if ranks.is_first else (None, Reporter())
    with stop_requests() as should_stop, RunLogs(log_folder, shown, tensorboard) as logs:

        def write_run(config: RunConfig) -> None:
            """Write settings and split, unless they are there, and lock the run."""
            if out is not None:
                if not (out / RUN).exists():
                    write_json(out / SPLIT, split.to_dict())
                    write_json(out / RUN, {"config": asdict(config), "dataset": fingerprint})
                busy = f"{out}: another process is at work on this run; wait for it, or choose another --out"
                logs.enter_context(hold_lock(out / RUN, busy))

        fitted = fit_model(
            config,
            dataset,
            split,
            device=device,
            checkpoint=None if out is None else out / LAST,
            reporter=logs,
            should_stop=should_stop,
            on_start=lambda config: ranks.broadcast_from_rank0(lambda: write_run(config)),
            ranks=ranks,
        )
        with explain_out_of_memory(device, config):
            result = fitted.score(split)
    trained = fitted.to_trained(_describe_origin(fitted, split, result))
    if log_folder is not None:
        trained.save(log_folder)
        write_json(log_folder / RESULT, asdict(result))
    return Run(trained, result, split, fitted.trainer.at.history)


def _describe_origin(fitted: FittedModel, split: Split, result: Result) -> dict[str, Any]:
    config, name = fitted.config, fitted.dataset.name
    return {
        "dataset": name,
        "run": asdict(replace(config, dataset=name, split=replace(config.split, folder=None))),  # no paths
        "parts": {part: len(indices) for part, indices in split.to_dict().items()},
        "result": asdict(result),
        "date": datetime.now(UTC).date().isoformat(),
    }


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask training to stop at the next step; a second Ctrl-C stops it there and then."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested.is_set
        return

    def request(number: int, frame: Any) -> None:
        if requested.is_set():
            raise KeyboardInterrupt
        requested.set()

    before = {number: signal.signal(number, request) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield requested.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
