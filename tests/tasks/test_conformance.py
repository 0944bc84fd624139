"""Every task supports the whole protocol, and nothing else in the package distinguishes tasks by their class."""

import ast
import math
from pathlib import Path

import pytest
import torch

import mnagt
from mnagt.errors import InputError
from mnagt.inference.calibration import LEVELS, Calibration, fit_calibration
from mnagt.metrics import Reliability
from mnagt.tasks import (
    TASKS,
    UNCERTAINTIES,
    CensoredRegression,
    EdgeRegression,
    Evidential,
    MeanVariance,
    Mixed,
    MultiLabel,
    NodeRegression,
    QuantileRegression,
    Regression,
    SingleLabel,
    SubTokens,
    Task,
    Unlabelled,
    task_from_dict,
    task_to_dict,
    word_keys,
)
from mnagt.tasks.target_column import TargetColumn

GRAPHS = 23
SOURCE = Path(mnagt.__file__).parent
WORDS, KEYS = word_keys([["get", "name"], ["set"], ["get"]] * 7 + [["is", "set", "name"]] * 2)
CASES: dict[str, tuple[Task, torch.Tensor]] = {
    "single-label": (SingleLabel(("a", "b", "c")), torch.arange(GRAPHS) % 3),
    "multi-label": (
        MultiLabel(("q", "r")),
        torch.stack([torch.arange(GRAPHS) % 2, torch.arange(GRAPHS) % 3 % 2], 1).float(),
    ),
    "regression": (Regression(("n", "m")), torch.randn(GRAPHS, 2, generator=torch.Generator().manual_seed(0)) * 7 + 3),
    "censored-regression": (
        CensoredRegression(("n", "m")),
        torch.cat(
            [torch.arange(2.0 * GRAPHS).reshape(-1, 2), (torch.arange(2 * GRAPHS) % 5 == 0).reshape(-1, 2) * 1.0], 1
        ),
    ),
    "node-regression": (NodeRegression(("n", "m")), torch.arange(2.0 * GRAPHS).reshape(-1, 2).sin() * 3 + 2),
    "edge-regression": (EdgeRegression(("n", "m")), torch.arange(2.0 * GRAPHS).reshape(-1, 2).cos() * 2 + 1),
    "mean-variance": (
        MeanVariance(("k", "l")),
        torch.randn(GRAPHS, 2, generator=torch.Generator().manual_seed(2)) * 5 - 2,
    ),
    "quantile": (QuantileRegression(("e", "f")), torch.arange(2.0 * GRAPHS).reshape(-1, 2).sin() * 4 + 1),
    "evidential": (Evidential(("g", "h")), torch.arange(2.0 * GRAPHS).reshape(-1, 2).cos() * 3 - 2),
    "mixed": (
        Mixed(
            ("toxic", "level", "size"),
            (MultiLabel(("toxic",)), SingleLabel(("low", "mid", "high")), Regression(("size",))),
        ),
        torch.stack(
            [
                torch.arange(GRAPHS) % 2,
                torch.arange(GRAPHS) % 3,
                torch.arange(GRAPHS).sin() * 5 + 2,
            ],
            1,
        ),
    ),
    "sub-tokens": (SubTokens(WORDS, positions=3), KEYS),
    "no targets": (Unlabelled(), torch.zeros(GRAPHS, 0)),
}
LABELLED = [kind for kind, task in TASKS.items() if task.is_labelled]
PARSABLE = [kind for kind, task in TASKS.items() if task.is_parsable]


@pytest.fixture(params=TASKS)
def case(request) -> tuple[Task, torch.Tensor, torch.Tensor]:
    """A task fitted to targets, the targets, and outputs."""
    task, target = CASES[request.param]
    task = task.fit(target)
    return task, target, torch.randn(GRAPHS, task.num_outputs, generator=torch.Generator().manual_seed(1))


