"""What every model must do, over every entry of the table and every part that a setting can choose."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from fitted import fit_at_random, graphs_like
from strategies import (
    CATEGORIES,
    EDGE_LABELS,
    EDGE_VALUES,
    NODE_LABELS,
    NODE_VALUES,
    alone,
    order_within,
    random_batch,
    renamed,
)

from mnagt.attention.mixers import MIXERS
from mnagt.data.packed import PackedDataset
from mnagt.data.padded_batches import NO_GRAPH, PaddedBatches
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.features import Columns, Features
from mnagt.graphs.molecules import MOLECULES
from mnagt.graphs.padding import Shape
from mnagt.inference.weights import load_tensors, load_weights, save_tensors
from mnagt.models.registry import MODELS, build_model, full_settings
from mnagt.nn.graph_model import GraphModel, resize_tables
from mnagt.nn.norms import NORMS
from mnagt.nn.readouts import READOUTS
from mnagt.tasks import Regression
from mnagt.training.fit_wl_linear import TYPICAL_C

OUTPUTS = 3
FEATURES = {
    "bare": Features(),
    "labelled": Features(Columns((CATEGORIES,) * NODE_LABELS)),
    "full": Features(
        Columns((CATEGORIES,) * NODE_LABELS, NODE_VALUES), Columns((CATEGORIES,) * EDGE_LABELS, EDGE_VALUES)
    ),
}
ALL_FEATURES = FEATURES | {"molecules": MOLECULES}
Variant = tuple[str, dict[str, Any]]
VARIANTS: list[Variant] = [
    *((name, {}) for name in MODELS),
    *(("mnagt", {"readout": readout}) for readout in READOUTS),
    *(("mnagt", {"mixer": mixer}) for mixer in MIXERS),
    *(("mnagt", {"norm": norm}) for norm in NORMS),
    *(("mnagt", {"conv": conv}) for conv in ("gin", "gcn")),
    ("mnagt", {"projections": "shared"}),
    ("mnagt", {"attention": "linear"}),
    ("mnagt", {"attention": "cosine"}),
    ("mnagt", {"random_walk": 3}),
    ("mnagt", {"ego_radius": 2}),
    ("mnagt", {"max_hop": 0}),
    ("mnagt", {"eigenpairs": 11, "degree": 2}),
    ("mnagt", {"eigenpairs": 3, "gate": True, "readout": "virtual-node"}),
    ("mnagt", {"conv": "gated", "max_hop": 0}),
    ("mnagt", {"residual": "skip-block"}),
    ("mnagt", {"input_readout": True}),
    ("mnagt", {"input_readout": True, "readout": "virtual-node", "wl_iterations": 2}),
    ("mnagt", {"attention": "none"}),
    ("mnagt", {"attention": "none", "conv": "gated"}),
    ("mnagt", {"conv": "none"}),
    ("mnagt", {"forest_trees": 3, "forest_max_leaves": 5}),
    ("mnagt-paper", {"adjacency": "row", "heads": 3, "head_dim": 11}),
    ("mnagt-paper", {"sigma": "relu"}),
    ("sat", {"readout": "virtual-node", "degree": False, "norm": "layer", "conv": "gcn"}),
    ("gt", {"laplacian": 0, "readout": "virtual-node", "norm": "layer"}),
    ("graphtrans", {"readout": "virtual-node", "conv": "gcn"}),
    ("graphtrans", {"virtual": True, "conv": "gcn"}),
    ("gps", {"readout": "virtual-node", "random_walk": 0}),
    ("gps", {"conv": "gated"}),
    *((name, {"wl_iterations": 2}) for name in ("gin", "gps")),
    *(("wl-linear", {"normalisation": normalisation}) for normalisation in TYPICAL_C),
]

INVARIANT = {"san": {"spectrum": 0}, "gt": {"laplacian": 0}, "mnagt-ensemble": {"descriptors": []}}
"""Eigenvectors of a repeated eigenvalue have no basis of their own: there a model sees how nodes are numbered. And in
training their signs are drawn. Of random bonds, which are no molecules, RDKit's descriptors depend on the order too."""


def batch_like(features: Features, seed: int = 0) -> GraphBatch:
    """Seven graphs: a single node, two without edges, one complete."""
    return graphs_like(features, [5, 1, 4, 2, 7, 2, 3], seed)


def built(name: str, settings: dict[str, Any], features: Features, seed: int = 0) -> GraphModel:
    """The model with fresh weights, or with those that scikit-learn finds for random graphs."""
    if MODELS[name].is_fitted_by_sklearn:
        return fit_at_random(name, settings, features, OUTPUTS, seed)[0]
    torch.manual_seed(seed)
    return build_model(name, settings, features, OUTPUTS)


