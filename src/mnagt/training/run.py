"""A run: data set, split, model and settings in; a folder with a trained model and its figures out."""

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Int
from torch import Tensor

from mnagt.data import DATASETS, load_dataset, own_graphs
from mnagt.data.packed import PackedDataset
from mnagt.data.smiles import scaffold_split, smiles_of
from mnagt.data.splits import Split, group_split, official_split, random_split, split_from_files, stratified_folds
from mnagt.errors import InputError, shown
from mnagt.files import alone_with, read_json, write_json
from mnagt.models import MODELS, full_settings
from mnagt.models.graph_model import GraphModel
from mnagt.registry import lookup
from mnagt.settings import from_dict, read_toml
from mnagt.tasks import SingleLabel, Task, Unasked
from mnagt.training import forests
from mnagt.training.config import RunConfig, SplitConfig
from mnagt.training.devices import device_name, pick_device, room_on
from mnagt.training.fit import Position, Trainer, outputs, products
from mnagt.training.logs import RunLogs
from mnagt.training.model_folder import CONFIG, Trained, built
from mnagt.training.progress import Reporter
from mnagt.training.ranks import Ranks, joined
from mnagt.training.room import check_room

RUN, SPLIT, LAST, RESULT = "run.json", "split.json", "last.safetensors", "result.json"


