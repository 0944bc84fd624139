"""Tables, verdicts and the page, from ledgers made by hand: nothing is trained here."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from markup import Elements, is_self_contained, numbers

from mnagt.experiments.ledger import Ledger
from mnagt.experiments.reproduce import Findings, reproduce
from mnagt.experiments.reproduce_report import (
    build_page,
    build_table,
    draw_figures,
    list_notices,
    summarise_dataset,
    to_markdown,
    write_report,
)
from mnagt.experiments.reproduce_tables import EXPERIMENTS, ReproduceConfig, list_trials
from mnagt.training.run import Result

HIGH = (0.85, 0.86, 0.84, 0.87, 0.83, 0.86, 0.85, 0.88, 0.82, 0.86)
FACTS = {"name": "it", "graphs": 4110, "nodes": 122747, "edges": 265506, "digest": "abc"}

Known = Callable[..., Findings]


@pytest.fixture
def known(tmp_path: Path) -> Known:
    """What is found of an experiment of which these rows were run, with these test scores."""

    def find(
        name: str, scores: dict[str, Sequence[float]], datasets: Sequence[str] = ("NCI1",), **settings: object
    ) -> Findings:
        experiment, ledger = EXPERIMENTS[name], Ledger(tmp_path / "trials.jsonl")
        config = ReproduceConfig(seeds=len(next(iter(scores.values()))), datasets=tuple(datasets), **settings)  # type: ignore[arg-type]
        metric = "ap" if name == "table2" else "accuracy"
        for row in experiment.rows:
            for dataset in datasets if row.name in scores else ():
                repeats = zip(list_trials(row, dataset, experiment, config), scores[row.name], strict=True)
                for i, ((trial, *_), score) in enumerate(repeats):
                    result = Result(metric, 7, score - 0.01, {metric: score}, 1009, 2.5, "a <GPU>")
                    curves = {"epoch": [4, 8, 11], "loss": [1.0, 0.5 + i, 0.25], f"valid_{metric}": [0.5, 0.6, score]}
                    ledger.append(trial, result, curves=curves, dataset=FACTS, side_by_side=3)
        return reproduce(name, config, ledger, is_report_only=True)

    return find


def less(scores: Sequence[float], by: float) -> tuple[float, ...]:
    return tuple(score - by - i / 1000 for i, score in enumerate(scores))


def test_scores_without_duplicates_have_a_column_where_trials_recorded_them(known):
    scores = {"mnagt": HIGH, "GIN": less(HIGH, 0.02)}
    assert not any("duplicates" in name for name in build_table(known("baselines", scores))[0])
    findings = known("baselines", scores)
    for i, record in enumerate(findings.cell("mnagt", "NCI1").known.values()):
        record["without_duplicates"] = {"graphs": 370, "accuracy": 0.8 + i / 1000}
    head, lines = build_table(findings)
    column = head.index("NCI1, ours, without duplicates")
    assert {line[0]: line[column] for line in lines}["mnagt"] == "80.45 ± 0.30"
    assert {line[0]: line[column] for line in lines}["GIN"] == "–"
    assert "have no structural duplicate" in build_page(findings)


# --- words ---


def test_the_papers_figures_stand_beside_ours(known):
    head, lines = build_table(known("table1", {"mnagt": HIGH, "GCN": less(HIGH, 0.04)}, ("NCI1", "COLLAB")))
    assert head == ["method", "NCI1, paper", "NCI1, ours", "COLLAB, paper", "COLLAB, ours"]
    rows = {line[0]: line[1:] for line in lines}
    assert rows["GCN"] == ["79.68 ± 2.05", "80.75 ± 1.84", "71.92 ± 3.24", "80.75 ± 1.84"]
    assert rows["MNA-GT, as printed"] == ["82.73 ± 1.45", "–", "81.80 ± 2.24", "–"]
    assert rows["mnagt"] == ["–", "85.20 ± 1.81", "–", "85.20 ± 1.81"]


def test_scores_of_ogb_are_shares_and_validation_is_told(known):
    head, lines = build_table(known("table2", {"GIN": (0.2, 0.25)}, ("ogbg-molpcba",)))
    assert head[1:] == [f"ogbg-molpcba, {who}, {part}" for part in ("validation", "test") for who in ("paper", "ours")]
    assert next(line for line in lines if line[0] == "GIN")[1:] == [
        "0.2305 ± 0.0027",
        "0.2150",
        "0.2266 ± 0.0028",
        "0.2250 ± 0.0354",
    ]


def test_missing_trials_are_told(known):
    found = known("table1", {"mnagt": HIGH[:3]})
    assert "Incomplete: 3 of 39 trials are in the ledger; what is missing shows as –." in list_notices(found)
    more = reproduce("table1", replace(found.config, seeds=5), Ledger(found.ledger), is_report_only=True)
    assert build_table(more)[1][-1] == ["mnagt", "–", "85.00 ± 1.00 (3 of 5)"]


def test_a_ledger_of_other_seeds_is_reported(known):
    later = known("table1", {"mnagt": HIGH[:3]}, first_seed=30)
    found = reproduce("table1", replace(later.config, first_seed=0), Ledger(later.ledger), is_report_only=True)
    assert any(
        notice.endswith("for seeds from 30 to 32, which it has: --first-seed 30") for notice in list_notices(found)
    )


def test_trials_on_other_data_are_told(known):
    found = known("table1", {"mnagt": HIGH[:2], "GIN": HIGH[:2]})
    record = found.cells[-1].records[0]
    assert record is not None
    record["dataset"] = {**record["dataset"], "digest": "another"}
    told = "NCI1: the trials ran on different versions of the data set."
    assert told in list_notices(found)
    record["config"]["train"]["choose_over"] = record["config"]["train"].pop("selection_window")
    assert told not in list_notices(found)  # a trial of 0.1, whose digests are of another kind
    record["dataset"]["nodes"] = 1
    assert told in list_notices(found)


EVERY = {row.name: less(HIGH, 0.02 + i / 500) for i, row in enumerate(EXPERIMENTS["table1"].rows)}


def test_the_best_of_all_rows_is_called_so(known):
    said = summarise_dataset(known("table1", EVERY | {"mnagt": HIGH}), "NCI1")
    assert said.startswith("mnagt has the highest mean of the 13 rows, 85.20 ± 1.81; next is GCN, 82.75")
    assert said.endswith("The paired test shows it above each of them (p 0.023 at most).")


def test_higher_alone_is_not_better(known):
    near = tuple(score + (-0.011 if i % 2 else 0.01) for i, score in enumerate(HIGH))
    said = summarise_dataset(known("table1", EVERY | {"mnagt": HIGH, "GIN": near}), "NCI1")
    assert "next is GIN" in said
    assert "does not show it above GIN (p 0.22)" in said
    assert said.endswith("that it is best is not shown.")


def test_another_row_may_be_the_best(known):
    said = summarise_dataset(known("table1", {"mnagt": less(HIGH, 0.01), "GAT": HIGH, "GCN": less(HIGH, 0.03)}), "NCI1")
    assert said == (
        "mnagt (83.75 ± 1.84) is not the best of the 3 rows run (of 13); as high or higher: GAT (85.20 ± 1.81)."
    )


@pytest.mark.parametrize(
    ("means", "said"),
    [
        ((0.84, 0.83, 0.82, 0.81), "the paper's order. The paired test tells adaptive from concat and mean and sum."),
        ((0.83, 0.84, 0.82, 0.81), "; the paper's order is adaptive > concat > mean > sum."),
        ((0.84, 0.83, 0.83, 0.81), "= mean"),
    ],
)
def test_the_order_of_mixers_is_told(known, means, said):
    mixers = ("adaptive", "concat", "mean", "sum")
    scores = {f"mnagt, {mixer}": [mean + i / 100 for i in range(10)] for mixer, mean in zip(mixers, means, strict=True)}
    assert said in summarise_dataset(known("ablation", scores, ("COLLAB",)), "COLLAB")


def test_where_a_setting_is_best_is_told(known):
    scores = {f"mnagt, depth {depth}": (0.8 + depth / 100, 0.8) for depth in (1, 2, 3)}
    assert summarise_dataset(known("layers", scores), "NCI1") == (
        "mnagt is highest at 3 (81.50 ± 2.12) and lowest at 1 (80.50 ± 0.71)."
    )


def test_one_value_alone_is_no_finding(known):
    assert (
        summarise_dataset(known("layers", {"mnagt, depth 3": (0.8, 0.82)}), "NCI1")
        == "mnagt was run at 3 alone (81.00 ± 1.41)."
    )


def test_markdown_is_a_table(known):
    lines = to_markdown(known("table1", {"mnagt": HIGH})).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert rows[-1] == "| **mnagt** | **–** | **85.20 ± 1.81** |"


# --- figures and the page ---

SENSITIVE = {f"{model}, heads {m}": (0.8, 0.8 + m / 100) for model in ("mnagt", "mnagt-paper") for m in (2, 3, 4, 6, 8)}
MIXED = {f"{m}, {mixer}": (0.8, 0.82) for m in ("mnagt", "mnagt-paper") for mixer in ("adaptive", "concat", "sum")}
CASES = {"table1": EVERY, "table2": {"mnagt": (0.2, 0.3), "GIN": (0.1, 0.3)}, "heads": SENSITIVE, "ablation": MIXED}


@pytest.mark.parametrize("name", CASES)
def test_the_page_is_whole_and_alone(known, name):
    written = build_page(known(name, CASES[name], EXPERIMENTS[name].datasets[:2]))
    elements = Elements(written)
    assert is_self_contained(written)
    assert np.isfinite(numbers(written)).all()
    assert "a <GPU>" in elements.text
    assert "4,110 graphs, 122,747 nodes, 265,506 edges, digest abc" in elements.text
    assert all(svg.get("aria-label") or svg.get("aria-hidden") for svg in elements.all("svg"))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_page_of_an_empty_ledger_shows_the_paper(name, tmp_path):
    config = ReproduceConfig(datasets=("MUTAG",)) if name == "parameters" else ReproduceConfig()
    found = reproduce(name, config, Ledger(tmp_path / "none.jsonl"), is_report_only=True)
    said = Elements(build_page(found)).text
    assert EXPERIMENTS[name].title in said
    if name.startswith("table"):
        assert ("82.73 ± 1.45" if name == "table1" else "0.2832 ± 0.0026") in said


def test_paired_differences_are_in_the_table(known):
    said = Elements(build_page(known("table1", {"mnagt": HIGH, "GIN": less(HIGH, 0.02)}))).text
    assert "GIN–" in said
    assert "−2.45 ± 0.100.0020, 10" in said  # difference, p, splits above and below


def test_other_protocols_stand_beside(known):
    known("table1", {"mnagt": HIGH[:3]}, protocol="fixed")
    written = build_page(known("table1", {"mnagt": HIGH[3:6]}))
    assert "Other protocols" in written
    assert "one random 8:1:1 split for all trials" in written
    assert "Other protocols" not in build_page(known("table1", {"mnagt": HIGH[3:6]}, ("NCI109",)))


@pytest.mark.parametrize(
    ("name", "dataset", "drawn"),
    [
        ("table1", "NCI1", ["nci1-loss", "nci1-valid_accuracy"]),
        ("heads", "NCI1", ["nci1-heads"]),
        ("ablation", "COLLAB", [*(f"collab-ablation-{m}" for m in ("mnagt", "mnagt-paper")), "collab-loss"]),
    ],
)
def test_figures_are_files_too(known, name, dataset, drawn, tmp_path):
    found = known(name, CASES[name], (dataset,))
    write_report(tmp_path / "out", found)
    assert list(draw_figures(found, dataset))[:3] == drawn
    for stem in drawn:
        root = ElementTree.parse(tmp_path / "out" / "figures" / f"{stem}.svg").getroot()
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "var(--" not in (tmp_path / "out" / "figures" / f"{stem}.svg").read_text()
        assert (tmp_path / "out" / "figures" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")


def test_bars_show_what_another_mixer_gains_and_what_the_paper_found(known):
    scores = {"mnagt-paper, adaptive": (0.8, 0.84), "mnagt-paper, sum": (0.79, 0.82)}
    bars, *_ = draw_figures(known("ablation", scores, ("COLLAB",)), "COLLAB").values()
    tips = re.findall(r"<title>([^<]*)</title>", bars.to_svg())
    assert tips == ["sum: -1.5 ± 0.5", "sum, others: -2.12"]


def test_a_sensitivity_curve_has_a_dot_for_each_value(known):
    (chart,) = draw_figures(known("heads", SENSITIVE), "NCI1").values()
    positions = [float(x) for x in re.findall(r'</title><g><use[^>]* x="([^"]*)"', chart.to_svg())]
    assert len(positions) == 10
    steps = np.diff(positions[:5])
    assert steps / steps[0] == pytest.approx([1, 1, 2, 2], rel=1e-3)
