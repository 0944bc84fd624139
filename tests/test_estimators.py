"""Graphs under scikit-learn's contract."""

import pickle
import re
from pathlib import Path
from typing import Any, cast

import networkx as nx
import numpy as np
import pytest
import torch

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import estimator_checks_generator
from sklearn.utils.validation import validate_data

from mnagt import TrainedModel, from_graphs, load_dataset
from mnagt.errors import InputError
from mnagt.estimators import GraphClassifier, GraphRegressor
from mnagt.graphs.batch import GraphBatch
from mnagt.tasks import SingleLabel

TINY: dict[str, Any] = {"model": "gin", "settings": {"dim": 8, "depth": 1}, "epochs": 2, "device": "cpu"}
GRAPHS = [(nx.cycle_graph if i % 2 else nx.path_graph)(3 + i // 2) for i in range(24)]
KINDS = np.array(["path", "ring"] * 12)
SIZES = np.array([len(graph) for graph in GRAPHS], float)


# scikit-learn's own checks

WITHOUT_ARRAYS = (
    "check_estimator_cloneable", "check_estimator_tags_renamed", "check_valid_tag_types", "check_estimator_repr",
    "check_no_attributes_set_in_init", "check_estimators_unfitted", "check_do_not_raise_errors_in_init_or_set_params",
    "check_mixin_order", "check_parameters_default_constructible", "check_get_params_invariance", "check_set_params",
)  # fmt: skip
"""Those that fit nothing. scikit-learn picks only the first by itself for an estimator that takes no arrays."""


@pytest.mark.parametrize("check", WITHOUT_ARRAYS)
@pytest.mark.parametrize("estimator", [GraphClassifier, GraphRegressor])
def test_checks_that_fit_nothing_pass(estimator, check):
    getattr(estimator_checks, check)(estimator.__name__, estimator())


class _Rows:
    """Every check of scikit-learn fits arrays: a row becomes a graph of one node, whose columns are the row."""

    _is_fitting = True

    def _graphs(self, X, columns=None):  # noqa: N803
        rows = np.array(validate_data(self, X, reset=self._is_fitting, dtype="float32"))
        no_edges = torch.zeros(2, 0, dtype=torch.long)
        return from_graphs(GraphBatch.from_edges(no_edges, [1] * len(rows), node_values=torch.from_numpy(rows)))

    def _outputs(self, X):  # noqa: N803
        self._is_fitting = False
        try:
            return super()._outputs(X)  # type: ignore[misc]
        finally:
            del self._is_fitting

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        (tags.classifier_tags or tags.regressor_tags).poor_score = True  # two epochs of a tiny model
        return tags


class RowClassifier(_Rows, GraphClassifier): ...


class RowRegressor(_Rows, GraphRegressor): ...


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "least"), [(RowClassifier, 50), (RowRegressor, 45)])
def test_all_checks_pass_on_rows_as_graphs(estimator, least):
    passed = 0
    checks: Any = estimator_checks_generator(estimator(**TINY))
    for each, check in checks:
        name = check.func.__name__
        if name != "check_array_api_input":  # PyTorch's arrays are no input here
            check(each)
            passed += 1
    assert passed >= least


# With graphs


@pytest.mark.parametrize("estimator", [GraphClassifier(**TINY, random_state=0), GraphRegressor(**TINY, random_state=0)])
def test_a_fit_is_repeated_exactly_and_survives_pickling(estimator):
    y, fresh = KINDS if isinstance(estimator, GraphClassifier) else SIZES, cast(Any, clone)
    first, again = (fresh(estimator).fit(GRAPHS, y).predict(GRAPHS) for _ in range(2))
    assert (first == again).all()
    fitted = pickle.loads(pickle.dumps(estimator.fit(GRAPHS, y)))
    assert (fitted.predict(GRAPHS) == first).all()
    assert fitted.score(GRAPHS, y) <= 1


def test_it_learns():
    rings = GraphClassifier("gin", epochs=30, batch_size=8, lr=1e-2, random_state=0).fit(GRAPHS, KINDS)
    assert rings.score(GRAPHS, KINDS) == 1
    assert rings.predict([nx.cycle_graph(9)]).tolist() == ["ring"]
    probability = rings.predict_proba(GRAPHS)
    assert rings.classes_.tolist() == ["path", "ring"]
    assert (rings.classes_[probability.argmax(1)] == KINDS).all()
    sizes = GraphRegressor("gin", epochs=90, batch_size=8, lr=1e-2, random_state=0).fit(GRAPHS, SIZES)
    assert sizes.score(GRAPHS, SIZES) > 0.9


