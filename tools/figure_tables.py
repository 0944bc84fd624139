"""The tables of README and docs, each made from the files under results/."""

import json
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from statistics import mean
from typing import Any

from figure_ledgers import (
    LEDGERS,
    NAMES,
    NOTHING,
    PLUS_MINUS,
    RESULTS,
    Scores,
    find_fresh_records,
    find_fresh_scores,
    find_scores,
    format_scores,
    format_table,
    read_results,
)
from figure_molecules import (
    build_chemprop,
    build_molecule_costs,
    build_molecule_tables,
    build_molecule_tables_short,
)
from figure_reliability import build_large_graphs, build_out_of_core, build_reliability, build_threads
from figure_speed import (
    build_conv_gpu,
    build_screening,
    build_speed,
    build_speed_gpu,
    build_speed_more,
    build_speed_short,
)
from figure_uncertainty import build_coverage, build_coverage_molhiv, build_coverage_numbers, build_deletion

from mnagt.experiments.reproduce_tables import MODEL_OF, PAPER, TU
from mnagt.experiments.statistics import Paired


def build_score_table(
    models: Sequence[str], datasets: Sequence[str], extra: Iterable[Sequence[str]] = (), *, lower: Sequence[str] = ()
) -> str:
    """A row for each model, a column for each data set, the best mean of a column bold (``lower``: lower is better)."""
    scores = {(model, data): find_scores(data, model) for model in models for data in datasets}
    best = {}
    for data in datasets:
        means = {model: mean(s.values()) for model in models if (s := scores[model, data])}
        best[data] = (min if data in lower else max)(means, key=means.__getitem__)
    rows = []
    for model in models:
        cells = [format_scores(scores[model, data].values(), _digits(data)) for data in datasets]
        rows.append(
            [NAMES[model], *(f"**{c}**" if best[d] == model else c for d, c in zip(datasets, cells, strict=True))]
        )
    return format_table(["", *datasets], [*rows, *extra])


def _digits(dataset: str) -> int:
    return 3 if dataset.startswith(("ogbg", "peptides")) else 2 if dataset == "cycle-count" else 1


def read_printed(name: str) -> list[str]:
    """The paper's own figures in table 1, as it prints them."""
    return [f"{score:.2f}{PLUS_MINUS}{std:.2f}" for score, std in (PAPER["table1"]["test"][name][data] for data in TU)]


# --- accuracy ---


FRESH: list[tuple[str, str, str | None]] = [
    (NAMES["mnagt-wl"], "mnagt-wl", None),
    (NAMES["mnagt-wl-attention"], "mnagt-wl-attention", None),
    (NAMES["wl-linear"], "wl-linear", None),
    ("the network of `mnagt-wl` alone", "mnagt-wl", "network"),
    ("the same with attention", "mnagt-wl-attention", "network"),
    (NAMES["gin"], "gin", None),
]
"""Rows on twenty splits that nothing was chosen by: name, recipe, and the part of it that predicts."""


def build_fresh(parts: Sequence[tuple[str, str, str | None]] = FRESH) -> str:
    """`mnagt-wl`, its parts and its baselines on twenty splits that nothing was chosen by."""
    scores = [[find_fresh_scores(data, model, member) for data in TU] for _, model, member in parts]
    best = [max(mean(column.values()) for column in columns) for columns in zip(*scores, strict=True)]
    rows = []
    for (name, _, _), row in zip(parts, scores, strict=True):
        cells = []
        for each, top in zip(row, best, strict=True):
            cell, is_best = format_scores(each.values()), mean(each.values()) == top
            cells.append((f"**{cell}**" if is_best else cell) + ("" if len(each) == 20 else f" ({len(each)} splits)"))
        rows.append([name, *cells])
    for model in ("mnagt", "mnagt-paper"):
        cells = [format_scores(find_scores(data, model).values()) for data in TU]
        rows.append([f"{NAMES[model]}, on ten other splits", *cells])
    rows.append(["MNA-GT, the paper's own figures", *read_printed("MNA-GT")])
    gaps = [
        (data, pair_scores(*(find_fresh_scores(data, model) for model in ("mnagt-wl", "wl-linear")))) for data in TU
    ]
    pairs = ", ".join(f"{pair.mean:+.1f} on {data} (p = {pair.p:.2g})" for data, pair in gaps)
    table = format_table(["twenty random splits", *TU], rows)
    return f"{table}\n\n`mnagt-wl` minus `wl-linear`: {pairs}; paired Wilcoxon test over twenty splits."


def build_accuracy() -> str:
    """README: our models beside the baselines that are above them or come near."""
    return build_fresh([part for part in FRESH if part[2] is None and part[1] != "mnagt-wl-attention"])


