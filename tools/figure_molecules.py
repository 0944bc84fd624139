"""The tables of `benchmarks/molecule_tables.py`: scores, ranks and costs."""

import math
from statistics import mean
from typing import Any

from figure_ledgers import NOTHING, PLUS_MINUS, format_table, read_results

METRICS = {"rocauc": "ROC-AUC, higher is better", "rmse": "RMSE, lower is better"}
COMMANDS = {"mnagt train": "`mnagt-ensemble` (default)", "chemprop": "chemprop 2.3.1"}
"""What README calls the models."""


def build_molecule_tables() -> str:
    """Test scores of what `mnagt train` takes for a table of molecules, of chemprop, a forest and boosting."""
    found = read_results("molecule-tables-cpu.json")
    summary, metrics = found["summary"], {run["set"]: run["metric"] for run in found["runs"]}
    models, rows = list(summary["mean_rank"]), []
    for name, each in summary["sets"].items():
        best = min(models, key=lambda model: each["rank"][model])
        cells = [_describe_mean(each, model) for model in models]
        bold = [f"**{cell}**" if model == best else cell for model, cell in zip(models, cells, strict=True)]
        rows.append([name, METRICS[metrics[name]], *bold, str(len(each["seeds"]))])
    rows.append(["mean rank", "", *(f"{summary['mean_rank'][model]:.2f}" for model in models), ""])
    return format_table(["table", "score", *(f"`{model}`" for model in models), "seeds"], rows)


def build_molecule_tables_short() -> str:
    """README: the same with a row for each model; sets are columns, with their seeds if these differ."""
    summary = read_results("molecule-tables-cpu.json")["summary"]
    ranks, sets = summary["mean_rank"], summary["sets"]
    best = {name: min(ranks, key=lambda model: each["rank"][model]) for name, each in sets.items()}
    rows = []
    for model, rank in sorted(ranks.items(), key=lambda pair: pair[1]):
        cells = [_describe_mean(each, model) for each in sets.values()]
        bold = [f"**{cell}**" if best[name] == model else cell for name, cell in zip(sets, cells, strict=True)]
        rows.append([COMMANDS.get(model, f"`{model}`"), *bold, f"{rank:.2f}"])
    seeds = {_count_seeds(each) for each in sets.values()}
    shared = seeds.pop() if len(seeds) == 1 else ""
    head = [
        f"{name} ({_find_metric(name)[0]}{'' if shared else f'; {_count_seeds(each)}'})" for name, each in sets.items()
    ]
    return format_table([shared and f"mean of {shared}", *head, "mean rank"], rows)


def build_chemprop() -> str:
    """What was measured against chemprop: test scores, time to train and time to predict."""
    summary, took = (read_results(f"{name}-cpu.json") for name in ("molecule-tables", "screening"))
    rows = []
    for name, each in summary["summary"]["sets"].items():
        scores = [_describe_mean(each, model) for model in ("mnagt train", "chemprop")]
        rows.append([f"{name}, {', '.join(_find_metric(name))}", *scores, _count_seeds(each)])
    seconds = [_average_over_sets(summary["runs"], model, "processor_seconds") for model in ("mnagt train", "chemprop")]
    rows.append(["training, processor time, mean of the sets", *(f"{each:.0f} s" for each in seconds), ""])
    for command, model in (("predict", "gin"), ("screen", "mnagt")):
        pair = [took["variants"][name]["processor_us"] for name in (f"mnagt {command}, {model}", "chemprop predict")]
        what = f"prediction, processor time a molecule; ours is `mnagt {command}` of a `{model}`"
        rows.append([what, *(f"{each:,.0f} µs" for each in pair), ""])
    return format_table(["", "`mnagt`", "chemprop 2.3.1", "seeds"], rows)


def _find_metric(name: str) -> tuple[str, str]:
    """The score of a set, and which way is better."""
    runs = read_results("molecule-tables-cpu.json")["runs"]
    metric = next(run["metric"] for run in runs if run["set"] == name)
    score, _, direction = METRICS[metric].partition(", ")
    return score, direction


def _count_seeds(summary: dict[str, Any]) -> str:
    count = len(summary["seeds"])
    return f"{count} seed{'s' if count > 1 else ''}"


def _average_over_sets(runs: list[dict[str, Any]], model: str, key: str) -> float:
    """The mean over sets of the mean over seeds."""
    columns: dict[str, list[float]] = {}
    for run in runs:
        if run["model"] == model:
            columns.setdefault(run["set"], []).append(run[key])
    return mean(map(mean, columns.values()))


COSTS = ("processor_seconds", "peak_memory_mb", "folder_mb")


def build_molecule_costs() -> str:
    """Processor time, memory and folder of the newest training, by model and table."""
    runs = read_results("molecule-tables-cpu.json")["runs"]
    models, sets = (list(dict.fromkeys(run[key] for run in runs)) for key in ("model", "set"))
    rows = []
    for name in sets:
        row = [name]
        for model in models:
            some = [run for run in runs if (run["set"], run["model"]) == (name, model)]
            seconds, memory, folder = (some[-1][key] for key in COSTS) if some else (math.nan,) * 3
            row.append(f"{seconds:.0f} s, {memory:,.0f} MB, {folder:.1f} MB" if some else NOTHING)
        rows.append(row)
    return format_table(["table", *(f"`{model}`" for model in models)], rows)


def _describe_mean(summary: dict[str, Any], model: str) -> str:
    value, spread = summary["mean"][model], summary["deviation"].get(model)
    digits = 3 if abs(value) < 10 else 1
    return f"{value:.{digits}f}" + ("" if spread is None else f"{PLUS_MINUS}{spread:.{digits}f}")
