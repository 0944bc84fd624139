"""scikit-learn estimators that take a list of SMILES, of networkx graphs or of PyTorch Geometric's ``Data``."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from mnagt.data.in_memory import read_graphs
from mnagt.data.packed import PackedDataset
from mnagt.data.splits import TrainValidSplit
from mnagt.devices import pick_device
from mnagt.errors import InputError, quote
from mnagt.models.registry import MODELS, full_settings
from mnagt.registry import lookup
from mnagt.runs.config import RunConfig, TrainConfig
from mnagt.settings import describe_fields
from mnagt.tasks import Regression, SingleLabel, Task
from mnagt.training.fit_model import fit_model

PREFIX = "settings__"
"""A setting of the model as a parameter of the estimator: 'settings__depth'."""


@dataclass(eq=False, repr=False)
class _GraphEstimator(BaseEstimator):
    model: str = "mnagt"
    """A name of ``MODELS``."""
    _: KW_ONLY
    settings: dict[str, Any] | None = None
    """Of the model, where they differ from its defaults."""
    epochs: int = 60
    """Times that every graph is seen. The last epoch is kept, unless validation chooses one."""
    batch_size: int = 32
    lr: float = 1e-3
    weight_decay: float = 1e-5
    validation_fraction: float = 0.0
    """Share of the graphs that does not train but chooses the epoch; 0 for none."""
    device: str = "auto"
    random_state: Any = None
    """Seed of weights, order and dropout."""

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters by name; with ``deep`` also every setting of the model, as ``settings__NAME``."""
        params = super().get_params(deep)
        if not deep:
            return params
        settings = self.settings if isinstance(self.settings, dict) else {}
        with suppress(InputError):  # no such model, or no such setting: fit will say so
            settings = full_settings(self.model, settings) if isinstance(self.model, str) else settings
        return params | {PREFIX + name: value for name, value in settings.items()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name, and settings of the model as ``settings__NAME``; the other settings stay."""
        names = [name for name in params if name.startswith(PREFIX)]
        settings = {name.removeprefix(PREFIX): params.pop(name) for name in names}
        super().set_params(**params)
        if settings:
            fields = describe_fields(lookup(MODELS, self.model, "model").config)
            for name in settings.keys() - fields.keys():
                there_are = f"there are: {', '.join(sorted(fields))}"
                raise InputError(f"model {self.model}: no setting {quote(name)}; {there_are}")
            self.settings = {**(self.settings or {}), **settings}
        return self

    def _graphs(self, X: Any, columns: Any = None) -> PackedDataset:  # noqa: N803
        is_column = isinstance(X, np.ndarray) and X.dtype.kind in "OU" and X.ndim == 2 and X.shape[1] == 1
        graphs = X[:, 0] if is_column else [X] if isinstance(X, str) else X
        return read_graphs(graphs, columns=columns)

    def _fit(self, dataset: PackedDataset, task: Task, targets: Tensor) -> Self:
        dataset = replace(dataset, task=task, targets=targets)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        config = TrainConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            lr=self.lr,
            weight_decay=self.weight_decay,
            selection_window=TrainConfig.selection_window if self.validation_fraction else self.epochs,
            seed=seed,
        )
        split = self._split(len(dataset), seed)
        run = RunConfig(dataset.name, self.model, self.settings or {}, config, device=self.device)
        origin = {
            "dataset": dataset.name,
            "parts": {"train": len(split.train)},
            "run": {"train": asdict(config)},
            "date": datetime.now(UTC).date().isoformat(),
        }
        self.trained_ = fit_model(run, dataset, split).to_trained(origin)
        return self

    def _split(self, graphs: int, seed: int) -> TrainValidSplit:
        """All graphs train, and a batch of them validates; or a share of them chooses the epoch instead."""
        order = torch.randperm(graphs, generator=torch.Generator().manual_seed(seed))
        if not 0 <= self.validation_fraction < 1:
            raise InputError(f"validation_fraction must be from 0 up to 1, got {self.validation_fraction}")
        valid = round(graphs * self.validation_fraction)
        if self.validation_fraction and not 0 < valid < graphs:
            raise InputError(f"validation_fraction {self.validation_fraction} leaves a part of {graphs} graphs empty")
        return TrainValidSplit(order[valid:], order[: valid or self.batch_size], order[:0])

    def _outputs(self, X: Any) -> Tensor:  # noqa: N803
        check_is_fitted(self)
        dataset = self.trained_.align(self._graphs(X, self.trained_.columns or None), unknown_as_none=True)
        return self.trained_.outputs(dataset, device=pick_device(self.device)).double()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.one_d_array = tags.input_tags.string = True
        return tags


@dataclass(eq=False, repr=False)
class GraphClassifier(ClassifierMixin, _GraphEstimator):
    """Classes of graphs: a scikit-learn classifier.

    Fitted, it has ``classes_`` and ``trained_``, a ``TrainedModel`` that can be saved. Categories that were not in
    ``fit`` are read as none.

    >>> GraphClassifier("gin", settings={"dim": 32}, epochs=10).get_params()["epochs"]
    10
    """

    class_weight: dict[Any, float] | str | None = None
    """How much a graph of each class counts in the loss; 'balanced' makes up for rare classes."""

    def fit(self, X: Any, y: ArrayLike) -> Self:  # noqa: N803
        """Learn the classes ``y`` of the graphs ``X``."""
        if y is None:
            raise InputError("GraphClassifier requires y to be passed, but the target y is None")
        labels = column_or_1d(y, warn=True)
        check_classification_targets(labels)
        dataset = self._graphs(X)
        check_consistent_length(dataset.sizes, labels)
        self.classes_, index = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"one class only, {self.classes_.tolist()[0]!r}: nothing to tell apart")
        weights = compute_class_weight(self.class_weight, classes=self.classes_, y=labels)
        names = tuple(map(str, self.classes_.tolist()))
        task = SingleLabel(names, tuple(weights.tolist()) if self.class_weight else ())
        return self._fit(dataset, task, torch.from_numpy(index))

    def predict_proba(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """How likely each class is, in the order of ``classes_``."""
        return self._outputs(X).softmax(dim=1).numpy()

    def predict(self, X: Any) -> NDArray[Any]:  # noqa: N803
        """The likeliest class of each graph."""
        likeliest = self._outputs(X).argmax(dim=1).numpy()
        return self.classes_[likeliest]


class GraphRegressor(RegressorMixin, _GraphEstimator):
    """Numbers of graphs, one each or several where ``y`` has several columns: a scikit-learn regressor.

    Parameters are those of ``GraphClassifier``, without ``class_weight``.

    >>> GraphRegressor("gin", validation_fraction=0.1).model
    'gin'
    """

    def fit(self, X: Any, y: ArrayLike) -> Self:  # noqa: N803
        """Learn the numbers ``y`` of the graphs ``X``."""
        if y is None:
            raise InputError("GraphRegressor requires y to be passed, but the target y is None")
        numbers = check_array(y, ensure_2d=False, dtype="float64", input_name="y")
        dataset = self._graphs(X)
        check_consistent_length(dataset.sizes, numbers)
        self._is_flat = numbers.ndim == 1
        columns = numbers.reshape(len(numbers), -1)
        names = ["y"] if columns.shape[1] == 1 else [f"y{i}" for i in range(columns.shape[1])]
        return self._fit(dataset, Regression(tuple(names)), torch.from_numpy(columns.astype(np.float32)))

    def predict(self, X: Any) -> NDArray[np.float64]:  # noqa: N803
        """The numbers of each graph, in the shape of ``y``."""
        output = self._outputs(X)
        columns = np.stack(list(self.trained_.task.decode(output).values()), axis=1)
        return columns[:, 0] if self._is_flat else columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def as_column(graphs: Sequence[Any]) -> NDArray[np.object_]:
    """The graphs as an array of shape [graphs, 1], for what takes only arrays of two axes (``BaggingClassifier``).

    NumPy itself would look into a graph of networkx and find its nodes.

    >>> as_column(["CCO", "CCN"]).shape
    (2, 1)
    """
    column = np.empty((len(graphs), 1), dtype=object)
    for row, graph in enumerate(graphs):
        column[row, 0] = graph
    return column
