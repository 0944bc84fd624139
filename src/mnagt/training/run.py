"""A run: data set, split, model and settings in; a folder with a trained model and its figures out."""

import json
import logging
import signal
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import nn

from mnagt.data.in_memory import from_graphs
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import DATASETS, find_graph_reader
from mnagt.data.splits import Split, keep_share
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.files import hold_lock, read_json, write_record
from mnagt.inference.domain import fit_domain
from mnagt.inference.model_folder import CONFIG, TrainedModel, load_model
from mnagt.models.registry import full_settings, use_module
from mnagt.runs.config import RunConfig
from mnagt.runs.defaults import default_model, describe_idle_settings
from mnagt.runs.fingerprint import dataset_fingerprint
from mnagt.runs.folder import LAST, RESULT, RUN, SPLIT, load_run_dataset, name_descriptors, read_run_config, read_split
from mnagt.runs.options import apply_options, leave_open
from mnagt.runs.recipes import find_recipe, log_recipe, read_recipe
from mnagt.runs.split import choose_split, describe_absent_classes, describe_small_sample, describe_split
from mnagt.training.distributed import Ranks, join_ranks
from mnagt.training.fit_model import FittedModel, Result, fit_model
from mnagt.training.memory_check import explain_out_of_memory
from mnagt.training.progress import METRICS, Reporter, RunLogs
from mnagt.training.transfer import describe_shared_graphs, inherit_settings

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A finished run.

    >>> from mnagt import train
    >>> print(repr(train("MUTAG", model="gin", epochs=1, dim=8, depth=1, device="cpu")).partition(":")[0])
    Run of gin on MUTAG
    """

    trained: TrainedModel
    result: Result
    split: Split
    history: list[dict[str, float]]
    """One record an epoch."""

    def __repr__(self) -> str:
        result, parts = self.result, [len(part) for part in (self.split.train, self.split.valid, self.split.test)]
        test = f"{result.test[result.metric]:.4f}"
        return (
            f"Run of {self.trained.name} on {self.trained.origin['dataset']}: {parts[0]:,} graphs to train, "
            f"{parts[1]:,} to validate, {parts[2]:,} to test\n"
            f"  epoch {result.epoch} of {len(self.history)}: {result.metric} {result.valid:.4f} valid, {test} test\n"
            f"  {result.parameters:,} parameters, {result.seconds:.1f} s on {result.device}"
        )


def train(
    config: Any = None,
    out: Path | str | None = None,
    *,
    dataset: Any = None,
    model: str | nn.Module | None = None,
    recipe: Path | str | None = None,
    reporter: Reporter | None = None,
    tensorboard: bool = False,
    **options: Any,
) -> Run:
    """Train a model and score it once on the test part.

    Args:
        config: What to train on: the name or path of a data set, or whatever ``from_graphs`` takes, such as a data set
            of PyTorch Geometric or a list of networkx graphs. Or all settings of a run, as a ``RunConfig``.
        out: A folder for settings, split, logs, checkpoints and the model; None to keep nothing.
        dataset: The graphs of a ``RunConfig``, if they are in memory already.
        model: A name in ``MODELS``, 'mnagt' by default, of tables of molecules 'mnagt-ensemble'; or a module, which is
            trained in place (``ModuleModel``).
        recipe: As for ``read_recipe``. By default that of the package for this data set and model, if there is one.
        reporter: Called with the progress.
        tensorboard: Write TensorBoard logs into ``out``.
        **options: Settings by the names of the options of ``mnagt train``: ``epochs``, ``lr``, ``split``,
            ``split_seed``, ``device``, ``target``, those of the model (``dim``, ...).

    Ctrl-C or SIGTERM saves the state and raises ``Interrupted``. After any end, even kill -9, ``resume`` continues from
    the last checkpoint. Processes that torchrun started train one model together, and rank 0 writes.

    >>> from mnagt import train
    >>> run = train("MUTAG", model="gin", epochs=1, dim=8, depth=1, device="cpu")
    >>> list(run.result.test)
    ['accuracy', 'rocauc', 'ap', 'mcc', 'f1', 'brier', 'ece']
    """
    out = None if out is None else Path(out)
    with use_module(model if isinstance(model, nn.Module) else None) as name, join_ranks() as ranks:
        if model is not None:  # CUDA graphs need padding, which only models of the package know
            options = {"model": name or model, **({"cuda_graphs": "never"} if name else {}), **options}
        if out is not None and ranks.broadcast_from_rank0(lambda: (out / RUN).exists() or (out / CONFIG).exists()):
            raise InputError(f"{out}: holds a run already; go on with --resume {out}, or choose another --out")
        config, dataset = resolve_run(*_read_arguments(config, dataset, recipe, options))
        named = ranks.broadcast_from_rank0(lambda: choose_split(config.split, dataset))
        if ranks.is_first:
            _log.info("%s", describe_split(named, dataset))
            warnings = describe_small_sample(named.split, dataset), describe_shared_graphs(config, dataset, named.split)
            more = *describe_absent_classes(named.split, dataset), *describe_idle_settings(config)
            for warning in (*more, *filter(None, warnings)):
                _log.warning("%s", warning)
        split = keep_share(named.split, config.train.train_share, config.train.seed)
        return _run(config, dataset, split, out, reporter, tensorboard, ranks)


def _read_arguments(
    source: Any, dataset: Any, recipe: Path | str | None, options: dict[str, Any]
) -> tuple[RunConfig, PackedDataset | None]:
    """The settings of a run, and its graphs where they are in memory."""
    if isinstance(source, RunConfig):
        if recipe is not None:
            raise InputError("a RunConfig holds all settings; leave out the recipe, or give the data set in its place")
        return apply_options(source, options), None if dataset is None else from_graphs(dataset)
    if (source is None) == (dataset is None):
        raise InputError("train takes one data set: its name or path, or graphs; for example: train('MUTAG')")
    source = dataset if source is None else source
    name, packed = source, None
    if not isinstance(source, str | Path):
        packed = _pack(source, options.get("target"), options.get("task", "auto"))
        name = packed.name
    if recipe is None:
        recipe = find_recipe(str(name), options.get("model"))
        log_recipe(recipe)
        if recipe == "none":
            options = {
                "model": default_model(str(name), options.get("init_from"), options.get("smiles"), options.get("task")),
                **options,
            }
    config = apply_options(replace(read_recipe(recipe), dataset=str(name)), options)
    return (leave_open(config, options) if recipe == "none" else config), packed


def _pack(graphs: Any, target: Sequence[str] | str | None, task: str) -> PackedDataset:
    """The data set of graphs in memory; ``target`` is the attribute with their targets."""
    names = [target] if isinstance(target, str) else list(target or ())
    if len(names) > 1:
        raise InputError("targets of graphs in memory are one attribute; put a list of values into it")
    return from_graphs(graphs, names[0] if names else None, task=task)


def resolve_run(config: RunConfig, dataset: PackedDataset | None) -> tuple[RunConfig, PackedDataset]:
    """The settings of a new run in full, and graphs that can be learned from."""
    where = "give them: from_graphs(graphs, targets), or y of each graph"
    config = name_descriptors(config)
    if dataset is None:
        dataset = load_run_dataset(config)
        where = "name the columns that hold them (--target)"
        if dataset.texts is None and not find_graph_reader(config.dataset):
            where = (
                f"the TU layout keeps them in {dataset.name}_graph_labels.txt (classes) or "
                f"{dataset.name}_graph_attributes.txt (numbers)"
            )
        path = Path(config.dataset).expanduser()
        if config.dataset not in DATASETS and path.exists():  # must hold from elsewhere too
            table = config.table.replace_files(lambda file: str(Path(file).expanduser().resolve()))
            config = replace(config, dataset=str(path.resolve()), table=table)
    if not dataset.task.is_labelled:
        raise InputError(f"{dataset.name}: no targets to learn from; {where}")
    if (level := dataset.task.level) != "graph":
        _log.info("a number is learned for each %s: readouts and WL features are left out", level)
    config = inherit_settings(config)
    return replace(config, settings=full_settings(config.model, config.settings)), dataset


def resume(
    out: Path | str,
    *,
    dataset: Any = None,
    model: nn.Module | None = None,
    reporter: Reporter | None = None,
    tensorboard: bool = False,
) -> Run:
    """Continue the interrupted run in a folder from its last checkpoint.

    Args:
        out: The folder of the run. The number of ranks may differ from before.
        dataset: The graphs, if they were in memory.
        model: The module, if it was one of your own.
        reporter: Called with the progress.
        tensorboard: Write TensorBoard logs into the folder.

    >>> from mnagt import resume
    >>> resume("runs/mutag").result.epoch  # a finished run stays as it is
    1
    """
    out = Path(out)
    with use_module(model), join_ranks() as ranks:
        config = ranks.broadcast_from_rank0(lambda: read_run_config(out))
        graphs = load_run_dataset(config) if dataset is None else _pack(dataset, config.targets, config.task)
        split = ranks.broadcast_from_rank0(lambda: read_split(out, graphs))
        if ranks.broadcast_from_rank0(lambda: (out / RESULT).exists() and not (out / LAST).exists()):
            return _read_finished(out, split)
        return _run(config, graphs, split, out, reporter, tensorboard, ranks)


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
    log_folder, reporter = (out, reporter or Reporter()) if ranks.is_first else (None, Reporter())
    with stop_requests() as should_stop, RunLogs(log_folder, reporter, tensorboard) as logs:

        def write_run(config: RunConfig) -> None:
            """Write settings and split, unless they are there, and lock the run."""
            if out is not None:
                if not (out / RUN).exists():
                    write_record(out / SPLIT, split.to_dict())
                    write_record(out / RUN, {"config": asdict(config), "dataset": fingerprint})
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
    if ranks.is_first:
        trained = replace(trained, domain=fit_domain(trained.model, fitted.dataset, split))
    if log_folder is not None:
        trained.save(log_folder)
        write_record(log_folder / RESULT, asdict(result) | {"metrics_crc32": _checksum(log_folder / METRICS)})
        remove_checkpoint(log_folder / LAST)
    return Run(trained, result, split, fitted.trainer.at.history)


def remove_checkpoint(path: Path) -> None:
    """Remove the checkpoint of a finished run: it is several times as large as the model."""
    path.unlink(missing_ok=True)


def _read_finished(folder: Path, split: Split) -> Run:
    """The finished run in ``folder``."""
    try:
        content, checksum = read_json(folder / RESULT), _checksum(folder / METRICS)
        if content.pop("metrics_crc32", checksum) != checksum:
            raise ValueError
        result = Result(**content)
        history = [json.loads(line) for line in (folder / METRICS).read_text(encoding="utf-8").splitlines()]
    except (AttributeError, TypeError, ValueError, OSError):
        raise InputError(f"{folder}: {RESULT} or {METRICS} is damaged; restore it or train again") from None
    return Run(load_model(folder), result, split, history)


def _checksum(path: Path) -> int:
    return zlib.crc32(path.read_bytes())


def _describe_origin(fitted: FittedModel, split: Split, result: Result) -> dict[str, Any]:
    config, name = fitted.config, fitted.dataset.name
    return {
        "dataset": name,
        "run": asdict(_without_paths(config, name)),
        "parts": {part: len(indices) for part, indices in split.to_dict().items()},
        "result": asdict(result),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _without_paths(config: RunConfig, name: str) -> RunConfig:
    """The settings as a model keeps them, with the name of the data set for its path."""
    table, train = config.table.replace_files(lambda file: None), replace(config.train, init_from=None)
    return replace(config, dataset=name, split=replace(config.split, folder=None), table=table, train=train)


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
