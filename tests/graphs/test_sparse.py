import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import generator
from torch import Tensor

from mnagt.graphs.sparse import Incidence, ptr_from_counts, ptr_from_index, ragged_arange, take


def random_incidence(rows: int, columns: int, density: float, seed: int) -> tuple[Incidence, Tensor]:
    """A random 0/1 matrix, row by row and dense."""
    dense = (torch.rand(rows, columns, generator=generator(seed)) < density).double()
    row, index = dense.nonzero().T
    return Incidence(index, ptr_from_index(row, rows), columns), dense


incidences = st.builds(
    random_incidence, st.integers(0, 7), st.integers(1, 5), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 99)
)


@given(incidences)
def test_a_product_is_that_of_the_dense_matrix(case):
    matrix, dense = case
    x = torch.randn(dense.shape[1], 3, dtype=torch.double, generator=generator(0))
    torch.testing.assert_close(matrix @ x, dense @ x)


@given(incidences)
def test_the_transposed_product_is_that_of_the_transposed_matrix(case):
    matrix, dense = case
    x = torch.randn(dense.shape[0], 3, dtype=torch.double, generator=generator(0))
    torch.testing.assert_close(matrix.transposed @ x, dense.T @ x)
    assert matrix.transposed is matrix.transposed


@given(incidences)
def test_gradients_of_a_product_are_those_of_the_dense_matrix(case):
    matrix, dense = case
    x = torch.randn(dense.shape[1], 3, dtype=torch.double, generator=generator(0), requires_grad=True)
    weight = torch.randn(dense.shape[0], 3, dtype=torch.double, generator=generator(1))
    (fast,) = torch.autograd.grad(((matrix @ x) * weight).sum(), x)
    torch.testing.assert_close(fast, dense.T @ weight)


def test_second_derivatives_of_a_product_are_right():
    matrix, _ = random_incidence(5, 3, 0.5, seed=0)
    x = torch.randn(3, 2, dtype=torch.double, generator=generator(0), requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: (matrix @ x).square(), x)


def test_repeated_ones_count_as_often_as_they_come():
    matrix = Incidence(torch.tensor([1, 1, 0]), torch.tensor([0, 2, 3]), columns=2)
    torch.testing.assert_close(matrix @ torch.tensor([[3.0], [5.0]]), torch.tensor([[10.0], [3.0]]))


@given(st.lists(st.integers(0, 4), max_size=7))
def test_taking_copies_rows_and_sums_their_gradients(index):
    rows = Incidence(torch.tensor(index, dtype=torch.long), torch.arange(len(index) + 1), columns=5)
    x = torch.randn(5, 3, dtype=torch.double, generator=generator(0), requires_grad=True)
    weight = torch.randn(len(index), 3, dtype=torch.double, generator=generator(1))
    torch.testing.assert_close(take(rows, x), x[rows.index])
    (fast,) = torch.autograd.grad((take(rows, x) * weight).sum(), x)
    (slow,) = torch.autograd.grad((x[rows.index] * weight).sum(), x)
    torch.testing.assert_close(fast, slow)


@given(st.lists(st.integers(0, 4), max_size=9))
def test_a_pointer_bounds_the_sorted_rows(row):
    ptr = ptr_from_index(torch.tensor(row, dtype=torch.long), 5).tolist()
    assert [sorted(row)[ptr[i] : ptr[i + 1]] for i in range(5)] == [[i] * row.count(i) for i in range(5)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), max_size=7))
def test_a_ragged_range_is_its_ranges_end_to_end(ranges):
    start, counts = torch.tensor(ranges, dtype=torch.long).view(-1, 2).T
    expected = [i for first, count in ranges for i in range(first, first + count)]
    assert ragged_arange(start, counts, len(expected)).tolist() == expected
    assert ptr_from_counts(counts)[-1] == len(expected)
