"""Several runs of one configuration: members of an ensemble, replicates, or the folds of a cross-validation."""

import logging
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Literal

from mnagt.data.packed import PackedDataset
from mnagt.errors import InputError
from mnagt.files import read_json, write_record
from mnagt.inference.ensemble import load_models
from mnagt.runs.config import RunConfig, SplitConfig
from mnagt.runs.folder import RESULT, RUN, RUNS, SPLIT, list_runs, load_run_dataset, read_split
from mnagt.runs.recipes import parse_run_config
from mnagt.runs.split import make_split
from mnagt.training.fit_model import Result
from mnagt.training.progress import Reporter
from mnagt.training.run import resolve_run, resume, train

Kind = Literal["ensemble", "replicates", "folds"]
NAMES: dict[Kind, str] = {"ensemble": "member", "replicates": "replicate", "folds": "fold"}
"""What a run of each kind is called: their folders are NAME-0, NAME-1, ..."""

FOLDS: dict[str, Any] = {
    **dict.fromkeys(("auto", "random", "stratified"), "stratified"),
    **dict.fromkeys(("scaffold", "random-scaffold", "scaffold-folds"), "scaffold-folds"),
    **dict.fromkeys(("group", "group-folds"), "group-folds"),
}
"""The kind of the folds that stand for a split of each kind."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SeveralRuns:
    """The results of several runs."""

    kind: Kind
    folders: tuple[Path, ...]
    results: tuple[Result, ...]
    ensemble: dict[str, float] | None = None
    """Test scores of the members of an ensemble together."""
    ensemble_intervals: dict[str, list[float]] | None = None

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Head and rows of a table: a line for each run, their mean and deviation, and the ensemble."""
        metric, names = self.results[0].metric, list(self.results[0].test)
        rows = [
            [folder.name, str(result.epoch), f"{result.valid:.4f}", *(f"{result.test[name]:.4f}" for name in names)]
            for folder, result in zip(self.folders, self.results, strict=True)
        ]
        columns = [[result.valid for result in self.results]]
        columns += [[result.test[name] for result in self.results] for name in names]
        rows.append(["mean", "", *(f"{mean(column):.4f}" for column in columns)])
        if len(self.results) > 1:
            rows.append(["deviation", "", *(f"{stdev(column):.4f}" for column in columns)])
        if self.ensemble is not None:
            rows.append(["ensemble", "", "", *(f"{self.ensemble[name]:.4f}" for name in names)])
        return ["run", "epoch", f"valid {metric}", *(f"test {name}" for name in names)], rows


def shift_seeds(config: RunConfig, by: int) -> RunConfig:
    """The same run with other weights, order and split: all of its seeds are higher by so much."""
    train, split = config.train, config.split
    return replace(config, train=replace(train, seed=train.seed + by), split=replace(split, seed=split.seed + by))


def vary(config: RunConfig, kind: Kind, count: int) -> list[RunConfig]:
    """The settings of each run.

    Members of an ensemble have other seeds on the same split. Replicates have other seeds, also of the split, which
    has no effect on one by scaffold or by a column. Folds are those of a cross-validation: one tests, the next
    validates. They are of whole scaffolds or groups for a split by these, and else stratified where each graph has one
    class.

    >>> [each.train.seed for each in vary(RunConfig("MUTAG"), "ensemble", 3)]
    [0, 1, 2]
    """
    if kind == "ensemble":
        return [replace(shift_seeds(config, i), split=config.split) for i in range(count)]
    if kind == "replicates":
        return [shift_seeds(config, i) for i in range(count)]
    if count < 3:
        raise InputError(f"a cross-validation needs at least 3 folds, to train, validate and test; got {count}")
    if config.split.kind not in FOLDS:
        raise InputError(
            f"folds are drawn at random, of graphs, scaffolds or groups, and not by {config.split.kind}; leave out the "
            "split, or the folds"
        )
    split_kind, column = FOLDS[config.split.kind], config.split.column
    if (column and split_kind != "group-folds") or config.table.part_files:
        raise InputError("folds are drawn at random, and the split is given by a column or by files; leave one out")
    folds = [SplitConfig(split_kind, config.split.seed, folds=count, fold=i, column=column) for i in range(count)]
    return [replace(config, split=fold) for fold in folds]


