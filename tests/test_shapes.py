"""Shapes in annotations are held against what functions are given, also while only some calls are checked."""

import pytest
import shapes
import torch
from jaxtyping import TypeCheckError

from mnagt.graphs.batch import GraphBatch
from mnagt.metrics import accuracy, confusion_matrix
from mnagt.nn.readouts import Sum


def test_the_first_calls_of_each_test_are_checked():
    for _ in range(shapes.FIRST):
        with pytest.raises(TypeCheckError, match=r"metrics\.accuracy"):
            accuracy(torch.tensor(1.0))


def test_later_one_of_many_is_checked():
    found = []
    for call in range(1, 2 * shapes.EVERY + 1):
        try:
            confusion_matrix(torch.tensor([0.0]).bool(), torch.tensor([0]), 2)
        except TypeCheckError:
            found.append(call)
    assert found == [*range(1, shapes.FIRST + 1), shapes.EVERY, 2 * shapes.EVERY]


def test_methods_results_and_dataclasses_are_checked():
    graph = GraphBatch.from_edges(torch.zeros(2, 0, dtype=torch.long), [3])
    with pytest.raises(TypeCheckError):
        Sum(2)(torch.ones(3), graph)
    with pytest.raises(TypeCheckError):
        GraphBatch(graph.sizes, graph.node_ptr, graph.in_ptr, torch.zeros(2, 3, dtype=torch.int32), True)