def read_by(name: str, features: Features) -> Features:
    """Columns that the model can read: these, unless it reads certain ones only."""
    return MODELS[name].reads or features


def columns_for(name: str, settings: dict[str, Any]) -> list[str]:
    """Every model meets every kind of columns. A part meets all columns at once, and none where it adds edges."""
    if MODELS[name].reads is not None:
        return ["molecules"]
    if name == "wl-linear" or not settings:
        return list(FEATURES)
    return ["bare", "full"] if {"virtual-node", True} & {*settings.values()} else ["full"]


CASES = [
    (name, settings, columns)
    for name, settings in VARIANTS
    if not settings or full_settings(name, settings) != full_settings(name, {})
    for columns in columns_for(name, settings)
]
each_case = pytest.mark.parametrize(
    ("variant", "features"),
    [((name, settings), ALL_FEATURES[columns]) for name, settings, columns in CASES],
    ids=["-".join([name, *map(str, settings.values()), columns]) for name, settings, columns in CASES],
)
each_kind_of_columns = pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)


@each_case
def test_renaming_nodes_changes_no_answer(variant: Variant, features):
    name, settings = variant
    settings = settings | INVARIANT.get(name, {})
    model, batch = built(name, settings, features).double().eval(), doubled(batch_like(features))
    torch.testing.assert_close(model(renamed(batch, order_within(batch, 1))), model(batch))


@each_case
def test_a_graph_does_not_see_its_batch(variant: Variant, features):
    model, batch = built(*variant, features).double().eval(), doubled(batch_like(features))
    separately = torch.cat([model(alone(batch, g)) for g in range(batch.num_graphs)])
    torch.testing.assert_close(model(batch), separately)


def test_structural_counts_follow_renamed_nodes_and_do_not_see_the_batch():
    batch = doubled(batch_like(FEATURES["bare"]))
    model = built("mnagt", {"structural_counts": True, "input_readout": True}, FEATURES["bare"]).double().eval()
    torch.testing.assert_close(model(renamed(batch, order_within(batch, 1))), model(batch))
    torch.testing.assert_close(torch.cat([model(alone(batch, g)) for g in range(batch.num_graphs)]), model(batch))


@each_case
def test_gradients_reach_every_parameter(variant: Variant, features):
    model = built(*variant, features).train()
    (model(batch_like(features)) * torch.randn(7, OUTPUTS)).sum().backward()
    silent = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert not silent


@each_case
def test_saved_and_loaded_it_answers_the_same(variant: Variant, features, tmp_path):
    model, batch = built(*variant, features), batch_like(features)
    model.train()(batch)  # running statistics are part of what is kept
    save_tensors(tmp_path / "model.safetensors", model.state_dict())
    twin, (tensors, _) = built(*variant, features, seed=1), load_tensors(tmp_path / "model.safetensors")
    resize_tables(twin, tensors)
    load_weights(twin, tensors, tmp_path)
    torch.testing.assert_close(twin.eval()(batch), model.eval()(batch), rtol=0, atol=0)


@each_case
def test_filling_changes_no_answer_no_gradient_and_no_statistic(variant: Variant, features):
    name, settings = variant
    settings = settings | INVARIANT.get(name, {})
    settings = settings | {each: 0.0 for each in full_settings(name, {}) if each.endswith("dropout")}
    batch = doubled(replace(batch_like(features), targets=torch.zeros(7, 1)))
    dataset = PackedDataset.from_batch("toys", Regression(("t",)), batch)
    filled = PaddedBatches(dataset).batch(torch.tensor([*range(7), NO_GRAPH]), Shape(8, 41, 57))
    kept = []
    for graphs in (batch, filled):
        model = built(name, settings, features).double().train()
        out = model(graphs)[:7]
        out.square().sum().backward()
        kept.append([out, *(p.grad for p in model.parameters()), *model.buffers()])
    torch.testing.assert_close(kept[1], kept[0])


DROPOUTS = {
    name: [
        each
        for each in full_settings(name, {})
        if each.endswith("dropout") and each not in ("wl_dropout", "descriptor_dropout")  # tested apart
    ]
    for name in MODELS
    if name != "grover"  # which draws its number of hops too
}