def test_a_task_describes_itself(case):
    task, _, _ = case
    assert task.describe().startswith(task.kind)
    assert set(task.class_names) <= set(task.target_names)
    assert task.can_score(task)
    assert task.can_join(task)
    assert task_from_dict(task_to_dict(task)) == task
    for other, _ in CASES.values():
        assert task.can_score(other) == (task.kind == other.kind)


def test_long_descriptions_are_cut_short():
    task = MultiLabel(tuple(map(str, range(5000))))
    assert task.describe(2) == "multi-label (0, 1, ... 5,000 in all)"


def test_missing_targets_are_not_counted(case):
    task, target, output = case
    if not task.is_labelled:
        return
    padded = torch.cat([target, torch.full_like(target[:2], task.missing_target)])
    torch.testing.assert_close(task.loss(torch.cat([output, output[:2]]), padded), task.loss(output, target))
    assert task.loss_weight(padded) == task.loss_weight(target)


def test_probabilities_have_an_inverse(case):
    task, _, output = case
    probability = task.to_probability(output)
    torch.testing.assert_close(task.to_probability(task.from_probability(probability)), probability)
    if task.has_probability and task.kind != "mixed":
        assert bool(((probability >= 0) & (probability <= 1)).all())


def test_perfect_predictions_have_the_targets_probabilities(case):
    task, target, _ = case
    try:
        perfect = task.target_probability(target)
    except InputError as error:
        assert task.kind in str(error)  # noqa: PT017
        return
    assert perfect.shape == (GRAPHS, task.num_outputs)
    assert task.scores(task.from_probability(perfect), target)[task.metric] == pytest.approx(
        1 if task.higher_is_better else 0, abs=1e-5
    )


def test_decoded_predictions_have_a_row_for_each_graph(case):
    task, target, output = case
    assert all(len(column) == GRAPHS for column in task.decode(output).values())
    assert task.scores(task.reduce_output(output), target) == task.scores(output, target)
    assert task.is_labelled == (task.metric in task.scores(output, target))


def test_every_metric_can_choose_the_epoch_and_comes_first(case):
    task, target, output = case
    for name in task.metric_names:
        chosen = task.with_metric(name)
        scores = chosen.scores(output, target)
        assert next(iter(scores or {name: 0})) == chosen.metric == name
        assert scores == task.scores(output, target)
        assert task_from_dict(task_to_dict(chosen)) == chosen
        assert task.can_join(chosen)
        assert chosen.higher_is_better == (name.split("(")[0] not in ("rmse", "mae", "brier", "ece", "loss"))
    assert task.with_metric("auto") == task
    with pytest.raises(InputError, match=f"one of {task.metric_names[0]}.* got 'speed'"):
        task.with_metric("speed")


def test_intervals_hold_the_scores_and_resamples_are_scored_as_parts_are(case):
    task, target, output = case
    scores, intervals = task.scores(output, target), task.score_intervals(output, target)
    for name, (low, high) in intervals.items():
        assert low <= high
        assert name in scores
    if not intervals:
        assert task.is_sequence or not task.is_labelled
        return
    assert next(iter(intervals)) == task.metric
    rows = torch.stack([torch.arange(GRAPHS), torch.arange(GRAPHS).flip(0).clamp(min=5)])
    for name, values in task.compute_metrics(output[rows], target[rows]).items():
        alone = [task.scores(output[row], target[row])[name] for row in rows]
        assert values.tolist() == pytest.approx(alone)


