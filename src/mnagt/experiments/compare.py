"""Which model for these data? Several models on the same splits, with intervals, cost and learning curve."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError, count, join_names
from mnagt.experiments.chemprop import NAME as CHEMPROP
from mnagt.experiments.chemprop import run_chemprop
from mnagt.experiments.config import CompareConfig
from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.experiments.trials import keep_dataset, run_trials, with_seed
from mnagt.files import write_json, write_text
from mnagt.graphs.molecules import are_molecules
from mnagt.models.registry import MODELS
from mnagt.registry import lookup
from mnagt.reports.charts import line_chart, mean_series
from mnagt.reports.page import html, render_page
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.runs.fingerprint import matches_fingerprint
from mnagt.runs.split import make_split
from mnagt.tasks.mixed import LOSS
from mnagt.training.fit_model import fit_task
from mnagt.training.run import resolve_run

FOR_MOLECULES = ("mnagt-ensemble", "morgan-forest", "descriptor-boosting", "wl-linear", CHEMPROP)
FOR_GRAPHS = ("mnagt", "gin", "wl-linear")
CONSTANT = "constant"
"""The majority class, the share of positives or the mean: what a model must beat."""
SHARES = (0.25, 0.5, 1.0)
"""Shares of the training part in the learning curve."""

TrialName = tuple[str, int, float]
"""Model, number of the seed, and share of the training part."""


@dataclass(frozen=True)
class Compared:
    """The results of one model."""

    model: str
    valid: tuple[float, ...]
    """Validation scores on all training graphs, one for each seed: they give the order and the recommendation."""
    valid_interval: tuple[float, float] | None
    """Ends of the bootstrap intervals over the validation graphs, means over seeds; None in ledgers without them."""
    test: tuple[float, ...]
    """Test scores on all training graphs, one for each seed; they choose nothing."""
    interval: tuple[float, float]
    """Ends of the bootstrap intervals over the test graphs, means over seeds."""
    curve: dict[int, list[float]]
    """Test scores by the number of training graphs."""
    seconds: float = 0.0
    peak_memory_mb: float = 0.0
    """Of the process that trained."""
    parameters: int = 0

    @property
    def mean(self) -> float:
        """The mean test score."""
        return mean(self.test)

    @property
    def valid_mean(self) -> float:
        """The mean validation score."""
        return mean(self.valid)


@dataclass(frozen=True)
class Comparison:
    """All that the page shows, the model with the best validation score first."""

    dataset: str
    metric: str
    higher_is_better: bool
    models: tuple[Compared, ...]
    parts: dict[str, int]
    notes: tuple[str, ...] = ()
    """About models of other programs."""

    @property
    def equals(self) -> tuple[Compared, ...]:
        """Models whose validation mean lies within the validation interval of the best.

        Where all graphs are right, that interval has no width; then those whose own interval holds the best score.
        """
        best = self.models[0]
        low, high = best.valid_interval or (best.valid_mean, best.valid_mean)
        if self._is_without_width:
            intervals = [each.valid_interval or (math.nan, math.nan) for each in self.models]
            is_equal = [start <= best.valid_mean <= end for start, end in intervals]
        else:
            is_equal = [low <= each.valid_mean <= high for each in self.models]
        return tuple(each for each, equal in zip(self.models, is_equal, strict=True) if equal or each is best)

    @property
    def _is_without_width(self) -> bool:
        interval = self.models[0].valid_interval
        return interval is not None and interval[0] == interval[1]

    @property
    def choice(self) -> Compared:
        """The fastest of the equals."""
        return min(self.equals, key=lambda each: each.seconds)

    @property
    def notices(self) -> list[str]:
        """What a reader must know about how the model was chosen."""
        lines = ["Validation scores chose the order and the recommendation; test scores chose nothing.", *self.notes]
        if self.models[0].valid_interval is None:
            lines.append(
                "The ledger was written before validation intervals were kept: only the best validation score counts. "
                "Compare into a new folder to weigh cost among models that cannot be told apart."
            )
        return lines

    def verdict(self) -> str:
        """Which to use, in a sentence or two."""
        best, choice = self.models[0], self.choice
        ends = " to ".join(f"{end:.3f}" for end in best.valid_interval or ())
        interval = f" (95 % interval {ends})" if ends else ""
        text = f"{best.model} has the best validation {self.metric}: {best.valid_mean:.3f}{interval}."
        if best.model == CONSTANT:
            return f"{text} No model has learned anything from these data: use none of them."
        others = [each.model for each in self.equals if each is not best]
        if not others:
            reason = "No other model lies within its interval: use" if ends else "Use"
            return f"{text} {reason} {best.model}."
        reason = "their intervals hold this score" if self._is_without_width else "within this interval"
        same = f"Not clearly worse ({reason}): {', '.join(others)}."
        if CONSTANT in others:
            return f"{text} {same} That is no better than a constant."
        cost = f" ({choice.seconds:.1f} s to train; {best.model}: {best.seconds:.1f} s)" if choice is not best else ""
        return f"{text} {same} Use the fastest, {choice.model}{cost}."


def compare(
    config: RunConfig, out: Path, search: CompareConfig, say: Callable[[str], None] = lambda line: None
) -> Comparison:
    """Train several models on the same splits, and write a page: which to use for these data, by validation scores.

    Finished trainings are in ``out/trials.jsonl``; the same call goes on where it stopped.

    Args:
        config: Data set, split and training settings; its model is ignored.
        out: The folder of ledger and page.
        search: Models, seeds and processes.
        say: Called with each line of progress.
    """
    config, dataset = resolve_run(replace(config, model="mnagt"), None)
    keep_dataset(config, dataset)
    if (level := dataset.task.level) != "graph":
        raise InputError(
            f"models are compared by one value of each graph, and these targets are of {level}s; train them one by "
            "one: mnagt train --model gin --split-seed 0"
        )
    models = search.models or default_models(dataset)
    for name in models:
        lookup({**MODELS, CHEMPROP: None}, name, "model")
    trials = {(name, s, share): c for name in models for s, share, c in _list_trials(config, name, search)}
    of_chemprop = {key: trials.pop(key) for key in list(trials) if key[0] == CHEMPROP}
    ledger = Ledger(out / "trials.jsonl")

    def print_trial(trial: RunConfig, record: dict[str, Any]) -> None:
        result, share = record["result"], trial.train.train_share
        score = f"validation {result['metric']} {result['valid']:.4f}, test {result['test'][result['metric']]:.4f}"
        say(f"{trial.model}, {100 * share:.0f} % of the training graphs, seed {trial.train.seed}: {score}")

    recorded, keys = ledger.by_key(), {name: trial_key(trial) for name, trial in trials.items()}
    finished = [recorded[key] for key in keys.values() if key in recorded]
    for record in finished:
        if not matches_fingerprint(record.get("dataset"), dataset):
            raise InputError(f"{ledger.path}: {dataset.name} has changed since; compare into a new folder (--out)")
    say(f"{count(len(trials) - len(finished), 'training')} to do, of {join_names(models)}")
    failed: dict[str, str] = {}

    def note_failure(trial: RunConfig, error: Exception) -> None:
        failed.setdefault(trial.model, str(error))

    run_trials(trials.values(), ledger, jobs=search.jobs, on_trial=print_trial, on_failure=note_failure)
    recorded = ledger.by_key()
    records = {name: recorded[key] for name, key in keys.items() if key in recorded and name[0] not in failed}
    try:
        records |= run_chemprop(search.chemprop, of_chemprop, dataset, out, print_trial) if of_chemprop else {}
    except InputError as error:
        failed[CHEMPROP] = str(error)
    for name, reason in failed.items():
        say(f"{name} is left out: {reason}")
    if not records:
        raise InputError(f"no model could be trained: {'; '.join(failed.values())}")
    comparison = _summarise(records, dataset, config)
    write_text(out / "report.html", build_page(comparison, failed))
    write_json(out / "result.json", _describe(comparison))
    return comparison


def default_models(dataset: PackedDataset) -> tuple[str, ...]:
    """The models that are compared if none are named."""
    return FOR_MOLECULES if are_molecules(dataset.features) else FOR_GRAPHS


def _list_trials(config: RunConfig, name: str, search: CompareConfig) -> list[tuple[int, float, RunConfig]]:
    base = replace(config, model=name, settings={})
    trials = []
    for share in SHARES:
        for seed in range(search.seeds if share == 1 else min(search.curve_seeds, search.seeds)):
            trial = with_seed(base, config.train.seed + seed)
            trials.append((seed, share, replace(trial, train=replace(trial.train, train_share=share))))
    return trials


def _summarise(records: dict[TrialName, dict[str, Any]], dataset: PackedDataset, config: RunConfig) -> Comparison:
    metric = next(iter(records.values()))["result"]["metric"]
    task = dataset.task.with_metric(metric)
    models = [_summarise_model(model, records, metric) for model in dict.fromkeys(model for model, *_ in records)]
    seeds = sorted({seed for _, seed, share in records if share == 1})
    splits = [make_split(with_seed(config, config.train.seed + seed).split, dataset) for seed in seeds]
    if metric != LOSS or config.train.uncertainty == "none":  # a constant has no loss of a distribution
        models.append(score_constant(replace(config.train, metric=metric), dataset, splits))
    sign = -1 if task.higher_is_better else 1
    models.sort(key=lambda each: math.inf if math.isnan(each.valid_mean) else sign * each.valid_mean)
    parts = {name: len(getattr(splits[0], name)) for name in ("train", "valid", "test")}
    versions = sorted({record["version"] for (model, *_), record in records.items() if model == CHEMPROP})
    text = "chemprop {} was trained by its own program, with its defaults. Its seconds are those of the whole process."
    notes = tuple(map(text.format, versions))
    return Comparison(dataset.name, metric, task.higher_is_better, tuple(models), parts, notes)


def _summarise_model(model: str, records: dict[TrialName, dict[str, Any]], metric: str) -> Compared:
    by_share = [(share, record) for (name, _, share), record in records.items() if name == model]
    whole = [record for share, record in by_share if share == 1]
    results, curve = [record["result"] for record in whole], {}
    for _, record in sorted(by_share, key=lambda pair: pair[0]):
        curve.setdefault(record["split"]["train"], []).append(record["result"]["test"][metric])
    if not all(isinstance(result.get("valid"), float | int) for result in results):
        raise InputError(f"the ledger has no validation scores of {model}, which choose; compare into a new folder")
    ends = [result["valid_interval"] for result in results if result.get("valid_interval")]
    return Compared(
        model,
        tuple(result["valid"] for result in results),
        _mean_ends(ends) if len(ends) == len(results) else None,
        tuple(result["test"][metric] for result in results),
        _mean_ends([result.get("test_intervals", {}).get(metric, [result["test"][metric]] * 2) for result in results]),
        curve,
        mean(result["seconds"] for result in results),
        max(record.get("peak_memory_mb", 0.0) for record in whole),
        results[0]["parameters"],
    )


def _mean_ends(intervals: Sequence[Sequence[float]]) -> tuple[float, float]:
    return mean(low for low, _ in intervals), mean(high for _, high in intervals)


def score_constant(config: TrainConfig, dataset: PackedDataset, splits: Sequence[Split]) -> Compared:
    """The scores of the same prediction for every graph: shares of classes or means over the training part.

    Where the loss is the metric, it is that of the models, with their weights and transform of targets. Otherwise the
    mean is that of numbers in their units.
    """
    config = replace(config, uncertainty="none")
    if config.metric != LOSS:
        config = replace(config, target_transform="standardise")
    scores: dict[str, list[float]] = {"valid": [], "test": []}
    ends: dict[str, list[list[float]]] = {"valid": [], "test": []}
    for split in splits:
        fitted = fit_task(config, dataset, split.train)
        probability = fitted.target_probability(dataset.targets[split.train]).nanmean(dim=0)
        for part in scores:
            target = dataset.targets[getattr(split, part)]
            output = fitted.from_probability(probability).expand(len(target), -1)
            score = fitted.scores(output, target)[fitted.metric]
            scores[part].append(score)
            ends[part].append(fitted.score_intervals(output, target).get(fitted.metric, [score] * 2))
    valid, test = ((tuple(scores[part]), _mean_ends(ends[part])) for part in scores)
    return Compared(CONSTANT, *valid, *test, {len(splits[0].train): scores["test"]})


def describe_valid(compared: Compared) -> str:
    """The mean validation score, with its interval where there is one."""
    ends = compared.valid_interval
    return f"{compared.valid_mean:.3f}" + (f" ({ends[0]:.3f} to {ends[1]:.3f})" if ends else "")


def build_page(comparison: Comparison, failed: dict[str, str]) -> str:
    """The page: the advice, a table, and the learning curve."""
    models = comparison.models
    low = min(each.interval[0] for each in models)
    high = max(each.interval[1] for each in models)
    rows = []
    for each in models:
        text = f"{each.mean:.3f} ({each.interval[0]:.3f} to {each.interval[1]:.3f})"
        deviation = (each.interval[1] - each.interval[0]) / 2
        is_ours = each.model.startswith("mnagt")
        sketch = html.interval(f"{each.model}: {text}", each.mean, low, high, deviation, is_ours=is_ours)
        memory = f"{each.peak_memory_mb:,.0f}" if each.peak_memory_mb else "–"
        parameters = f"{each.parameters:,}" if each.parameters else "–"
        cost = ["–" if each.model == CONSTANT else f"{each.seconds:.1f}", memory, parameters]
        rows.append([each.model, describe_valid(each), text, sketch, *cost])
    drawn = [each for each in models if each.model != CONSTANT and len(each.curve) > 1]
    series = [mean_series(each.model, i, list(each.curve), list(each.curve.values())) for i, each in enumerate(drawn)]
    curve = None
    if series:
        ticks = sorted({count for each in drawn for count in each.curve})
        label = {"x_label": "training graphs", "y_label": comparison.metric, "x_ticks": ticks}
        curve = line_chart(f"Test {comparison.metric} by the number of training graphs", series, **label)
    return render_page(
        "experiments/compare.html", comparison=comparison, rows=rows, low=low, high=high, curve=curve, failed=failed
    )


def _describe(comparison: Comparison) -> dict[str, Any]:
    """What ``result.json`` holds."""
    models = {each["model"]: each for each in map(asdict, comparison.models)}
    return {
        "metric": comparison.metric,
        "chosen_by": "validation",
        "choice": comparison.choice.model,
        "verdict": comparison.verdict(),
        "notices": comparison.notices,
        "parts": comparison.parts,
        "models": models,
    }