@dataclass(frozen=True)
class Result:
    """What a finished run found. The test part was scored once, with the weights of ``epoch``."""

    metric: str
    epoch: int
    """The epoch that validation chose."""
    valid: float
    """With the forest, if the model has one; epochs are chosen without it."""
    test: dict[str, float]
    parameters: int
    seconds: float
    device: str


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run."""

    trained: Trained
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
    """Train the model that ``config`` describes and score it once on the test part.

    With ``out`` the run keeps its settings, split, logs, checkpoints and model there. Interrupted by Ctrl-C or
    SIGTERM it saves its state and raises ``Interrupted``; after any end, even kill -9, ``resume`` goes on from the
    last checkpoint. Processes that torchrun started train one model together, and the first of them writes.
    """
    out = None if out is None else Path(out)
    with joined() as ranks:
        ranks.told(lambda: _check_free(out))
        config, dataset = _asked(config, dataset)
        split = ranks.told(lambda: make_split(config.split, dataset))
        return _run(config, dataset, split, out, reporter, tensorboard, ranks)


def _check_free(out: Path | None) -> None:
    if out is not None and ((out / RUN).exists() or (out / CONFIG).exists()):
        raise InputError(f"{out}: holds a run already; go on with --resume {out}, or choose another --out")


def _asked(config: RunConfig, dataset: PackedDataset | None) -> tuple[RunConfig, PackedDataset]:
    """The settings of a new run in full, and graphs that can be learned from."""
    if dataset is None:
        dataset = dataset_of(config)
        path = Path(config.dataset).expanduser()
        if config.dataset not in DATASETS and path.exists():  # must hold from elsewhere too
            config = replace(config, dataset=str(path.resolve()))
    if isinstance(dataset.task, Unasked):
        where = "name the columns that hold them (--target)"
        if dataset.texts is None and not own_graphs(config.dataset):
            where = (
                f"the TU layout keeps them in {dataset.name}_graph_labels.txt (classes) or "
                f"{dataset.name}_graph_attributes.txt (numbers)"
            )
        raise InputError(f"{dataset.name}: no targets to learn from; {where}")
    return replace(config, settings=full_settings(config.model, config.settings)), dataset


def resume(out: Path | str, *, reporter: Reporter | None = None, tensorboard: bool = False) -> Run:
    """Go on with the run in ``out``, with as many ranks as there are now."""
    out = Path(out)

    def config() -> RunConfig:
        if not (out / RUN).exists():
            raise InputError(f"{out}: no run to go on with; `mnagt train DATASET --out {out}` starts one")
        return from_dict(RunConfig, kept(out, "config"), where=str(out / RUN))

    with joined() as ranks:
        began = ranks.told(config)
        dataset = dataset_of(began)
        split = ranks.told(lambda: kept_split(out, dataset))
        return _run(began, dataset, split, out, reporter, tensorboard, ranks)


def prepared(config: RunConfig, dataset: PackedDataset, split: Split) -> tuple[GraphModel, PackedDataset, Task]:
    """The model of a run with its first weights, the data set with what the model needs, and the task to learn."""
    task = dataset.task.fitted(dataset.targets[split.train])
    if config.train.balance:
        task = task.balanced(dataset.targets[split.train])
    if config.train.smoothing:
        task = task.smoothed(config.train.smoothing)
    with torch.random.fork_rng([]):
        torch.default_generator.manual_seed(config.train.seed)
        model = built(config.model, config.settings, dataset.features, task.outputs)
    forests.check(model, task, dataset.targets)
    return model, met(model, dataset, split.train), task


def met(model: GraphModel, dataset: PackedDataset, train: Int[Tensor, "some"]) -> PackedDataset:
    """The data set with the encodings that the model needs, which learns which subtrees the training part has."""
    dataset = with_encodings(dataset, model.encodings)
    if model.subtrees is not None:
        model.subtrees.meet(*dataset.encoded("subtrees", train))
    return dataset


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
    device = ranks.place(pick_device(config.device))
    if ranks.are_many and ranks.told(lambda: _facts(dataset)) != (own := _facts(dataset)):
        raise InputError(f"rank {ranks.rank} reads another {dataset.name} than the first ({own}); give all the same")
    model, dataset, task = prepared(config, dataset, split)
    check_room(model, dataset, config.train, device)
    kept_in = out if ranks.is_first else None
    with (
        ExitStack() as held,
        room_on(device, config),
        stop_requests() as should_stop,
        RunLogs(kept_in, (reporter if ranks.is_first else None) or Reporter(), tensorboard) as logs,
    ):

        def begin() -> None:
            """Nothing is written for a run that cannot begin, nor by two at once."""
            if out is not None:
                if not (out / RUN).exists():
                    write_json(out / SPLIT, split.to_dict())
                    write_json(out / RUN, {"config": asdict(config), "dataset": _facts(dataset)})
                busy = f"{out}: another process is at work on this run; wait for it, or choose another --out"
                held.enter_context(alone_with(out / RUN, busy))

        ranks.told(begin)
        trainer = Trainer(
            model,
            dataset,
            split,
            task,
            config.train,
            device=device,
            checkpoint=None if out is None else out / LAST,
            reporter=logs,
            should_stop=should_stop,
            ranks=ranks,
        )
        at = trainer.run()
        result = _finished(model, trainer, at, dataset)
    trained = _trained(config, model.cpu(), dataset, split, task, result)
    if kept_in is not None:
        trained.save(kept_in)
        write_json(kept_in / RESULT, asdict(result))
    return Run(trained, result, split, at.history)


def _finished(model: GraphModel, trainer: Trainer, at: Position, dataset: PackedDataset) -> Result:
    """Grow the forest, if the model has one, and score the test part."""
    task, split, config, ranks = trainer.task, trainer.split, trainer.config, trainer.ranks
    began = time.monotonic()
    forests.grow(model, dataset, split.train, task, config.seed, should_stop=trainer.should_stop)
    seconds = at.seconds + time.monotonic() - began

    def scores(part: Int[Tensor, "some"]) -> dict[str, float]:
        with products(trainer.device, config.precision):
            said = outputs(model, trainer.dataset, part, trainer.judged_at_once, ranks, task.kept)
        asked = trainer.dataset.targets[part.to(trainer.device)]
        return ranks.told(lambda: task.scores(said, asked))

    valid = at.history[at.best_epoch - 1][f"valid_{task.metric}"]
    if model.forest is not None:
        valid = scores(split.valid)[task.metric]
    place = device_name(trainer.device) + (f", {ranks.count} ranks" if ranks.are_many else "")
    test = scores(split.test)
    return Result(task.metric, at.best_epoch, valid, test, model.parameter_count, round(seconds, 3), place)


def _trained(
    config: RunConfig, model: GraphModel, dataset: PackedDataset, split: Split, task: Task, result: Result
) -> Trained:
    origin = {
        "dataset": dataset.name,
        "run": asdict(replace(config, dataset=dataset.name, split=replace(config.split, folder=None))),  # no paths
        "parts": {part: len(indices) for part, indices in split.to_dict().items()},
        "result": asdict(result),
        "date": datetime.now(UTC).date().isoformat(),
    }
    return Trained(model, task, config.model, config.settings, origin, dataset.vocabularies, columns=dataset.columns)


def shipped_recipe(dataset: str, model: str) -> Path | None:
    """The recipe that comes with the package for a model on a data set, if there is one."""
    here = Path(__file__).parents[1]
    folder = next(place for place in (here / "recipes", here.parents[1] / "recipes") if place.is_dir())
    path = folder / dataset.lower() / f"{model}.toml"
    return path if path.is_file() else None


def read_recipe(path: Path | str) -> RunConfig:
    """A run's settings from a TOML file; DATASET/MODEL, where there is no such file, is a recipe of the package."""
    path = Path(path)
    if len(path.parts) == 2 and not path.exists():
        path = shipped_recipe(*path.parts) or path
    config = from_dict(RunConfig, read_toml(path), where=str(path))
    try:
        settings = lookup(MODELS, config.model, "model").config
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    from_dict(settings, config.settings, where=f"{path}: settings")
    return config


