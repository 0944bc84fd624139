import logging
from typing import Any

import networkx
import numpy as np
import pytest
import torch
from hypothesis import given
from strategies import CATEGORIES, assert_same, batches, generator, random_batch
from torch_geometric.data import Batch, Data, HeteroData
from torch_geometric.transforms import ToSparseTensor

from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.convert import from_networkx, from_pyg, to_networkx, to_pyg
from mnagt.graphs.pyg_fields import log_once

ANY: dict[str, Any] = {
    "is_directed": None,
    "node_labels": None,
    "node_values": None,
    "edge_labels": None,
    "edge_values": None,
    "targets": None,
}
NAMES: dict[str, Any] = {
    "node_labels": ["element", "ring"],
    "node_values": ["x", "y", "z"],
    "edge_labels": ["a", "b", "c", "d", "e"],
    "edge_values": ["p", "q", "r", "s", "t", "u", "v"],
}
EMPTY = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [])


def pyg_graphs() -> list[Any]:
    """Three graphs: joined, single, without edges."""
    return [
        Data(x=torch.tensor([[1, 2], [3, 4]]), edge_index=torch.tensor([[0, 1], [1, 0]]), y=torch.tensor([0])),
        Data(x=torch.tensor([[5, 6]]), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([1])),
        Data(x=torch.tensor([[7, 8], [9, 9]]), edge_index=torch.zeros(2, 0, dtype=torch.long), y=torch.tensor([0])),
    ]


@given(batches(**ANY))
def test_a_batch_survives_the_way_to_pyg_and_back(batch):
    theirs: Any = to_pyg(batch)
    assert_same(from_pyg(theirs), batch)
    assert_same(from_pyg(theirs.to_data_list()), batch)


@given(batches(**ANY))
def test_pyg_sees_the_same_graphs(batch):
    theirs: Any = to_pyg(batch)
    assert theirs.num_graphs == batch.num_graphs
    assert theirs.num_nodes == batch.num_nodes
    assert theirs.edge_index.equal(batch.edge_index)
    assert theirs.batch.equal(batch.graph_of_node)


def test_a_list_and_a_batch_of_pyg_graphs_are_the_same():
    graphs = pyg_graphs()
    batch = from_pyg(graphs)
    assert_same(batch, from_pyg(Batch.from_data_list(graphs)))
    assert batch.sizes.tolist() == [2, 1, 2]
    assert batch.targets is not None
    assert batch.targets.tolist() == [0, 1, 0]
    assert batch.node_labels is not None
    assert batch.node_labels[2].tolist() == [5, 6]


def test_one_pyg_graph_is_a_batch_of_one():
    batch = from_pyg(pyg_graphs()[0])
    assert (batch.num_graphs, batch.num_nodes, batch.num_edges) == (1, 2, 2)


def test_integers_are_labels_and_floats_are_values():
    edges = torch.tensor([[0], [1]])
    whole = from_pyg(Data(x=torch.tensor([3, 5]), edge_index=edges, edge_attr=torch.tensor([[0.5]]).double(), y=2.5))
    assert whole.node_labels is not None
    assert whole.edge_values is not None
    assert whole.targets is not None
    assert whole.node_labels.tolist() == [[3], [5]]
    assert (whole.edge_values.dtype, whole.edge_values.tolist()) == (torch.float, [[0.5]])
    assert whole.targets.tolist() == [2.5]
    assert whole.node_values is None
    assert whole.edge_labels is None


def test_pyg_edge_attributes_stay_with_their_edges():
    edges = torch.tensor([[2, 0, 1], [1, 2, 0]])
    batch = from_pyg(Data(num_nodes=3, edge_index=edges, edge_attr=torch.tensor([21, 2, 10])))
    assert batch.edge_labels is not None
    assert batch.edge_labels[:, 0].equal(10 * batch.source + batch.destination)


def test_a_pyg_graph_may_lack_edges_and_features():
    batch = from_pyg([Data(num_nodes=3), Data(num_nodes=1)])
    assert (batch.sizes.tolist(), batch.num_edges) == ([3, 1], 0)


def test_no_graphs_convert_to_no_graphs():
    assert_same(from_pyg([]), EMPTY)
    assert_same(from_pyg(to_pyg(EMPTY)), EMPTY)
    assert_same(from_networkx([]), EMPTY)
    assert to_networkx(EMPTY) == []


def test_a_column_that_some_pyg_graphs_lack_is_named():
    graphs = pyg_graphs()
    del graphs[1].y
    with pytest.raises(InputError, match="graph 1 has no y"):
        from_pyg(graphs)