def choose_folds(config: RunConfig, dataset: PackedDataset, count: int) -> RunConfig:
    """The settings with the split 'auto' replaced: folds of molecules are of whole scaffolds, if there are enough."""
    if config.split.kind != "auto" or dataset.texts is None or config.split.column or config.table.part_files:
        return config
    by_scaffold, stratified = (
        replace(config, split=replace(config.split, kind=kind)) for kind in ("scaffold-folds", "stratified")
    )
    first = vary(by_scaffold, "folds", count)[0].split
    try:
        largest = len(make_split(first, dataset).test)
    except InputError:
        _log.warning("folds are drawn at random: the molecules have too few scaffolds for folds of whole ones")
        return stratified
    _log.info("folds are of whole scaffolds, as the parts of a single run; --split random draws single molecules")
    if largest > 1.5 * len(dataset) / count:
        _log.warning(
            "fold 0 has %s of %s molecules, which have one scaffold or no ring: the run that tests it trains on few",
            *(f"{largest:,}", f"{len(dataset):,}"),
        )
    return by_scaffold


def train_several(
    config: RunConfig,
    out: Path | str,
    kind: Kind,
    count: int,
    *,
    dataset: PackedDataset | None = None,
    reporter: Reporter | None = None,
) -> SeveralRuns:
    """Train ``count`` models, each into a folder of its own in ``out``; finished ones are not trained again.

    ``predict``, ``evaluate``, ``explain`` and the service take ``out`` as one model: the ensemble of its runs.

    Args:
        config: Settings of the runs, as far as they have them in common.
        out: The folder.
        kind: 'ensemble', 'replicates' or 'folds', see ``vary``.
        count: How many.
        dataset: The data set, if it is in memory already.
        reporter: Called with the progress of each run.
    """
    out = Path(out)
    if (out / RUNS).exists() or (out / RUN).exists():
        raise InputError(f"{out}: holds a run already; go on with --resume {out}, or choose another --out")
    config, dataset = resolve_run(config, dataset)
    if kind == "folds":
        config = choose_folds(config, dataset, count)
    configs = vary(config, kind, count)
    names = [f"{NAMES[kind]}-{i}" for i in range(count)]
    write_record(out / RUNS, {"kind": kind, "runs": names, "config": asdict(config)})
    return _train_missing(out, kind, configs, dataset, reporter)


def resume_several(out: Path | str, *, reporter: Reporter | None = None) -> SeveralRuns:
    """Go on with the runs in ``out`` that are not finished."""
    out = Path(out)
    folders, content = list_runs(out), read_json(out / RUNS)
    try:
        kind, config = content["kind"], parse_run_config(content["config"], str(out / RUNS))
        configs = vary(config, kind, len(folders))
    except (KeyError, TypeError):
        raise InputError(f"{out / RUNS}: damaged or not of several runs; restore it or train again") from None
    return _train_missing(out, kind, configs, load_run_dataset(config), reporter)


def _train_missing(
    out: Path, kind: Kind, configs: list[RunConfig], dataset: PackedDataset, reporter: Reporter | None
) -> SeveralRuns:
    folders, results = list_runs(out), []
    for folder, config in zip(folders, configs, strict=True):
        if (folder / RUN).exists():
            run = resume(folder, reporter=reporter)
        else:
            run = train(config, folder, dataset=dataset, reporter=reporter)
        results.append(run.result)
    scores = intervals = None
    if kind == "ensemble":
        for name in (RUN, SPLIT):  # the members', so that `evaluate` and `calibrate` know the data
            write_record(out / name, read_json(folders[0] / name))
        test, ensemble = read_split(folders[0], dataset).test, load_models(folders)
        output, target = ensemble.outputs(dataset, test), dataset.targets[test]
        scores, intervals = ensemble.task.scores(output, target), ensemble.task.score_intervals(output, target)
    splits = [read_json(folder / SPLIT) for folder in folders]
    if kind == "replicates" and len(splits) > 1 and all(split == splits[0] for split in splits):
        _log.warning(
            "all replicates have the same parts, since their split draws nothing: the deviation is that of the "
            "training alone; --split random-scaffold draws other scaffolds for each, --split random other molecules"
        )
    several = SeveralRuns(kind, tuple(folders), tuple(results), scores, intervals)
    write_record(out / RESULT, _describe(several))
    return several


def _describe(several: SeveralRuns) -> dict[str, Any]:
    runs = {folder.name: asdict(result) for folder, result in zip(several.folders, several.results, strict=True)}
    more = {} if several.ensemble is None else {"test": several.ensemble, "test_intervals": several.ensemble_intervals}
    return {"kind": several.kind, "runs": runs, **more}
