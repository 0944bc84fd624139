"""The tables of `benchmarks/molecule_tables.py`: scores, ranks and costs."""

import math
from statistics import mean
from typing import Any

from figure_ledgers import NOTHING, PLUS_MINUS, format_table, read_results

METRICS = {"rocauc": "ROC-AUC, higher is better", "rmse": "RMSE, lower is better"}


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


def build_molecule_costs() -> str:
    """Processor time, memory and folder of a training, by model and table."""
    runs = read_results("molecule-tables-cpu.json")["runs"]
    models, sets = (list(dict.fromkeys(run[key] for run in runs)) for key in ("model", "set"))
    rows = []
    for name in sets:
        row = [name]
        for model in models:
            some = [run for run in runs if (run["set"], run["model"]) == (name, model)]
            columns = [[run[key] for run in some] for key in ("processor_seconds", "peak_memory_mb", "folder_mb")]
            seconds, memory, folder = (mean(column) if column else math.nan for column in columns)
            row.append(f"{seconds:.0f} s, {memory:,.0f} MB, {folder:.1f} MB" if some else NOTHING)
        rows.append(row)
    return format_table(["table", *(f"`{model}`" for model in models)], rows)


def _describe_mean(summary: dict[str, Any], model: str) -> str:
    value, spread = summary["mean"][model], summary["deviation"].get(model)
    digits = 3 if abs(value) < 10 else 1
    return f"{value:.{digits}f}" + ("" if spread is None else f"{PLUS_MINUS}{spread:.{digits}f}")
