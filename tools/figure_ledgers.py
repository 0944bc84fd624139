"""Reads the ledgers and files under results/, and formats what they hold. A figure is rounded once, here."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from mnagt.experiments.ledger import Ledger, trial_key
from mnagt.experiments.reproduce_tables import MODEL_OF, TU, recipe
from mnagt.experiments.trials import with_seed

RESULTS = Path(__file__).parents[1] / "results"
NOTHING = "–"
PLUS_MINUS = "\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}"
NAMES = {
    "mnagt": "`mnagt`",
    "mnagt-wl": "`mnagt-wl` (`wl-linear` plus a network)",
    "mnagt-wl-attention": "`mnagt-wl` with attention",
    "wl-linear": "`wl-linear` (counts of WL subtrees)",
    "morgan-forest": "`morgan-forest` (fingerprints)",
    "gin": "GIN",
    "gin-virtual": "GIN with a virtual node",
    "gps": "GPS",
    "mnagt-paper": "MNA-GT as printed, trained here",
    **{model: name for name, model in MODEL_OF.items() if model not in ("mnagt-paper", "gin", "gin-virtual")},
}
LEDGERS = {
    **dict.fromkeys(TU, ("table1.jsonl", 30, 10)),
    **dict.fromkeys(
        [f"ogbg-mol{name}" for name in ("hiv", "bace", "bbbp", "tox21", "esol", "freesolv")], ("molecules.jsonl", 0, 5)
    ),
    "pypi_ast": ("code.jsonl", 0, 3),
    **dict.fromkeys(
        ("peptides-func", "tree-neighbours-match", "ring-transfer", "cycle-count"), ("attention.jsonl", 40, 6)
    ),
}
"""Where the trials on a data set are: ledger, first seed, how many."""
Scores = dict[int, float]
"""Test scores by seed; accuracies and F1 in percent."""


@cache
def read_ledger(name: str) -> dict[str, dict[str, Any]]:
    return Ledger(RESULTS / name).by_key()


@cache
def read_results(name: str) -> dict[str, Any]:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def find_scores(dataset: str, model: str, settings: Mapping[str, Any] | None = None) -> Scores:
    """Test scores of a recipe, with ``settings`` of its own, by seed."""
    ledger, first, count = LEDGERS[dataset]
    if model == "morgan-forest":
        ledger, first = "baselines.jsonl", 40
    recorded, scores = read_ledger(ledger), {}
    for seed in range(first, first + count):
        trial = recipe(dataset, model)
        trial = with_seed(replace(trial, settings={**trial.settings, **(settings or {})}), seed)
        if record := recorded.get(trial_key(trial)):
            result = record["result"]
            unit = 100 if result["metric"] in ("accuracy", "f1") else 1
            scores[seed] = unit * result["test"][result["metric"]]
    return scores


def find_fresh_records(dataset: str, model: str) -> dict[int, dict[str, Any]]:
    """Ledger lines of a recipe on seeds 40 to 59, by seed."""
    ledger = read_ledger("baselines.jsonl" if model == "wl-linear" else "wide-and-deep.jsonl")
    found = {seed: ledger.get(trial_key(with_seed(recipe(dataset, model), seed))) for seed in range(40, 60)}
    return {seed: record for seed, record in found.items() if record}


def find_fresh_scores(dataset: str, model: str, member: str | None = None) -> Scores:
    """Test accuracies in percent on seeds 40 to 59; ``member`` is a part of ``mnagt-wl`` by itself."""
    records = find_fresh_records(dataset, model).items()
    tests = {seed: r["members"][member] if member else r["result"]["test"] for seed, r in records}
    return {seed: 100 * test["accuracy"] for seed, test in tests.items()}


def format_scores(scores: Iterable[float], digits: int = 1) -> str:
    """Mean ± standard deviation; – without any."""
    values = list(scores)
    if not values:
        return NOTHING
    return f"{mean(values):.{digits}f}" + (f"{PLUS_MINUS}{stdev(values):.{digits}f}" if len(values) > 1 else "")


def format_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
