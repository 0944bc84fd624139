"""Runs the paper's experiments: trials over a ledger, and a look at what it holds of them."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mnagt.data.packed import PackedDataset
from mnagt.data.registry import DATASETS, data_root, load_dataset, locate_dataset
from mnagt.devices import pick_device
from mnagt.errors import InputError
from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.experiments.reproduce_tables import (
    EXPERIMENTS,
    PROTOCOLS,
    Experiment,
    Printed,
    Protocol,
    ReproduceConfig,
    Row,
    list_trials,
    recipe,
    select_cells,
)
from mnagt.experiments.statistics import Paired, holm
from mnagt.experiments.trials import Summary, run_trials, summarise
from mnagt.models.registry import build_model
from mnagt.registry import lookup
from mnagt.runs.config import RunConfig
from mnagt.runs.split import make_split
from mnagt.training.progress import Reporter, clock


@dataclass(frozen=True)
class Cell:
    """What is known of one row on one data set."""

    row: Row
    dataset: str
    records: tuple[dict[str, Any] | None, ...] = ()
    """Of each repeat; none where it was not run."""
    counted: int | None = None
    """Parameters, where nothing is trained."""

    @cached_property
    def known(self) -> dict[int, dict[str, Any]]:
        return {i: record for i, record in enumerate(self.records) if record is not None}

    @cached_property
    def summary(self) -> Summary | None:
        return summarise(list(self.known.values())) if self.known else None

    @property
    def metric(self) -> str:
        return next(iter(self.known.values()))["result"]["metric"] if self.known else "score"

    @property
    def unit(self) -> float:
        """Accuracies are percentages, other scores shares."""
        return 100.0 if self.metric == "accuracy" else 1.0

    @cached_property
    def tests(self) -> dict[int, float]:
        """The test score of each repeat."""
        return {i: self.unit * record["result"]["test"][self.metric] for i, record in self.known.items()}

    @cached_property
    def unique(self) -> list[float]:
        """Test scores on the graphs that have no structural duplicate in training, of trials that recorded it."""
        notes = [record.get("without_duplicates", {}) for record in self.known.values()]
        return [self.unit * note[self.metric] for note in notes if self.metric in note]

    @property
    def mean(self) -> float:
        """The mean test score; minus infinity where there is none."""
        return -math.inf if self.summary is None else self.unit * self.summary.test_mean

    @property
    def deviation(self) -> float:
        """The standard deviation of the test score; 0 where it is not known."""
        return 0.0 if self.summary is None or math.isnan(self.summary.test_std) else self.unit * self.summary.test_std

    def less(self, other: "Cell") -> Paired | None:
        """This less the other, on the repeats that both have; none if there are none."""
        both = [i for i in self.tests if i in other.tests]
        return Paired(tuple(self.tests[i] - other.tests[i] for i in both)) if both else None

    @property
    def unit_sign(self) -> str:
        return "%" if self.unit == 100 else ""

    @property
    def ours(self) -> str:
        """Our test score, or number of parameters."""
        return self.show("ours", "test")

    def show(self, who: str, part: str) -> str:
        """A score on a part as the paper prints it, of the ``paper`` or ``ours``; – if there is none. Parts are valid,
        test, and unique: the test graphs without a structural duplicate in training.

        Ours comes with the number of trials where some are missing. Where nothing is trained, parameters are shown.
        """
        if who == "paper":
            printed: Printed | None = getattr(self.row, part).get(self.dataset)
            score = "–" if printed is None else format_score(*printed, 1.0 if printed.mean < 1 else 100.0)
            return self.row.count.get(self.dataset, score)
        s = self.summary
        if s is None:
            return "–" if self.counted is None else f"{self.counted:,}"
        missing = "" if s.trials == len(self.records) else f" ({s.trials} of {len(self.records)})"
        if part == "unique":
            std = stdev(self.unique) if len(self.unique) > 1 else None
            return format_score(mean(self.unique), std, self.unit) if self.unique else "–"
        if part == "valid":
            return format_score(self.unit * s.valid_mean, None, self.unit) + missing
        return format_score(self.mean, self.unit * s.test_std, self.unit) + missing


def format_score(value: float, std: float | None, unit: float, sign: str = "") -> str:
    """Two digits of a percentage, four of a share; a deviation that is not known is left out."""
    digits = 2 if unit == 100 else 4
    return f"{value:{sign}.{digits}f}" + ("" if std is None or math.isnan(std) else f" ± {std:.{digits}f}")


@dataclass(frozen=True)
class Findings:
    """All that a report shows."""

    name: str
    experiment: Experiment
    config: ReproduceConfig
    cells: tuple[Cell, ...]
    elsewhere: Mapping[Protocol, tuple[Cell, ...]]
    """The same under other protocols, where the ledger holds some of it."""
    problems: tuple[str, ...]
    """Why something is missing."""
    ledger: Path

    @cached_property
    def datasets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(cell.dataset for cell in self.cells))

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        return tuple({cell.row.name: cell.row for cell in self.cells}.values())

    def cell(self, name: str | None, dataset: str) -> Cell:
        """What is known of a row on a data set: nothing, where it was left out."""
        row = next((row for row in self.rows if row.name == name), Row("", ""))
        return next((cell for cell in self.on(dataset) if cell.row is row), Cell(row, dataset))

    def on(self, dataset: str) -> list[Cell]:
        return [cell for cell in self.cells if cell.dataset == dataset]

    def records(self, dataset: str | None = None) -> list[dict[str, Any]]:
        """The records of all trials, or of those on a data set."""
        cells = self.cells if dataset is None else self.on(dataset)
        return [record for cell in cells for record in cell.known.values()]

    def by_model(self, dataset: str) -> dict[str, list[Cell]]:
        """The cells that have scores, by model."""
        cells: dict[str, list[Cell]] = {}
        for cell in self.on(dataset):
            if cell.summary:
                cells.setdefault(cell.row.model, []).append(cell)
        return cells

    def compare(self, dataset: str) -> dict[str, tuple[Paired, float]]:
        """Each row less the row that it is held against, and p of that, corrected for how many rows there are."""
        pairs = {}
        for cell in self.on(dataset):
            if (pair := cell.less(self.cell(cell.row.against, dataset))) is not None:
                pairs[cell.row.name] = pair
        corrected = holm([pair.p for pair in pairs.values()])
        return {name: (pair, p) for (name, pair), p in zip(pairs.items(), corrected, strict=True)}


def read_cells(
    experiment: Experiment, config: ReproduceConfig, recorded: Mapping[str, dict[str, Any]]
) -> tuple[Cell, ...]:
    """The cells of an experiment from the records of a ledger (``by_key``). Nothing is run."""
    return tuple(
        Cell(row, dataset, tuple(_choose(trials, recorded) for trials in list_trials(row, dataset, experiment, config)))
        for row, dataset in select_cells(experiment, config)
    )


def _choose(candidates: Sequence[RunConfig], recorded: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The record with the best validation score, once there is one of every candidate."""
    records = [recorded.get(trial_key(config)) for config in candidates]
    complete = [record for record in records if record is not None]
    if len(complete) < len(records):
        return None
    return max(complete, key=lambda record: record.get("chosen_by", record["result"]["valid"]))