def dataset_of(config: RunConfig) -> PackedDataset:
    """The data set that a run is about."""
    return load_dataset(
        config.dataset, smiles=config.smiles, targets=config.targets, task=config.task, group=config.split.column
    )


def settled(config: RunConfig) -> RunConfig:
    """The same run with the kind of split that 'auto' stands for, where the name of the data set tells it."""
    if config.split.kind != "auto" or config.dataset not in DATASETS:
        return config
    kind = "official" if DATASETS[config.dataset].brings_split else "random"
    return replace(config, split=replace(config.split, kind=kind))


def make_split(config: SplitConfig, dataset: PackedDataset) -> Split:
    """The split that ``config`` describes."""
    kind = config.kind
    if kind == "auto":
        kind = "random" if dataset.official is None else "official"
    match kind:
        case "official":
            if dataset.official is None:
                raise InputError(f"{dataset.name} brings no split of its own; split at random")
            return official_split(dataset.official.cpu())
        case "random":
            return random_split(len(dataset), config.seed)
        case "stratified":
            if not isinstance(dataset.task, SingleLabel):
                raise InputError(
                    f"a stratified split needs one class a graph, and {dataset.name} is {dataset.task.kind}; "
                    "split at random"
                )
            if not 0 <= config.fold < config.folds:
                raise InputError(f"split.fold must be 0 to {config.folds - 1}, got {config.fold}")
            return stratified_folds(dataset.targets, config.folds, config.seed)[config.fold]
        case "group":
            if dataset.groups is None:
                raise InputError(
                    f"{dataset.name}: a split by groups needs the column that names them: --split-column, or column "
                    "under [split] in a recipe"
                )
            return group_split(dataset.groups.cpu(), config.seed)
        case "scaffold":
            return scaffold_split(smiles_of(dataset))
        case "files":
            if config.folder is None:
                raise InputError(
                    "a split from files needs their folder: --split-folder, or folder under [split] in a recipe"
                )
            return split_from_files(Path(config.folder), len(dataset))


def with_encodings(dataset: PackedDataset, needed: dict[str, int]) -> PackedDataset:
    """The data set with structural encodings worked out once; trials on the same data set share them."""
    from mnagt.data.mapped import GrowingRows
    from mnagt.graphs.encodings import ENCODINGS

    if not needed:
        return dataset
    known = _ENCODED.setdefault(dataset, {})
    missing = needed.items() - known.keys()
    parts = {each: GrowingRows(int(dataset.node_ptr[-1])) for each in missing}
    for chunk in torch.arange(len(dataset)).split(1024) if missing else ():
        batch = dataset.batch(chunk)
        for (name, size), rows in parts.items():
            rows.append(lookup(ENCODINGS, name, "encoding")(batch, size))
    known |= {each: rows.joined() for each, rows in parts.items()}
    return replace(dataset, encodings={name: known[name, size] for name, size in needed.items()})


_ENCODED: WeakKeyDictionary[PackedDataset, dict[tuple[str, int], Tensor]] = WeakKeyDictionary()
"""By name and size, for as long as the data set is there."""


def _facts(dataset: PackedDataset) -> dict[str, Any]:
    """Enough to notice that a data set has changed."""
    digest = hashlib.blake2b(dataset.source.cpu().numpy().data, digest_size=12)  # mapped columns are not copied
    digest.update(dataset.targets.cpu().numpy().tobytes())
    return {
        "name": dataset.name,
        "graphs": len(dataset),
        "nodes": int(dataset.node_ptr[-1]),
        "edges": len(dataset.source),
        "digest": digest.hexdigest(),
    }


def kept(folder: Path, what: str) -> Any:
    """The part called ``what`` of the run's record."""
    record = read_json(folder / RUN)
    if not isinstance(record, dict) or what not in record:
        raise InputError(f"{folder / RUN}: no {what!r} in it; it is damaged or not a run's: restore it or train again")
    return record[what]


def kept_split(folder: Path, dataset: PackedDataset) -> Split:
    """The split that the run in ``folder`` began with, on the data set that it began on."""
    began, now = kept(folder, "dataset"), _facts(dataset)
    if began != now:
        raise InputError(
            f"{folder / RUN}: the run began on {shown(began, 300)}, and the data set is now {now}; put the old one back"
        )
    try:
        split = Split.from_dict(read_json(folder / SPLIT))
        dataset.sizes[torch.cat([split.train, split.valid, split.test])]
    except InputError:
        raise
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError):
        raise InputError(f"{folder / SPLIT}: damaged or not a split; restore it or train again") from None
    return split


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Ctrl-C and SIGTERM ask training to stop at the next step; a second Ctrl-C stops it there and then."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: Any) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