@pytest.mark.parametrize(("name", "setting"), [(name, each) for name in DROPOUTS for each in ("", *DROPOUTS[name])])
def test_each_dropout_acts_in_training_and_follows_the_seed(name, setting):
    settings = {each: 0.5 if each == setting else 0.0 for each in DROPOUTS[name]} | {"wl_dropout": 0.0}
    settings = {each: value for each, value in settings.items() if each in full_settings(name, {})}
    features = read_by(name, FEATURES["full"])
    model = built(name, settings | INVARIANT.get(name, {}), features)
    batch = batch_like(features)

    def answer(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return model(batch)

    model.train()
    assert torch.equal(answer(0), answer(0))
    assert torch.equal(answer(0), answer(1)) == (not setting)
    model.eval()
    assert torch.equal(answer(0), answer(1))


@each_kind_of_columns
@pytest.mark.parametrize("name", MODELS)
def test_evaluation_leaves_nothing_to_chance(name, features):
    features = read_by(name, features)
    model, batch = built(name, {}, features).eval(), batch_like(features)
    torch.testing.assert_close(model(batch), model(batch), rtol=0, atol=0)


@each_kind_of_columns
@pytest.mark.parametrize("name", MODELS)
def test_bf16_is_near_fp32(name, features):
    features = read_by(name, features)
    model, batch = built(name, {}, features).eval(), batch_like(features)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(batch).float()
    torch.testing.assert_close(rough, model(batch), atol=0.1, rtol=0.1)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sizes", [[1], [1, 1], [2]])
def test_the_smallest_graphs_train(name, sizes):
    features = read_by(name, Features())
    model = built(name, {}, features).train()
    out = model(graphs_like(features, sizes, 0, density=0.0))
    out.sum().backward()
    assert out.shape == (len(sizes), OUTPUTS)
    assert out.isfinite().all()


@pytest.mark.parametrize("name", MODELS)
def test_graphs_without_the_columns_it_reads_are_refused(name):
    features = read_by(name, FEATURES["full"])
    with pytest.raises(InputError, match=f"the model reads {len(features.nodes.labels)} categorical"):
        built(name, {}, features)(batch_like(FEATURES["bare"]))


@pytest.mark.parametrize("conv", ["gine", "gcne"])
def test_a_convolution_that_reads_edges_needs_them(conv):
    with pytest.raises(InputError, match="the data set has none"):
        built("mnagt", {"conv": conv}, FEATURES["labelled"])


@pytest.mark.parametrize("conv", ["gine", "gcne"])
@pytest.mark.parametrize("name", ["mnagt", "sat", "graphtrans", "gps", "set2set"])
def test_a_convolution_reads_edges_under_any_names_and_in_any_batch(name, conv):
    features = FEATURES["full"]
    model, batch = built(name, {"conv": conv}, features).double().eval(), doubled(batch_like(features))
    out = model(batch)
    torch.testing.assert_close(model(renamed(batch, order_within(batch, 1))), out)
    torch.testing.assert_close(torch.cat([model(alone(batch, g)) for g in range(batch.num_graphs)]), out)
    assert batch.edge_labels is not None
    assert not torch.allclose(model(replace(batch, edge_labels=(batch.edge_labels + 1) % CATEGORIES)), out)


@pytest.mark.parametrize("name", ["mnagt", "mnagt-paper"])
def test_kernel_weights_are_told_for_every_layer(name):
    model, batch = built(name, {"depth": 2, "max_hop": 3}, FEATURES["full"]).eval(), batch_like(FEATURES["full"])
    weights = model.kernel_weights(batch)
    assert [w.shape for w in weights] == [(batch.num_nodes, 4)] * 2
    torch.testing.assert_close(weights[0].sum(dim=1), torch.ones(batch.num_nodes))


def test_laplacian_signs_are_flipped_in_training_only():
    model, batch = built("mnagt", {"laplacian": 3, "depth": 1}, Features()), random_batch([7, 5], 0.6, seed=0)
    assert len({tuple(model.eval().encoder(batch).flatten().tolist()) for _ in range(9)}) == 1
    assert len({tuple(model.train().encoder(batch).flatten().tolist()) for _ in range(9)}) > 1


def test_encodings_worked_out_beforehand_are_used():
    model, batch = built("mnagt", {"random_walk": 2}, Features()).eval(), random_batch([7, 5], 0.6, seed=0)
    given = replace(batch, encodings={"random-walk": torch.ones(12, 2)})
    assert not torch.allclose(model.encoder(given), model.encoder(batch))


def doubled(batch: GraphBatch) -> GraphBatch:
    """Continuous columns in float64."""
    return replace(
        batch,
        node_values=None if batch.node_values is None else batch.node_values.double(),
        edge_values=None if batch.edge_values is None else batch.edge_values.double(),
    )