def reproduce(
    name: str,
    config: ReproduceConfig,
    ledger: Ledger,
    *,
    is_report_only: bool = False,
    say: Callable[[str], None] = lambda line: None,
    reporter: Reporter | None = None,
) -> Findings:
    """Run the trials of an experiment that the ledger lacks, and return what it holds then.

    An interruption loses the trials that are running; the same call continues. A missing data set or a trial that
    fails is listed among the problems, and the others still run.
    """
    experiment = lookup(EXPERIMENTS, name, "experiment")
    if config.ray is None:  # a cluster may have what this machine has not
        for device in config.devices:
            pick_device(device)
    problems: list[str] = []
    if experiment.kind == "parameters":
        cells = _count_parameters(experiment, config, problems)
        return Findings(name, experiment, config, cells, {}, tuple(problems), ledger.path)
    if not is_report_only:
        _run(experiment, config, ledger, problems, say, reporter)
    recorded = ledger.by_key()
    elsewhere: dict[Protocol, tuple[Cell, ...]] = {}
    others: list[Protocol] = [protocol for protocol in PROTOCOLS if protocol != config.protocol]
    for other in others:
        cells = read_cells(experiment, replace(config, protocol=other, seeds=None), recorded)
        if any(len(cell.known) > 1 and not has_official_split(cell.dataset) for cell in cells):
            elsewhere[other] = cells
    cells = read_cells(experiment, config, recorded)
    if not any(cell.known for cell in cells) and (seeds := _recorded_seeds(cells, recorded)):
        problems.append(
            f"no trial of these seeds is in {ledger.path}; for seeds from {min(seeds)} to {max(seeds)}, which it has: "
            f"--first-seed {min(seeds)}"
        )
    return Findings(name, experiment, config, cells, elsewhere, tuple(problems), ledger.path)