def test_pyg_targets_need_one_row_a_graph():
    with pytest.raises(InputError, match="y has 3 rows for 1 graphs"):
        from_pyg(Data(num_nodes=3, y=torch.zeros(3)))


@given(batches(**ANY))
def test_a_batch_survives_the_way_to_networkx_and_back(batch):
    names = {name: each for name, each in NAMES.items() if getattr(batch, name) is not None}
    target = None if batch.targets is None else "answer"
    graphs = to_networkx(batch, **names, target="answer")
    assert_same(from_networkx(graphs, **names, target=target), batch)


@given(batches(is_directed=None))
def test_networkx_sees_the_same_graphs(batch):
    graphs = to_networkx(batch)
    assert [len(graph) for graph in graphs] == batch.sizes.tolist()
    assert all(graph.is_directed() != batch.is_symmetric for graph in graphs)
    edges = sum(graph.number_of_edges() for graph in graphs)
    assert edges * (2 if batch.is_symmetric else 1) == batch.num_edges


def test_columns_without_names_are_numbered():
    (graph,) = to_networkx(random_batch([2], 1.0, seed=0, node_labels=True, edge_values=True))
    assert set(graph.nodes[0]) == {"node_labels/0", "node_labels/1"}
    assert set(graph.edges[0, 1]) == {f"edge_values/{i}" for i in range(7)}


def test_edges_that_differ_by_direction_make_a_directed_graph():
    both_ways = torch.tensor([[0, 1], [1, 0]])
    alike = GraphBatch.from_edges(both_ways, [2], edge_labels=torch.tensor([[4], [4]]))
    unlike = GraphBatch.from_edges(both_ways, [2], edge_labels=torch.tensor([[4], [5]]))
    assert not to_networkx(alike)[0].is_directed()
    assert to_networkx(unlike)[0].edges[0, 1] == {"edge_labels/0": 4}
    assert to_networkx(unlike)[0].edges[1, 0] == {"edge_labels/0": 5}


def test_networkx_nodes_keep_their_order_whatever_they_are_called():
    graph: Any = networkx.Graph([("b", "a"), ("a", (1, 2))])
    networkx.set_node_attributes(graph, {"b": np.int64(1), "a": 2, (1, 2): True}, "kind")
    batch = from_networkx([networkx.empty_graph(0), graph], edge_labels=[])
    labelled = from_networkx(graph, node_labels=["kind"])
    assert batch.sizes.tolist() == [0, 3]
    assert batch.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    assert labelled.node_labels is not None
    assert labelled.node_labels.tolist() == [[1], [2], [1]]


def test_directed_edges_run_one_way_and_self_loops_are_dropped():
    directed, undirected = networkx.DiGraph([(0, 1), (1, 1)]), networkx.Graph([(0, 1), (1, 1)])
    batch = from_networkx([directed, undirected])
    assert batch.edge_index.T.tolist() == [[0, 1], [3, 2], [2, 3]]


def test_of_parallel_edges_the_first_is_kept_and_a_notice_says_so(caplog):
    caplog.set_level(logging.WARNING, "mnagt")
    multigraph = networkx.MultiGraph([(0, 1, {"kind": 7}), (0, 1, {"kind": 8}), (1, 1, {"kind": 9})])
    edges, kinds = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 0, 1]]), torch.tensor([7, 8, 7, 8, 9])
    for batch in (
        from_networkx(multigraph, edge_labels=["kind"]),
        from_pyg(Data(num_nodes=2, edge_index=edges, edge_attr=kinds)),
    ):
        assert (batch.num_edges, batch.edge_labels.tolist()) == (2, [[7], [7]])  # type: ignore[union-attr]
    assert [record.message for record in caplog.records] == [
        "these graphs: 2 repeated edges were dropped; the first of them counts"
    ] * 2


@pytest.mark.filterwarnings("ignore:Sparse")
def test_the_sparse_adjacency_matrix_of_pyg_is_read():
    edges, kinds = torch.tensor([[2, 0, 1, 0], [1, 2, 0, 1]]), torch.tensor([21, 2, 10, 1])
    plain = Data(num_nodes=3, edge_index=edges, edge_attr=kinds)
    layouts: list[Any] = [torch.sparse_csr, torch.sparse_coo]
    for layout in layouts:
        given = ToSparseTensor(layout=layout)(plain.clone())
        assert_same(from_pyg([given, given]), from_pyg([plain, plain]))


def test_fields_that_are_not_read_are_named_once(caplog):
    caplog.set_level(logging.WARNING, "mnagt")
    one = Data(num_nodes=2, pos=torch.zeros(2, 3), edge_weight=torch.ones(0), edge_index=torch.zeros(2, 0).long())
    log_once.cache_clear()
    from_pyg([one, one])
    from_pyg(one)
    assert [record.message for record in caplog.records] == ["fields of the graphs that are not read: edge_weight, pos"]