def test_grid_searches_cross_validation_and_pipelines():
    strictly: Any = {"error_score": "raise"}
    search = GridSearchCV(GraphClassifier(**TINY), {"lr": [1e-3, 1e-2]}, cv=2, **strictly).fit(GRAPHS, KINDS)
    assert search.best_params_["lr"] in (1e-3, 1e-2)
    assert search.predict(GRAPHS[:3]).shape == (3,)
    assert len(cross_val_score(GraphRegressor(**TINY), GRAPHS, SIZES, cv=3, **strictly)) == 3
    pytest.importorskip("rdkit")
    stripped = make_pipeline(
        FunctionTransformer(lambda texts: [text.strip() for text in texts]), GraphClassifier(**TINY)
    )
    assert set(stripped.fit([" CC", "CO ", "C", "O"], [0, 1, 0, 1]).predict(["CCC"])) <= {0, 1}


def test_categories_that_fit_has_not_met_are_none():
    def named(kind: str) -> nx.Graph:
        graph = nx.path_graph(3)
        nx.set_node_attributes(graph, dict.fromkeys(graph, kind), "kind")
        return graph

    fitted = GraphClassifier(**TINY).fit([named("b"), named("c")] * 4, [0, 1] * 4)
    assert len(fitted.predict([named("a"), named("c")])) == 2
    alone, among = fitted.predict_proba([named("c")]), fitted.predict_proba([named("a"), named("c")])
    np.testing.assert_allclose(alone[0], among[1], rtol=1e-5)
    assert not np.allclose(among[0], among[1])


def test_pyg_batches_and_data_sets_go_in():
    mutag = load_dataset("MUTAG")
    fitted = GraphClassifier(**TINY).fit(mutag, mutag.targets)
    assert fitted.predict(mutag.batch(torch.arange(5))).shape == (5,)
    data = pytest.importorskip("torch_geometric.data")
    pyg = [data.Data(x=torch.tensor([[i % 3]]), edge_index=torch.zeros(2, 0, dtype=torch.long)) for i in range(9)]
    few = GraphClassifier(**TINY).fit(pyg[:2], [0, 1])
    assert few.predict(pyg).shape == (9,)  # category 2 was not there in fit


def test_several_numbers_keep_their_shape():
    y = np.stack([SIZES, -SIZES], axis=1)
    assert GraphRegressor(**TINY).fit(GRAPHS, y).predict(GRAPHS[:5]).shape == (5, 2)
    assert GraphRegressor(**TINY).fit(GRAPHS, SIZES).predict(GRAPHS[:5]).shape == (5,)


def test_a_share_can_choose_the_epoch():
    fitted = GraphClassifier(**TINY, validation_fraction=0.25, random_state=0).fit(GRAPHS, KINDS)
    assert fitted.predict(GRAPHS).shape == (24,)
    for share, told in ((1.5, "from 0 up to 1"), (0.01, "leaves a part of 24 graphs empty")):
        with pytest.raises(InputError, match=told):
            GraphClassifier(**TINY, validation_fraction=share).fit(GRAPHS, KINDS)


def test_weights_of_classes_reach_the_loss():
    y = np.array(["a"] * 18 + ["b"] * 6)
    task = GraphClassifier(**TINY, class_weight="balanced").fit(GRAPHS, y).trained_.task
    assert isinstance(task, SingleLabel)
    assert task.weights == pytest.approx((24 / 36, 24 / 12))


def test_what_it_learned_can_be_saved_without_pickle(tmp_path):
    fitted = GraphClassifier(**TINY, random_state=0).fit(GRAPHS, KINDS)
    fitted.trained_.save_pretrained(tmp_path / "model")
    said = TrainedModel.from_pretrained(tmp_path / "model").predict(from_graphs(GRAPHS))
    assert said["prediction"] == fitted.predict(GRAPHS).tolist()
    assert "# gin on these graphs" in (tmp_path / "model" / "README.md").read_text()


def test_mistakes_are_told():
    with pytest.raises(NotFittedError):
        GraphRegressor().predict(GRAPHS)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        GraphClassifier(**TINY).fit(GRAPHS, KINDS[:3])
    with pytest.raises(InputError, match="one class only, 'x'"):
        GraphClassifier(**TINY).fit(GRAPHS, ["x"] * 24)
    with pytest.raises(InputError, match="expected SMILES, graphs of networkx"):
        GraphClassifier(**TINY).fit(np.zeros((3, 2)), [0, 1, 0])
    with pytest.raises(InputError, match="no setting 'width'"):
        GraphClassifier("gin", settings={"width": 3}).fit(GRAPHS, KINDS)


def test_the_documented_code_runs(tmp_path, monkeypatch):
    pytest.importorskip("rdkit")
    page = (Path(__file__).parents[1] / "docs" / "estimators.md").read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(re.sub(r"epochs=\d+", "epochs=1", block), "estimators.md", "exec"), {})