def _recorded_seeds(cells: Sequence[Cell], recorded: Mapping[str, dict[str, Any]]) -> set[int]:
    """The seeds of trials in the ledger with the models and data sets of these cells."""
    wanted = {(cell.row.model, cell.dataset) for cell in cells}
    configs = [record["config"] for record in recorded.values()]
    return {each["train"]["seed"] for each in configs if (each["model"], each["dataset"]) in wanted}


def _run(
    experiment: Experiment,
    config: ReproduceConfig,
    ledger: Ledger,
    problems: list[str],
    say: Callable[[str], None],
    reporter: Reporter | None,
) -> None:
    cells, recorded, names, missing = select_cells(experiment, config), ledger.by_key(), {}, []
    for dataset in dict.fromkeys(dataset for _, dataset in cells):
        rows = [row for row, other in cells if other == dataset]
        repeats = zip(*(list_trials(row, dataset, experiment, config) for row in rows), strict=True)
        trials = [(row, trial) for repeat in repeats for row, each in zip(rows, repeat, strict=True) for trial in each]
        names |= {trial_key(trial): _name(row, trial) for row, trial in trials}
        wanted = [trial for _, trial in trials if trial_key(trial) not in recorded]
        say(f"{dataset}: {len(trials)} trials, {len(trials) - len(wanted)} of them in {ledger.path}")
        if wanted and _load_usable(dataset, problems):  # read once here, so that processes find it in the cache
            missing += wanted
    start, done, failures = time.monotonic(), 0, {}

    def line(trial: RunConfig, words: str) -> None:
        nonlocal done
        done += 1
        left = clock((time.monotonic() - start) / done * (len(missing) - done))
        say(f"[{done}/{len(missing)}] {names[trial_key(trial)]}: {words}; {left} left")

    def on_trial(trial: RunConfig, record: dict[str, Any]) -> None:
        result = record["result"]
        line(trial, f"{result['metric']} {result['test'][result['metric']]:.4f}, {result['seconds']:.1f} s")

    def on_failure(trial: RunConfig, error: Exception) -> None:
        reason = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
        failures.setdefault(reason, []).append(names[trial_key(trial)])
        line(trial, f"failed, {reason}")

    run_trials(
        missing,
        ledger,
        jobs=config.jobs,
        devices=config.devices,
        ray=config.ray,
        on_trial=on_trial,
        on_failure=on_failure,
        reporter=reporter,
        until=time.time() + 60 * config.minutes,
    )
    for reason, (first, *others) in failures.items():
        problems.append(f"{first}{f' and {len(others)} others' if others else ''} failed: {reason}")


def has_official_split(dataset: str) -> bool:
    """The data set has an official split, which protocols leave alone."""
    return dataset in DATASETS and DATASETS[dataset].has_official_split


def _load_usable(name: str, problems: list[str]) -> PackedDataset | None:
    """The data set, fetched if need be; or else it is noted why not."""
    try:
        dataset = load_dataset(name)
    except InputError as error:
        problems.append(f"{name} was left out: {error}")
        return None
    if dataset.task.higher_is_better:
        return dataset
    problems.append(f"{name} was left out: its {dataset.task.metric} is an error, and these tables compare scores")
    return None


def _count_parameters(experiment: Experiment, config: ReproduceConfig, problems: list[str]) -> tuple[Cell, ...]:
    """Parameters of each model for each data set that is there; none is fetched for it."""
    cells, datasets = [], {}
    for row, name in select_cells(experiment, config):
        if name not in datasets and name in DATASETS and locate_dataset(name, data_root()) is None:
            problems.append(f"{name} was left out: not in {data_root()}; put it there, or set MNAGT_DATA")
            datasets[name] = None
        elif name not in datasets:
            datasets[name] = _load_usable(name, problems)
        dataset, counted = datasets[name], None
        if dataset is not None:
            run = recipe(name, row.model)
            task = dataset.task.fit(dataset.targets[make_split(run.split, dataset).train])
            counted = build_model(run.model, run.settings, dataset.features, task.num_outputs).parameter_count
        cells.append(Cell(row, name, counted=counted))
    return tuple(cells)


def _name(row: Row, trial: RunConfig) -> str:
    which = f"seed {trial.train.seed}"
    if trial.split.kind == "stratified":
        which = f"fold {trial.split.fold}, lr {trial.train.lr:.2g}"
    return f"{row.name} on {trial.dataset}, {which}"