def build_table1() -> str:
    """All rows of the paper's table 1, ours and the paper's side by side."""
    rows = []
    for name, model in (
        ("", "mnagt"),
        ("", "wl-linear"),
        ("", "gin"),
        *((n, MODEL_OF[n]) for n in PAPER["table1"]["test"]),
    ):
        ours = [format_scores(find_scores(data, model).values()) for data in TU]
        paper = read_printed(name) if name else [NOTHING] * len(TU)
        rows.append([NAMES[model], *(cell for pair in zip(ours, paper, strict=True) for cell in pair)])
    return format_table(["", *(f"{data}, {who}" for data in TU for who in ("ours", "paper"))], rows)


def build_molecules() -> str:
    models = ["mnagt", "morgan-forest", "gin-virtual", "gps"]
    sets = [data for data in LEDGERS if data.startswith("ogbg")]
    scores, errors = sets[:4], sets[4:]
    parts = ["ROC-AUC, higher is better:", build_score_table(models, scores), "RMSE, lower is better:"]
    return "\n\n".join([*parts, build_score_table(models[:3], errors, lower=errors)])


def build_code() -> str:
    return build_score_table(["mnagt", "gcn-virtual", "sat", "graphtrans"], ["pypi_ast"])


def build_mixers() -> str:
    """The paper's ablation on COLLAB."""
    rows = []
    for mixer, printed in PAPER["ablation"].items():
        ours = [
            format_scores(find_scores("COLLAB", model, {"mixer": mixer}).values()) for model in ("mnagt", "mnagt-paper")
        ]
        rows.append([mixer, f"{printed:.2f}", *reversed(ours)])
    return format_table(["mixer", "paper", "MNA-GT as printed, trained here", "`mnagt`"], rows)


# --- attribution ---


def pair_scores(one: Scores, other: Scores) -> Paired:
    return Paired(tuple(one[seed] - other[seed] for seed in one if seed in other))


NEED_DISTANCE = {
    "peptides-func": "peptides-func (AP)",
    "tree-neighbours-match": "tree-neighbours-match (made up)",
    "ring-transfer": "ring-transfer (made up)",
    "cycle-count": "cycle-count (made up; RMSE, less is better)",
}
"""Data sets with a recipe ``mnagt`` and one ``mnagt-no-attention``, as tables call them."""


def find_without_attention(dataset: str) -> tuple[Scores, Scores]:
    """Scores of the network of ``mnagt-wl`` alone, with and without attention."""
    with_it, without = (find_fresh_scores(dataset, f"mnagt-wl{end}", "network") for end in ("-attention", ""))
    return with_it, without


PARTS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("attention", "NCI1", "mnagt", {"attention": "none"}),
    ("WL subtree features", "COLLAB", "mnagt", {"wl_iterations": None}),
    ("adaptive mixer (without: mean)", "COLLAB", "mnagt", {"mixer": "mean"}),
    ("random-forest ensemble member", "ogbg-molhiv", "mnagt", {"forest_trees": 0, "forest_weight": 0.5}),
    ("cosine attention (without: softmax)", "pypi_ast", "mnagt", {"attention": "softmax"}),
]
"""A part of the default recipe, the data set, the model, and the settings that leave the part out in training.
When COLLAB was first read, ``wl_iterations = None`` stood for none at all where nodes have no labels."""


ONLY_IN_DOCS = {
    ("attention", "tree-neighbours-match"),
    ("attention", "cycle-count"),
    ("adaptive mixer (without: mean)", "COLLAB"),
    ("cosine attention (without: softmax)", "pypi_ast"),
}
"""Rows that README leaves out."""


def build_attribution(is_short: bool = False) -> str:
    """What each part is worth; ``is_short`` leaves out ``ONLY_IN_DOCS``."""
    compared = [
        *(
            ("attention", data, find_scores(data, "mnagt"), find_scores(data, "mnagt-no-attention"))
            for data in NEED_DISTANCE
        ),
        *(("attention, network of `mnagt-wl`", data, *find_without_attention(data)) for data in TU),
        *((part, data, find_scores(data, m), find_scores(data, m, settings)) for part, data, m, settings in PARTS),
    ]
    rows = []
    for part, data, full, without in compared:
        if not without or (is_short and (part, data) in ONLY_IN_DOCS):
            continue
        pair, digits = pair_scores(full, without), _digits(data)
        gain = f"{pair.mean:+.{digits}f}{PLUS_MINUS}{pair.error:.{digits}f}"
        cells = [format_scores(scores.values(), digits) for scores in (full, without)]
        rows.append([part, NEED_DISTANCE.get(data, data), *cells, gain, f"{pair.p:.2g}", str(len(pair.gaps))])
    return format_table(
        ["part", "data set", "with it", "without it", "gain ± standard error", "p", "splits or seeds"], rows
    )


# --- COLLAB without structural duplicates ---


