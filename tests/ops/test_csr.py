"""The Triton sum over the ones of each row answers to embedding_bag."""

import pytest
import torch
from strategies import generator
from torch import Tensor

from mnagt.errors import InputError
from mnagt.graphs.sparse import ptr_from_counts
from mnagt.ops import csr, functional

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
COLUMNS = 13


def matrix(counts: list[int], dtype: torch.dtype = torch.long) -> tuple[Tensor, Tensor]:
    """A 0/1 matrix with so many ones in each row."""
    index = torch.randint(COLUMNS, (sum(counts),), generator=generator(0), dtype=dtype)
    return index.to(DEVICE), ptr_from_counts(torch.tensor(counts, dtype=torch.long)).to(DEVICE, dtype)


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=generator(1), dtype=torch.double).to(DEVICE, dtype)


def check(x: Tensor, index: Tensor, ptr: Tensor, *rest: bool | Tensor | None) -> None:
    """The sum is the twin's in float64, rounded once."""
    on_cpu = [t.cpu() if isinstance(t, Tensor) else t for t in (index, ptr, *rest)]
    right = functional.sum_rows(x.double().cpu(), *on_cpu)  # pyright: ignore[reportArgumentType]
    rest = rest or (False, None, None)
    torch.testing.assert_close(csr.sum_rows(x, index, ptr, *rest), right.to(x))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("dim", [5, 100])
@pytest.mark.parametrize(
    "counts",
    [[1] * 17, [2, 0, 5, 0], [0, 0, 3, 1, 2, 2, 0], [7], [31, 0, 53, 11], [401], [1] * 41 + [150, 0, 129] + [2] * 37],
    ids=lambda counts: f"{len(counts)} rows, {sum(counts)} ones",
)
def test_every_row_is_the_sum_of_its_ones(counts, dim):
    check(numbers(COLUMNS, dim), *matrix(counts))


@pytest.mark.parametrize("with_self", [False, True])
@pytest.mark.parametrize("scaled", ["before", "after", "both"])
@pytest.mark.parametrize("counts", [[2, 0, 5, 1] + [1] * 9, [0] * 13, [1] * 11 + [150, 2]], ids=sum)
def test_rows_are_scaled_before_and_after_and_count_themselves(counts, scaled, with_self):
    before, after = numbers(COLUMNS, dtype=torch.double), numbers(len(counts))
    diagonals = (before if scaled != "after" else None, after if scaled != "before" else None)
    check(numbers(COLUMNS, 67), *matrix(counts), with_self, *diagonals)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_sums_are_rounded_once(dtype):
    check(numbers(COLUMNS, 67, dtype=dtype), *matrix([3, 0, 29, 1, 2, 140] + [1] * 31))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_either_kind_of_integer_will_do(dtype):
    check(numbers(COLUMNS, 11), *matrix([3, 0, 2, 7], dtype))


@pytest.mark.parametrize("dim", [1, 64, 300])
def test_any_width(dim):
    check(numbers(COLUMNS, dim), *matrix([3, 0, 53, 1, 129]))


def test_a_view_into_a_wider_tensor_is_read_as_it_is():
    check(numbers(COLUMNS, 97)[:, 3:70], *matrix([3, 0, 2, 7]))
    check(numbers(5, COLUMNS).T, *matrix([3, 0, 2, 7]))
    check(numbers(1, 5).expand(COLUMNS, 5), *matrix([3, 0, 2, 7]))


@pytest.mark.parametrize(("counts", "dim"), [([], 5), ([0, 0, 0], 5), ([2, 3], 0)])
def test_nothing_to_add_is_zero(counts, dim):
    y = csr.sum_rows(numbers(COLUMNS, dim), *matrix(counts), False, None, None)
    torch.testing.assert_close(y, torch.zeros(len(counts), dim, device=DEVICE))


def test_whole_numbers_are_refused():
    with pytest.raises(InputError, match="floating-point"):
        csr.sum_rows(torch.ones(COLUMNS, 3, dtype=torch.long, device=DEVICE), *matrix([1]), False, None, None)