def test_outputs_are_converted_to_the_scale_of_another_task(case):
    task, target, output = case
    other = CASES[task.kind][0].fit(target[: GRAPHS // 2]) if not task.is_sequence else task
    converted = task.convert_output(output, other)
    for name, column in other.decode(output).items():
        is_text = any(isinstance(cell, str) for cell in column)
        again = task.decode(converted)[name]
        if is_text:
            assert again == column
        else:
            torch.testing.assert_close(torch.tensor(again), torch.tensor(column), rtol=1e-4, atol=1e-4)


def test_every_task_can_be_calibrated(case):
    task, target, output = case
    if not task.is_labelled:
        return
    if task.level != "graph":
        with pytest.raises(InputError, match=f"the task is {task.kind}"):
            fit_calibration(task, output, target)
        return
    calibration = fit_calibration(task, output, target)
    assert len(calibration.thresholds) == task.num_thresholds
    assert (calibration.temperature == 1) == (not task.has_probability)
    assert Calibration.from_dict(calibration.to_dict(), task, "here") == calibration
    reliability = task.reliability(output, target)
    assert reliability is None or isinstance(reliability, Reliability)


def test_prediction_sets_have_a_row_for_each_graph_or_are_refused(case):
    task, _, output = case
    calibration = Calibration(1.0, ((0.5,) * LEVELS,) * task.num_thresholds, GRAPHS)
    if task.num_thresholds:
        assert all(len(c) == GRAPHS for c in calibration.prediction_sets(task, output, 0.9).values())
    else:
        with pytest.raises(InputError, match=f"the task is {task.kind}"):
            calibration.prediction_sets(task, output, 0.9)


def test_every_prediction_has_an_output_to_explain(case):
    task, _, output = case
    if not task.is_labelled or task.level != "graph":
        with pytest.raises(InputError, match=r"nothing to explain|explanations are for one value of each graph"):
            task.explained_outputs(output)
        return
    explained = task.explained_outputs(output)
    assert len(explained) == GRAPHS
    for row, each in enumerate(explained):
        assert each.name
        assert each.unit
        assert math.isfinite(each.score(output)[row].item())
        assert 0 <= each.confidence(output)[row].item() <= 1


def test_words_are_suggested_by_sequence_tasks_only(case):
    task, _, output = case
    if task.is_sequence:
        assert all(len(suggestions) == 2 for suggestions in task.suggest(output, 2))
    else:
        with pytest.raises(InputError, match="words"):
            task.suggest(output)


def test_settings_of_the_loss_are_taken_or_refused_by_name(case):
    task, target, output = case
    for setting, change in (
        ("class_weights", lambda: task.with_class_weights(target)),
        ("label_smoothing", lambda: task.with_label_smoothing(0.1)),
        ("stratified", lambda: task.stratification_classes(target)),
    ):
        try:
            change()
        except InputError as error:
            assert task.kind in str(error)  # noqa: PT017
            assert setting in str(error)  # noqa: PT017
    if task.is_labelled:
        plain = task.with_plain_loss()
        torch.testing.assert_close(plain.loss(output, target), CASES[task.kind][0].fit(target).loss(output, target))


TEXTS = {
    "single-label": ["a", "c", "", "a"],
    "multi-label": ["1", "true", "", "0.0"],
    "regression": ["1.5", "-2", "", "1e3"],
    "censored-regression": ["<1.5", ">= -2", "", "1e3"],
    "mixed": ["1.5", "-2", "", "1e3"],
    "node-regression": ["[1.5]", "-2", "", "(1e3)"],
    "edge-regression": ["1.5", "[-2]", "", "(1e3)"],
}
PARSED = {
    "single-label": [0, 1, -100, 0],
    "multi-label": [1, 1, math.nan, 0],
    "regression": [1.5, -2, math.nan, 1000],
    "censored-regression": [1.5, -2, math.nan, 1000, -1, 1, math.nan, 0],
    "mixed": [1.5, -2, math.nan, 1000],
    "node-regression": [1.5, -2, math.nan, 1000],
    "edge-regression": [1.5, -2, math.nan, 1000],
}


def column(texts: list[str]) -> TargetColumn:
    return TargetColumn("y", texts, "table.csv", lambda row: f"table.csv, line {row + 2}")


@pytest.mark.parametrize("kind", TASKS)
def test_targets_are_parsed_from_the_columns_of_a_table_or_refused(kind):
    if kind not in PARSABLE:
        with pytest.raises(InputError, match="cannot be read from a table"):
            TASKS[kind].from_columns([column(["1"])])
        if kind in UNCERTAINTIES:  # of the columns of numbers that a model of this kind is scored on
            assert CASES[kind][0].parse_targets([column(["1"])]).tolist() == [[1]]
            return
        with pytest.raises(InputError, match="cannot be read from a table"):
            CASES[kind][0].parse_targets([column(["1"])])
        return
    task = TASKS[kind].from_columns([column(TEXTS[kind])])
    target = task.parse_targets([column(TEXTS[kind])])
    target = target.T if target.ndim > 1 else target
    assert target.flatten().tolist() == pytest.approx(PARSED[kind], nan_ok=True)
    assert target.flatten()[2].item() == pytest.approx(task.missing_target, nan_ok=True)
    with pytest.raises(InputError, match=r"table\.csv, line 2: '\?' is "):
        task.parse_targets([column(["?"])])


def _names_in(node: ast.expr | ast.pattern) -> set[str]:
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return names | {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}


def distinctions(tree: ast.AST) -> list[int]:
    """Lines with ``isinstance``, ``issubclass``, a case of ``match`` or a comparison of types for a task class."""
    classes = {task.__name__ for task in TASKS.values()} | {"Task"}
    lines = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2:
            is_distinction = node.func.id in ("isinstance", "issubclass") and _names_in(node.args[1]) & classes
        elif isinstance(node, ast.MatchClass):
            is_distinction = _names_in(node.cls) & classes
        elif isinstance(node, ast.Compare):
            is_distinction = any(isinstance(each, ast.Name) and each.id in classes for each in node.comparators)
        elif isinstance(node, ast.Dict):
            keys = [key for key in node.keys if isinstance(key, ast.Attribute) and key.attr == "kind"]
            is_distinction = any(_names_in(key) & classes for key in keys)
        else:
            continue
        if is_distinction:
            lines.append(node.lineno if hasattr(node, "lineno") else 0)  # type: ignore[attr-defined]
    return lines


def test_no_other_module_distinguishes_tasks_by_class():
    others = (path for path in SOURCE.rglob("*.py") if path.parent.name != "tasks")
    found = {str(path.relative_to(SOURCE)): distinctions(ast.parse(path.read_text())) for path in others}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(task, SingleLabel | Regression)",
        "isinstance(task, (int, tasks.MultiLabel))",
        "match task:\n    case SubTokens():\n        pass",
        "type(task) is Regression",
        "{SingleLabel.kind: 1}",
    ],
)
def test_distinctions_are_found(code):
    assert len(distinctions(ast.parse(code))) == 1


