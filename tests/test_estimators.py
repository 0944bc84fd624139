"""Graphs under scikit-learn's contract."""

import pickle
import re
from pathlib import Path
from typing import Any, cast

import networkx as nx
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.ensemble import BaggingClassifier, BaggingRegressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils import estimator_checks
from sklearn.utils.validation import validate_data

from mnagt import TrainedModel, from_graphs, load_dataset
from mnagt.errors import InputError
from mnagt.estimators import GraphClassifier, GraphRegressor, as_column
from mnagt.graphs.batch import GraphBatch
from mnagt.tasks import SingleLabel

TINY: dict[str, Any] = {"model": "gin", "settings": {"dim": 8, "depth": 1}, "epochs": 2, "device": "cpu"}
GRAPHS = [(nx.cycle_graph if i % 2 else nx.path_graph)(3 + i // 2) for i in range(24)]
KINDS = np.array(["path", "ring"] * 12)
SIZES = np.array([len(graph) for graph in GRAPHS], float)


# scikit-learn's own checks

PAGE = (Path(__file__).parents[1] / "docs" / "estimators.md").read_text(encoding="utf-8")
NOT_APPLICABLE = dict.fromkeys(re.findall(r"`(check_\w+)`", PAGE), "X is an array of numbers, and fit takes graphs")
"""The checks that the page says do not apply to the estimators as they are."""


class _TakesArrays:
    """scikit-learn picks no check that calls ``fit`` for an estimator that does not say so."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.two_d_array, tags.input_tags.one_d_array, tags.input_tags.string = True, False, False
        return tags


class AnyClassifier(_TakesArrays, GraphClassifier): ...


class AnyRegressor(_TakesArrays, GraphRegressor): ...


def run_checks(estimator: Any, expected: dict[str, str]) -> dict[str, set[str]]:
    """The names of the checks by status. ``check_array_api_input`` is left out: it runs in some environments only."""
    names: dict[str, set[str]] = {"passed": set(), "failed": set(), "xfail": set()}
    results = estimator_checks.check_estimator(estimator, expected_failed_checks=expected, on_fail=None, on_skip=None)
    for result in results:
        if result["check_name"] != "check_array_api_input":
            names[result["status"]].add(result["check_name"])
    return names


@pytest.mark.filterwarnings("ignore")
def test_the_checks_that_do_not_apply_are_those_on_the_page():
    found = [run_checks(estimator(**TINY), NOT_APPLICABLE) for estimator in (AnyClassifier, AnyRegressor)]
    assert not found[0]["failed"] | found[1]["failed"]
    assert found[0]["xfail"] | found[1]["xfail"] == NOT_APPLICABLE.keys() - {"check_array_api_input"}
    for each in found:  # one that is expected to fail does
        assert not each["passed"] & NOT_APPLICABLE.keys()
        assert len(each["passed"]) >= 15


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
        (tags.classifier_tags or tags.regressor_tags).poor_score = True  # two epochs of a tiny model
        return tags


class RowClassifier(_Rows, AnyClassifier): ...


class RowRegressor(_Rows, AnyRegressor): ...


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "least"), [(RowClassifier, 48), (RowRegressor, 44)])
def test_all_checks_pass_on_rows_as_graphs(estimator, least):
    found = run_checks(estimator(**TINY), {})
    assert not found["failed"]
    assert len(found["passed"]) >= least


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


def test_settings_of_the_model_are_parameters():
    strictly: Any = {"error_score": "raise"}
    search = GridSearchCV(GraphClassifier(**TINY), {"settings__depth": [2]}, cv=2, **strictly)
    best = search.fit(GRAPHS, KINDS).best_estimator_
    assert best.settings == {"dim": 8, "depth": 2}
    assert best.trained_.settings["depth"] == 2
    estimator = GraphClassifier("gin", settings={"dim": 8})
    assert {"settings__dim": 8, "settings__depth": 4}.items() <= estimator.get_params().items()  # 4 is the default
    assert "settings__dim" not in estimator.get_params(deep=False)
    assert cast(Any, clone(estimator)).set_params(settings__depth=3, model="gcn").settings == {"dim": 8, "depth": 3}
    assert estimator.settings == {"dim": 8}
    with pytest.raises(InputError, match="model gin: no setting 'width'; there are: conv, depth"):
        estimator.set_params(settings__width=3)
    assert GraphClassifier("no such model", settings={"a": 1}).get_params()["settings__a"] == 1


def test_bagging_takes_a_column_of_graphs():
    graphs = as_column(GRAPHS)
    assert graphs.shape == (24, 1)
    assert graphs[3, 0] is GRAPHS[3]
    bag = BaggingClassifier(GraphClassifier(**TINY), n_estimators=2, random_state=0).fit(graphs, KINDS)
    members = [each.predict_proba(graphs) for each in bag.estimators_]
    np.testing.assert_allclose(bag.predict_proba(graphs), np.mean(members, axis=0))
    assert not np.allclose(*members)
    search = GridSearchCV(BaggingRegressor(GraphRegressor(**TINY), 1), {"estimator__settings__depth": [1]}, cv=2)
    assert search.fit(graphs, SIZES).predict(graphs).shape == (24,)


def test_cross_validated_predictions_are_one_a_graph():
    probability = np.array(cross_val_predict(GraphClassifier(**TINY), GRAPHS, KINDS, cv=2, method="predict_proba"))
    assert probability.shape == (24, 2)
    np.testing.assert_allclose(probability.sum(axis=1), 1)


def test_one_graph_needs_no_list():
    fitted = GraphClassifier(**TINY, random_state=0).fit(GRAPHS, KINDS)
    np.testing.assert_array_equal(fitted.predict_proba(GRAPHS[3]), fitted.predict_proba([GRAPHS[3]]))
    assert fitted.predict(GRAPHS[3]).shape == (1,)
    data = pytest.importorskip("torch_geometric.data")
    pyg = [data.Data(x=torch.tensor([[float(i)]]), edge_index=torch.zeros(2, 0, dtype=torch.long)) for i in range(4)]
    assert GraphRegressor(**TINY).fit(pyg, [1, 2, 3, 4]).predict(pyg[0]).shape == (1,)
    pytest.importorskip("rdkit")
    assert GraphClassifier(**TINY).fit(["CC", "CO"], [0, 1]).predict("CCC").shape == (1,)


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
    with pytest.raises(InputError, match=r"expected SMILES \(or tuples of them\), graphs of networkx"):
        GraphClassifier(**TINY).fit(np.zeros((3, 2)), [0, 1, 0])
    with pytest.raises(InputError, match="no setting 'width'"):
        GraphClassifier("gin", settings={"width": 3}).fit(GRAPHS, KINDS)
