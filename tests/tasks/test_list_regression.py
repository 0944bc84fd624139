"""Numbers for each node: a row for each graph, whose width is that of the largest graph at hand."""

import pytest
import torch

from mnagt.errors import InputError
from mnagt.tasks import NodeRegression, Regression
from mnagt.tasks.guess import guess_kind
from mnagt.tasks.list_regression import parse_list
from mnagt.tasks.target_column import TargetColumn

NAN = float("nan")
NAMES = ("charge", "shift")
SIZES = [3, 1, 5]


def pad(rows: list[torch.Tensor], nodes: int) -> torch.Tensor:
    """Rows of nodes as a task has them, for graphs of up to so many nodes."""
    cells = torch.full((len(rows), nodes, len(NAMES)), NAN)
    for graph, row in enumerate(rows):
        cells[graph, : len(row)] = row
    return cells.flatten(1)


def draw(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, len(NAMES), generator=generator) * torch.tensor([1.0, 40.0]) for size in SIZES]


def column(*texts: str) -> TargetColumn:
    return TargetColumn("charge", texts, "my.csv", lambda row: f"my.csv, line {row + 2}")


def test_loss_and_scores_are_those_of_all_nodes_as_graphs_of_their_own():
    target, output = draw(0), draw(1)
    target[2][1, 0] = NAN
    ours, theirs = (kind(NAMES) for kind in (NodeRegression, Regression))
    ours, theirs = ours.fit(pad(target, 5)), theirs.fit(torch.cat(target))
    assert (ours.mean, ours.std) == (theirs.mean, theirs.std)
    together = torch.cat(output), torch.cat(target)
    for nodes in (5, 7):  # wider than the largest graph: padding counts for nothing
        for padded in ((pad(output, 5), pad(target, nodes)), (pad(output, nodes), pad(target, 5))):
            torch.testing.assert_close(ours.loss(*padded), theirs.loss(*together))
            assert ours.scores(*padded) == pytest.approx(theirs.scores(*together))
    assert ours.loss_weight(pad(target, 7)) == theirs.loss_weight(torch.cat(target)) == 17
    weighted, plain = (task.with_target_weights((3.0, 1.0)) for task in (ours, theirs))
    torch.testing.assert_close(weighted.loss(pad(output, 5), pad(target, 5)), plain.loss(*together))


def test_a_number_that_is_missing_where_a_node_has_a_target_is_seen():
    task, target = NodeRegression(NAMES), pad(draw(0), 5)
    narrow = pad([row[:3] for row in draw(1)], 3)
    assert task.loss(narrow, target).isnan()
    assert torch.tensor(task.scores(narrow, target)["rmse"]).isnan()


def test_padding_gets_no_gradient():
    target, output = pad(draw(0), 7), pad(draw(1), 7).requires_grad_()
    (gradient,) = torch.autograd.grad(NodeRegression(NAMES).loss(output, target), output)
    assert gradient.isfinite().all()
    assert (gradient != 0).equal(target.isfinite())


def test_predictions_are_lists_as_long_as_their_graph():
    rows = draw(2)
    task = NodeRegression(NAMES, mean=(1.0, -2.0), std=(3.0, 0.5))
    table = task.decode(pad(rows, 5))
    for i, name in enumerate(NAMES):
        expected = [(row[:, i] * task.std[i] + task.mean[i]).tolist() for row in rows]
        assert list(map(len, table[name])) == SIZES
        for ours, theirs in zip(table[name], expected, strict=True):
            assert ours == pytest.approx(theirs)


@pytest.mark.parametrize("transform", ["standardise", "log", "rank", "none"])
def test_outputs_of_another_member_keep_their_length(transform):
    target = [row.abs() + 1 for row in draw(0)]
    task = NodeRegression(NAMES, transform=transform)
    one, other = task.fit(pad(target, 5)), task.fit(pad(target[2:], 5))
    converted = one.convert_output(pad(draw(1), 5), other)
    assert list(map(len, one.decode(converted)["charge"])) == SIZES


def test_whether_predictions_are_finite_is_asked_of_nodes_alone():
    task, output = NodeRegression(NAMES), pad(draw(0), 7)
    assert task.is_finite(output)
    for graph, cell, value in ((0, 0, NAN), (0, 2, NAN), (2, 3, torch.inf)):
        bad = output.clone()
        bad[graph, cell] = value
        assert not task.is_finite(bad)


def test_copies_with_another_order_of_nodes_are_equal():
    rows = draw(0)
    task, target, renamed = NodeRegression(NAMES), pad(rows, 5), pad([row.flip(0) for row in rows], 5)
    torch.testing.assert_close(
        task.comparable_targets(target), task.comparable_targets(renamed), equal_nan=True, rtol=0, atol=0
    )
    assert not torch.equal(task.comparable_targets(target)[2], task.comparable_targets(target + 1)[2])


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("[0.1, -0.2]", [0.1, -0.2]),
        ("0.1,-0.2", [0.1, -0.2]),
        ("(1;2)", [1.0, 2.0]),
        ("[ 1.  2.5\n 3e1]", [1.0, 2.5, 30.0]),
        ("7", [7.0]),
        ("[]", []),
        ("[0.1, null, nan, None, ]", [0.1, NAN, NAN, NAN, NAN]),
        ("[0.1, C]", None),
        ("[[1], [2]]", None),
        ("[1e400]", None),
    ],
)
def test_cells_are_lists_as_json_python_and_numpy_write_them(text, numbers):
    parsed = parse_list(text)
    assert parsed == (None if numbers is None else pytest.approx(numbers, nan_ok=True))


def test_a_cell_that_does_not_fit_its_graph_is_an_error_with_its_line():
    task = NodeRegression(("charge",))
    target = task.parse_list_targets([column("[1, 2]", "", "[3, null, 5]")], [2, 4, 3], "nodes")
    torch.testing.assert_close(target, torch.tensor([[1, 2, NAN], [NAN] * 3, [3, NAN, 5]]), equal_nan=True)
    with pytest.raises(InputError, match=r"my\.csv, line 3: 2 values for 3 atoms \(without hydrogens"):
        task.parse_list_targets([column("[1, 2]", "[1, 2]")], [2, 3], "atoms")
    with pytest.raises(InputError, match=r"my\.csv, line 2: '\[x\]' is neither a list of numbers"):
        task.parse_list_targets([column("[x]")], [1], "nodes")
    with pytest.raises(InputError, match="the task is regression"):
        Regression(("charge",)).parse_list_targets([column("[1]")], [1], "nodes")


def test_lists_are_never_guessed_to_be_classes():
    with pytest.raises(InputError, match=r"my\.csv: column 'charge' holds lists.*--atom-targets"):
        guess_kind([column("[0.1, 0.2]", "[0.3]", "")])