@pytest.mark.parametrize("kind", PARSABLE)
def test_copies_of_a_graph_are_merged_to_the_mean_or_the_majority(kind):
    task, target = CASES[kind]
    assert task.describe_targets(target)
    every = torch.arange(GRAPHS)
    if task.level != "graph":  # whose order may differ
        with pytest.raises(InputError, match=kind):
            task.merge_targets(target, every)
        return
    torch.testing.assert_close(task.merge_targets(target, every), target)
    torch.testing.assert_close(task.merge_targets(target.repeat_interleave(3, 0), every.repeat_interleave(3)), target)
    missing = torch.full_like(target[:1], task.missing_target)
    merged = task.merge_targets(torch.cat([target, missing]), torch.cat([every, every[:1]]))
    torch.testing.assert_close(merged, target)


def test_differing_copies_are_averaged_and_a_tie_has_no_majority():
    group = torch.tensor([0, 0, 1, 1, 1])
    regression, labels = CASES["regression"][0], CASES["multi-label"][0]
    values = torch.tensor([[1.0, 2.0], [3.0, torch.nan], [0.0, 0.0], [0.0, 1.0], [3.0, 1.0]])
    torch.testing.assert_close(regression.merge_targets(values, group), torch.tensor([[2.0, 2.0], [1.0, 2 / 3]]))
    votes = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0], [1.0, torch.nan]])
    merged = labels.merge_targets(votes, group)
    torch.testing.assert_close(merged, torch.tensor([[torch.nan, 1.0], [1.0, 0.0]]), equal_nan=True)
    assert labels.describe_targets(votes) == "q: 60 % positive, r: 50 % positive"
