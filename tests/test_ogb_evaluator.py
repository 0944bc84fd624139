"""Our scores are those of OGB's evaluator."""

import csv
import math
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
import torch
from strategies import generator

from mnagt.data.download import OGB_SITE
from mnagt.data.registry import DATASETS
from mnagt.tasks import END, UNKNOWN, MultiLabel, Regression, SubTokens, word_keys


@pytest.fixture(scope="module")
def ogb() -> Any:
    """The evaluators' own file: importing the package around it would reach for the network."""
    package = find_spec("ogb")
    if package is None or package.origin is None:
        pytest.skip("ogb is not installed")
    spec = spec_from_file_location("ogb_evaluate", Path(package.origin).parent / "graphproppred" / "evaluate.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ASKED = {"ap": MultiLabel, "rocauc": MultiLabel, "rmse": Regression}
MOLECULES = [name for name, source in DATASETS.items() if source.kind == "ogb" and source.metric in ASKED]


@pytest.mark.parametrize("name", [*MOLECULES, "ogbg-code2"])
def test_data_sets_are_judged_by_the_official_metric_and_fetched_from_the_official_place(name, ogb):
    evaluator, source = ogb.Evaluator(name), DATASETS[name]
    assert (evaluator.eval_metric.lower(), evaluator.num_tasks) == (source.metric, source.classes)
    names, *rows = csv.reader(Path(ogb.__file__).with_name("master.csv").read_text().splitlines())
    facts = {row[0]: row for row in rows}
    assert f"{OGB_SITE}/{source.archive}" == facts["url"][names.index(name)].replace("http://", "https://")


@pytest.mark.parametrize("name", ["ogbg-molpcba", "ogbg-molhiv", "ogbg-moltox21"])
def test_questions_score_the_same(name, ogb):
    """With ties, missing answers, and questions that have answers of one kind or none."""
    source, g = DATASETS[name], generator(0)
    output = (torch.randn(503, source.classes, generator=g) * 9).round()
    target = (torch.rand(503, source.classes, generator=g) < torch.sigmoid(output - 9)).float()
    target[torch.rand(503, source.classes, generator=g) < 0.4] = math.nan
    if source.classes > 3:
        target[:, 1], target[:, 2] = math.nan, 0.0
        target[target[:, 3] == 0, 3] = math.nan
    ours = MultiLabel(tuple(map(str, range(source.classes))), source.metric).scores(output, target)
    theirs = ogb.Evaluator(name).eval({"y_true": target, "y_pred": output})
    assert ours[source.metric] == pytest.approx(theirs[source.metric], rel=1e-12)


def test_numbers_score_the_same(ogb):
    g = generator(0)
    output, target = torch.randn(2, 97, 1, generator=g, dtype=torch.float64)
    target[::5] = math.nan
    theirs = ogb.Evaluator("ogbg-molesol").eval({"y_true": target, "y_pred": output})
    assert Regression(("t",)).scores(output, target)["rmse"] == pytest.approx(theirs["rmse"], rel=1e-12)


def test_names_score_the_same(ogb):
    """Words repeated, beyond the last position, out of the vocabulary, and nothing said at all."""
    g = generator(0)
    sequences = [
        [f"w{int(i)}" for i in torch.randint(0, 19, (length,), generator=g)]
        for length in torch.randint(1, 9, (211,), generator=g).tolist()
    ]
    words, keys = word_keys(sequences)
    task = SubTokens(words, most_words=11).fit(keys)
    assert isinstance(task, SubTokens)
    classes = [*task.words, UNKNOWN, END]
    choice = torch.randint(0, len(classes), (211, 5), generator=g)
    said = []
    for row in choice.tolist():
        spoken = [classes[i] for i in row]
        said.append(spoken[: spoken.index(END)] if END in spoken else spoken)
    theirs = ogb.Evaluator("ogbg-code2").eval({"seq_ref": sequences, "seq_pred": said})
    ours = task.scores(torch.nn.functional.one_hot(choice, len(classes)).float().flatten(1), keys)
    assert ours == pytest.approx({name.lower(): score for name, score in theirs.items()}, rel=1e-12)
    assert 0.1 < ours["f1"] < 0.9