def build_duplicates() -> str:
    found = read_results("duplicates-cpu.json")
    rows = []
    for data, of in found["datasets"].items():
        for model, trials in of["models"].items():
            parts = [[100 * t[part] for t in trials if t[part] is not None] for part in ("all", "unique", "duplicates")]
            share = 100 * mean(t["share"] for t in trials)
            rows.append(
                [data, NAMES[model].split(",")[0], f"{share:.1f} %", *map(format_scores, parts), str(len(trials))]
            )
    head = [
        "data set",
        "model",
        "test graphs with a duplicate in training",
        "all test graphs",
        "without a duplicate",
        "with one",
        "splits",
    ]
    return format_table(head, rows)


def build_duplicates_fresh() -> str:
    """Accuracy on all test graphs of the twenty splits, and on those without a duplicate in training."""
    rows = []
    for name, model in ((NAMES["mnagt-wl"], "mnagt-wl"), (NAMES["gin"], "gin")):
        for data in TU:
            records = find_fresh_records(data, model).values()
            every, unique = ([100 * r["accuracy"] for r in of] for of in zip(*map(_tests, records), strict=True))
            rows.append([data, name.split(",")[0], format_scores(every), format_scores(unique), str(len(every))])
    return format_table(["data set", "model", "all test graphs", "without a duplicate", "splits"], rows)


def _tests(record: dict[str, Any]) -> tuple[dict[str, float], dict[str, float]]:
    return record["result"]["test"], record["without_duplicates"]


# --- where figures come from ---


def build_provenance() -> str:
    """Date and commit of every file of figures."""
    rows = []
    for path in sorted(RESULTS.glob("*.json*")):
        if path.suffix == ".jsonl":
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            dates, commits = ({record.get(key) for record in records} for key in ("date", "commit"))
        else:
            found = read_results(path.name)
            dates, commits = {found.get("date")}, {found["machine"].get("commit")}
        rows.append([f"`{path.name}`", _join_days(dates), _join_commits(commits)])
    return format_table(["file", "measured", "commit"], rows)


def _join_days(dates: set[str | None]) -> str:
    days = sorted({date[:10] for date in dates if date})
    return " to ".join(dict.fromkeys((days[0], days[-1]))) if days else "not recorded"


def _join_commits(commits: set[str | None]) -> str:
    named = sorted(commit[:7] for commit in commits if commit)
    return (
        ", ".join(f"`{commit}`" for commit in named) + (" and not recorded" if None in commits and named else "")
        or "not recorded"
    )


def build_tuning() -> str:
    """How many settings of each model were tried, as far as it is stored."""
    variants: dict[tuple[str, str], set[str]] = {}
    for line in (RESULTS / "sweep.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        variants.setdefault((record["config"]["model"], record["config"]["dataset"]), set()).add(record["try"])
    for line in (RESULTS / "nci1-baselines.jsonl").read_text(encoding="utf-8").splitlines():
        config = json.loads(line)["config"]
        decay = f"weight decay {config['train']['weight_decay']}"
        variants.setdefault((config["model"], "NCI1"), set()).add(decay)
    datasets = list(dict.fromkeys([*TU, *sorted(dataset for _, dataset in variants)]))
    models = sorted({model for model, _ in variants}, key=lambda model: (model != "mnagt", model))
    rows = [
        [f"`{m}`", *(str(len(variants[m, data])) if (m, data) in variants else NOTHING for data in datasets)]
        for m in models
    ]
    return format_table(["settings tried", *datasets], rows)


TABLES: dict[str, Callable[[], str]] = {
    "accuracy": build_accuracy,
    "attribution": build_attribution,
    "attribution-short": partial(build_attribution, is_short=True),
    "speed": build_speed,
    "speed-short": build_speed_short,
    "table1": build_table1,
    "fresh": build_fresh,
    "molecules": build_molecules,
    "molecule-tables": build_molecule_tables,
    "molecule-tables-short": build_molecule_tables_short,
    "molecule-costs": build_molecule_costs,
    "chemprop": build_chemprop,
    "code": build_code,
    "conv-gpu": build_conv_gpu,
    "coverage": build_coverage,
    "coverage-numbers": build_coverage_numbers,
    "coverage-molhiv": build_coverage_molhiv,
    "deletion": build_deletion,
    "mixers": build_mixers,
    "duplicates": build_duplicates,
    "duplicates-fresh": build_duplicates_fresh,
    "speed-more": build_speed_more,
    "speed-gpu": build_speed_gpu,
    "screening": build_screening,
    "tuning": build_tuning,
    "provenance": build_provenance,
    "reliability": build_reliability,
    "threads": build_threads,
    "out-of-core": build_out_of_core,
    "large-graphs": build_large_graphs,
}
"""The tables by the names that pages call them by."""
