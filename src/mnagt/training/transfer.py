"""Transfer: a training that starts from the weights of another run."""

import logging
from dataclasses import replace
from pathlib import Path

from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError, count
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.models.registry import MODELS
from mnagt.models.wl_linear import WLCountsConfig
from mnagt.nn.graph_model import GraphModel
from mnagt.nn.joined_model import JoinedModel
from mnagt.runs.config import RunConfig
from mnagt.runs.shared_graphs import find_seen
from mnagt.tasks import Task

HEAD = "head."
"""The tensors of the head have names that begin so; all others are the encoder's."""

READOUT = "readout."
"""Likewise of the readout, which may read descriptors that the other run's does not."""

OF_TREES = ("members", "member_trees")
"""Settings of the trees beside the network, which are grown for the new targets: they are not inherited."""

_log = logging.getLogger(__name__)


def load_source(config: RunConfig) -> TrainedModel | None:
    """The model whose weights the training starts from; None where it starts from random ones."""
    folder = config.train.init_from
    if folder is None:
        return None
    source, entry = load_model(Path(folder).expanduser()), MODELS[config.model]
    if source.name != config.model:
        raise InputError(
            f"{folder}: its weights are those of {source.name}, not {config.model}; add --model {source.name}"
        )
    if entry.is_fitted_by_sklearn or issubclass(entry.config, WLCountsConfig):
        raise InputError(f"a {config.model} is fitted by scikit-learn and starts from no weights; leave out --from")
    return source


def inherit_settings(config: RunConfig) -> RunConfig:
    """The settings with those of the other run's network in place of defaults, and the path of its folder in full."""
    source = load_source(config)
    if source is None:
        return config
    folder = str(Path(config.train.init_from or "").expanduser().resolve())
    train = replace(config.train, init_from=folder)
    inherited = {name: value for name, value in source.settings.items() if name not in OF_TREES}
    return replace(config, settings={**inherited, **config.settings}, train=train)


def copy_weights(source: TrainedModel, model: GraphModel, task: Task) -> None:
    """Give ``model`` the weights, the WL vocabulary and the scaling of ``source``; the head's where targets agree.

    Where they do not, what the readout of ``source`` lacks (descriptors) starts anew, as the head does. Of joined
    models the networks are meant: what stands beside them is fitted to the new graphs.
    """
    same_targets = task.can_join(source.task)
    model, other = (each.network if isinstance(each, JoinedModel) else each for each in (model, source.model))
    state, weights = model.state_dict(), other.state_dict()
    is_new = {name: name.startswith(HEAD) or (name.startswith(READOUT) and name not in weights) for name in state}
    names = [name for name in state if same_targets or not is_new[name]]
    for name in names:
        if name not in weights or weights[name].shape != state[name].shape:
            shape = list(weights[name].shape) if name in weights else "not there"
            raise InputError(
                f"the weights {name} are {list(state[name].shape)}, and {shape} in {source.origin.get('dataset')}'s "
                "run; leave out settings of the model: without, they are those of the other run"
            )
    model.load_state_dict({name: weights[name] for name in names}, strict=False)
    _log.info(
        "weights are those of the run on %s%s",
        source.origin.get("dataset", "other graphs"),
        "" if same_targets else "; the head starts anew, for other targets",
    )


def describe_shared_graphs(config: RunConfig, dataset: PackedDataset, split: Split) -> str | None:
    """That the other run has trained on graphs of the test part, or that this cannot be known; None if it has not."""
    folder = config.train.init_from
    if folder is None:
        return None
    try:
        shared = int(find_seen(Path(folder), dataset, split.test).sum())
    except InputError as error:
        return f"whether {folder} was trained on graphs of the test part is not known: {error}"
    if not shared:
        return None
    return (
        f"{count(shared, 'graph')} of the test part of {len(split.test):,} were in training or validation of "
        f"{folder}: test scores are too good; take the same split, or leave these graphs out"
    )
