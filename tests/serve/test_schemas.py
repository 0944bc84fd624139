"""A request becomes graphs, or an error that names the field."""

from typing import Any

import pytest
import torch

from mnagt.data.readers.smiles import read_smiles
from mnagt.errors import InputError
from mnagt.serve.batching import AbandonedError
from mnagt.serve.config import ServeConfig
from mnagt.serve.schemas import Graph, PredictRequest, concatenate, list_input_kinds, read_request

LIMITS = ServeConfig(max_graphs=5, max_nodes=40, max_edges=30, max_text=50)
TRIANGLE = {
    "nodes": 3,
    "edges": [[0, 1], [1, 2], [2, 0]],
    "node_labels": [["C"], ["O"], [-1]],
    "node_values": [[0.5], [1], [-2]],
    "edge_labels": [[1], [0], [1]],
}


def test_kinds_follow_from_the_model(molecules, plain, namer):
    assert [list_input_kinds(trained) for trained in (molecules, plain, namer)] == [
        ("smiles", "graphs"),
        ("graphs",),
        ("code", "graphs"),
    ]


def test_a_graph_is_read_as_given(plain):
    batch = read_request(PredictRequest(graphs=[Graph(**TRIANGLE)]), plain, LIMITS).graphs.batch(torch.tensor([0]))
    assert batch.node_labels is not None
    assert batch.edge_labels is not None
    assert batch.node_labels.tolist() == [[0], [2], [-1]]
    assert batch.is_symmetric
    ends = {
        (int(u), int(v)): int(label) for (u, v), label in zip(batch.edge_index.T, batch.edge_labels[:, 0], strict=True)
    }
    assert ends == {(0, 1): 1, (1, 0): 1, (1, 2): 0, (2, 1): 0, (2, 0): 1, (0, 2): 1}


def test_directed_edges_run_one_way_and_self_loops_are_dropped(plain):
    graph = TRIANGLE | {"directed": True, "edges": [[0, 1], [1, 1], [2, 0]]}
    batch = read_request(PredictRequest(graphs=[Graph(**graph)]), plain, LIMITS).graphs.batch(torch.tensor([0]))
    assert sorted(batch.edge_index.T.tolist()) == [[0, 1], [2, 0]]


def test_of_parallel_edges_the_first_is_kept_as_in_files(plain):
    graph: dict[str, Any] = TRIANGLE | {"edges": [[1, 0], [2, 0], [1, 0]], "edge_labels": [[1], [0], [0]]}
    batch = read_request(PredictRequest(graphs=[Graph(**graph)]), plain, LIMITS).graphs.batch(torch.tensor([0]))
    assert batch.edge_labels is not None
    edges = dict(zip(map(tuple, batch.edge_index.T.tolist()), batch.edge_labels[:, 0].tolist(), strict=True))
    assert edges == {(1, 0): 1, (0, 1): 1, (2, 0): 0, (0, 2): 0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"node_labels": None}, r"graphs\[0\].node_labels: missing; the model reads 1"),
        ({"node_labels": [["C"], ["O"]]}, r"node_labels: 2 rows for 3 nodes"),
        ({"node_labels": [["C"], ["O"], ["X"]]}, r"node_labels\[2\]\[0\]: 'X' is not a category of the model"),
        ({"node_labels": [[0], [1], [3]]}, r"node_labels\[2\]\[0\]: 3 is not a category .* 0 to 2 \(C, N, O\)"),
        ({"node_labels": [[0, 1], [1], [2]]}, r"node_labels\[0\]: 2 columns, and the model reads 1"),
        ({"node_values": [[1e300], [0], [0]]}, "too large"),
        ({"edge_values": [[0.0]] * 3}, "edge_values: the model reads none"),
        ({"edges": [[0, 1], [1, 3], [2, 0]]}, "edges: nodes are 0 to 2, got 0 to 3"),
        ({"edges": [[0, -1], [1, 2], [2, 0]]}, "edges: nodes are 0 to 2, got -1 to 2"),
        ({"nodes": 41}, "41 nodes, at most 40"),
        ({"nodes": 2_000_000_000}, "2,000,000,000 nodes, at most 40"),
    ],
)
def test_what_cannot_be_read_is_named(plain, change, message):
    with pytest.raises(InputError, match=message):
        read_request(PredictRequest(graphs=[Graph(**(TRIANGLE | change))]), plain, LIMITS)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        ({}, "give one of smiles, graphs, got none"),
        ({"smiles": ["C"], "graphs": []}, "got smiles and graphs"),
        ({"code": "def f(): pass"}, "code: this model does not read it"),
        ({"smiles": []}, "1 to 5 entries are allowed, got 0"),
        ({"smiles": ["C"] * 6}, "got 6"),
        ({"smiles": ["C" * 51]}, r"smiles\[0\]: 51 characters"),
        ({"smiles": ["not a molecule", "C1CC"]}, r"smiles\[0\]: more than a SMILES"),
        ({"smiles": ["C" * 11]}, "11 nodes in one graph, at most 10"),
    ],
)
def test_what_may_not_be_requested_is_named(molecules, ask, message):
    with pytest.raises(InputError, match=message):
        read_request(PredictRequest(**ask), molecules, LIMITS)


def test_code_gives_its_functions(namer):
    request = read_request(
        PredictRequest(code="def f(x):\n    return x\n\nclass A:\n    def g(self): ..."), namer, LIMITS
    )
    assert [function.name for function in request.functions] == ["f", "A.g"]
    with pytest.raises(InputError, match=r"code, line 1: .* it is not Python"):
        read_request(PredictRequest(code="def ("), namer, LIMITS)
    with pytest.raises(InputError, match="functions are allowed, got 0"):
        read_request(PredictRequest(code="x = 1"), namer, LIMITS)


@pytest.mark.parametrize(
    ("code", "detail"),
    [
        ("a=b\n" * 161, "644 characters, at most 640 are allowed"),
        ("def f(): 0\n" * 6, "6 functions, at most 5 are allowed"),
        ("def f():\n if a: b\n" * 5, "45 nodes, at most 40 are allowed"),
    ],
)
def test_code_beyond_the_limits_is_read_no_further(namer, code, detail):
    with pytest.raises(InputError, match=f"code: {detail}"):
        read_request(PredictRequest(code=code), namer, LIMITS)


@pytest.mark.parametrize(
    ("model", "request_of"),
    [
        ("molecules", PredictRequest.model_validate({"smiles": ["C" * 10] * 4})),
        ("plain", PredictRequest.model_validate({"graphs": [TRIANGLE] * 4})),
        ("namer", PredictRequest(code="def f(): 0\n" * 4)),
    ],
)
def test_a_request_that_nobody_waits_for_is_read_no_further(model, request_of, request, monkeypatch):
    """It is given up at the third check, with four molecules, graphs or functions."""
    monkeypatch.setattr("mnagt.serve.schemas.ATOMS_AT_ONCE", 10)
    checks = iter(range(2))

    def check() -> None:
        if next(checks, None) is None:
            raise AbandonedError

    with pytest.raises(AbandonedError):
        read_request(request_of, request.getfixturevalue(model), LIMITS, check)


def test_joined_graphs_are_the_same_graphs():
    smiles = ["CCO", "c1ccccc1", "C", "CC(=O)[O-].[Na+]"]
    parts = [read_smiles(some).graphs for some in (smiles[:2], smiles[2:3], smiles[3:])]
    one, other = concatenate(parts).batch(torch.arange(4)), read_smiles(smiles).graphs.batch(torch.arange(4))
    for name in ("sizes", "node_ptr", "in_ptr", "source", "node_labels", "edge_labels"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