@pytest.mark.parametrize(
    ("graph", "told"),
    [
        (HeteroData(), r"graph 0 is a HeteroData.*to_homogeneous\(\)"),
        (Data(x=torch.zeros(2, 3, dtype=torch.cfloat)), r"graph 0: x holds complex numbers; .*view_as_real\(x\)"),
        (Data(x=torch.eye(3).to_sparse()), r"graph 0: x is sparse; give x.to_dense\(\)"),
        (Data(x=torch.ones(2, 3), y="active"), "graph 0: y holds 'active', and no numbers; number the values"),  # type: ignore[arg-type]
        ("CCO", "graph 0 is a str; expected `Data`"),
    ],
    ids=range(5),
)
def test_what_cannot_be_read_of_pyg_is_told(graph, told):
    with pytest.raises(InputError, match=told):
        from_pyg([graph])


def test_columns_of_another_width_name_the_graph():
    with pytest.raises(InputError, match=r"graph 1: x has the shape \(2, 5\), and that of graph 0 \(2, 3\)"):
        from_pyg([Data(x=torch.zeros(2, 3)), Data(x=torch.zeros(2, 5))])


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"edge_index": torch.tensor([[0], [3]])}, "graph 1: edge_index names node 3; it has nodes 0 to 2"),
        ({"edge_index": torch.tensor([[-1], [0]])}, "graph 1: edge_index names node -1; it has nodes 0 to 2"),
        ({"edge_index": torch.tensor([[0, 1]])}, r"graph 1: edge_index must be \[2, edges\] of whole numbers"),
        ({"edge_index": torch.tensor([[0.0], [1.0]])}, "graph 1: edge_index must be .* of float32"),
        ({"num_nodes": 2}, "graph 1: x has 3 rows for 2 nodes; each needs one"),
        ({"edge_attr": torch.zeros(2, 1)}, "graph 1: edge_attr has 2 rows for 1 edges"),
    ],
)
def test_what_is_wrong_in_one_graph_of_several_names_it(fields, told):
    edge, attr = torch.tensor([[0], [1]]), torch.zeros(1, 1)
    graphs = [Data(x=torch.zeros(3, 2), edge_index=edge, edge_attr=attr) for _ in range(3)]
    for name, value in fields.items():
        setattr(graphs[1], name, value)
    with pytest.raises(InputError, match=told):
        from_pyg(graphs)


def test_a_missing_attribute_names_the_graph_and_its_owner():
    whole, torn = networkx.Graph(), networkx.Graph()
    for graph in (whole, torn):
        graph.add_nodes_from(range(3), kind=1)
        graph.add_edges_from([(0, 1), (1, 2)], bond=1)
    del torn.nodes[2]["kind"], torn.edges[0, 1]["bond"]
    with pytest.raises(InputError, match="graph 1, node 2: no attribute 'kind'; there are: none"):
        from_networkx([whole, torn], node_labels=["kind"])
    with pytest.raises(InputError, match=r"graph 1, edge \(0, 1\): no attribute 'bond'"):
        from_networkx([whole, torn], edge_values=["bond"])
    with pytest.raises(InputError, match="graph 0: no attribute 'y'"):
        from_networkx([whole, torn], target="y")


@pytest.mark.parametrize(("kind", "value"), [("node_labels", "C"), ("node_labels", 0.5), ("node_values", "C")])
def test_an_attribute_of_the_wrong_kind_is_shown(kind, value):
    graph = networkx.empty_graph(1)
    graph.nodes[0]["kind"] = value
    names: dict[str, Any] = {kind: ["kind"]}
    with pytest.raises(InputError, match=f"graph 0, node 0: attribute 'kind' is {value!r}, not a"):
        from_networkx(graph, **names)


def test_targets_that_are_no_numbers_are_refused():
    with pytest.raises(InputError, match="attribute 'y' of the graphs must be numbers"):
        from_networkx(networkx.Graph(y="toxic"), target="y")


def test_names_must_be_as_many_as_columns():
    with pytest.raises(InputError, match="node_labels has 2 columns, and 1 names"):
        to_networkx(random_batch([2], 1.0, seed=0, node_labels=True), node_labels=["element"])


def test_networkx_attributes_keep_their_values():
    labels = torch.randint(0, CATEGORIES, (3, 1), generator=generator(0))
    batch = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [2, 1], node_labels=labels)
    graphs = to_networkx(batch, node_labels=["kind"])
    assert [graph.nodes[v]["kind"] for graph in graphs for v in graph] == labels[:, 0].tolist()
