r"""Clipping and AdamW for all parameters at once, kept side by side in one tensor.

.. math:: g \leftarrow g \min(1, c / \lVert g \rVert), \qquad m \leftarrow \beta_1 m + (1 - \beta_1) g, \qquad
          v \leftarrow \beta_2 v + (1 - \beta_2) g^2, \qquad
          p \leftarrow (1 - \eta \lambda) p - \eta \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}

With a hundred small parameters, torch's fused step leaves most of a GPU idle. Here gradients are gathered, and two
launches do the rest: one squares and adds up, the other updates.
"""

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mnagt.ops import parameter_copies

ALIGNED = 16
"""Parameters begin at multiples of so many numbers: rows of matrices must be aligned to be multiplied fast."""
BLOCK = 1024
"""Numbers that a program works on at a time."""
PROGRAMS = 1024
"""Programs that square and add up, at most: every one that updates reads what each of them found."""


class FlatAdamW(torch.optim.AdamW):
    """Its twin is ``torch.nn.utils.clip_grad_norm_`` and then ``torch.optim.AdamW``. ``clip`` 0 does not clip.

    The parameters move into one tensor, and stay what they are to their model. With ``copy_dtype``, each has a copy of
    that dtype which linear layers multiply by (``ops.parameter_copies``), up to date after every step and ``refresh``.

    ``seen`` holds whether a loss or norm was not finite, and those of the last step. From the first that was not on,
    no parameter is changed.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: Tensor, *, clip: float, copy_dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(groups, lr=lr, fused=True, capturable=True)
        self.clip = clip
        sizes = [sum(-(-p.numel() // ALIGNED) * ALIGNED for p in group["params"]) for group in self.param_groups]
        self._spans = [(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
        self._weights, self._grads, self._mean, self._square = lr.new_zeros(4, sum(sizes)).unbind()
        self._step = torch.zeros((), dtype=torch.float32, device=lr.device)
        self.seen = lr.new_zeros(3)
        self.copies = None if copy_dtype is None else self._weights.to(copy_dtype)
        self._gathered: list[Tensor] = []
        self._parameters = [p for group in self.param_groups for p in group["params"]]
        at = 0
        for p in self._parameters:
            span = slice(at, at + p.numel())
            at += -(-p.numel() // ALIGNED) * ALIGNED
            weights, grads, mean, square = (
                flat[span].view(p.shape) for flat in (self._weights, self._grads, self._mean, self._square)
            )
            weights.copy_(p.detach())
            p.data = weights
            self._gathered.append(grads)
            self.state[p] = {"step": self._step, "exp_avg": mean, "exp_avg_sq": square}
            if self.copies is not None:
                parameter_copies.register(p, self.copies[span].view(p.shape))
        self.refresh()

    def refresh(self) -> None:
        """Round the parameters again, after somebody else has changed them."""
        if self.copies is not None:
            self.copies.copy_(self._weights)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None, *, loss: Tensor | None = None) -> None:  # type: ignore[override]
        """Clip and update. A parameter without a gradient has one of zeros."""
        assert closure is None
        if loss is not None:
            self.seen[1].copy_(loss)
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        torch._foreach_copy_(self._gathered, grads)  # pyright: ignore[reportPrivateImportUsage]
        numbers = len(self._grads)
        programs = min(triton.cdiv(numbers, BLOCK), PROGRAMS)
        squares = self._grads.new_empty(programs)
        with torch.cuda.device_of(self._grads):
            _square_up[(programs,)](self._grads, squares, self._step, numbers, BLOCK)
            for group, (first, end) in zip(self.param_groups, self._spans, strict=True):
                _update[(triton.cdiv(end - first, BLOCK),)](
                    self._weights, self._grads, self._mean, self._square, self.copies, squares, self._step,
                    self.seen, group["lr"], first, end, group["weight_decay"], self.clip, programs,
                    *group["betas"], group["eps"], triton.next_power_of_2(programs), BLOCK,
                )  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the memory of another, in place."""
        for number, p in enumerate(self._parameters):
            saved = state_dict["state"][number]
            for name, mine in self.state[p].items():
                mine.copy_(saved[name])


@triton.jit
def _square_up(grads, squares, step, numbers, block: tl.constexpr):
    """Squares of every n-th block of gradients, added up; and one more step counted."""
    total = tl.zeros([block], tl.float32)
    for start in range(tl.program_id(0) * block, numbers, tl.num_programs(0) * block):
        at = start + tl.arange(0, block)
        g = tl.load(grads + at, mask=at < numbers, other=0.0)
        total += g * g
    tl.store(squares + tl.program_id(0), tl.sum(total, 0))
    if tl.program_id(0) == 0:
        tl.store(step, tl.load(step) + 1)


@triton.jit(do_not_specialize=["decay", "clip"])
def _update(
    weights, grads, means, squares, rounded, parts, step, seen, lr, first, end, decay, clip, programs,
    beta1: tl.constexpr, beta2: tl.constexpr, eps: tl.constexpr, width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """A block of parameters of one group."""
    part = tl.arange(0, width)
    norm = tl.sqrt(tl.sum(tl.load(parts + part, mask=part < programs, other=0.0), 0))
    scale = tl.where(clip > 0, tl.minimum(clip / (norm + 1e-6), 1.0), 1.0)
    t, rate = tl.load(step).to(tl.float64), tl.load(lr)
    mean_share = (1.0 - _power(beta1, t)).to(tl.float32)
    square_share = (1.0 - _power(beta2, t)).to(tl.float32)
    is_fine = (tl.load(seen) == 0) & (tl.abs(tl.load(seen + 1)) < float("inf")) & (norm < float("inf"))
    if tl.program_id(0) == 0:
        tl.store(seen, tl.where(is_fine, 0.0, 1.0))
        tl.store(seen + 2, norm)
    at = first + tl.program_id(0) * block + tl.arange(0, block)
    mask = at < tl.where(is_fine, end, first)
    g = tl.load(grads + at, mask=mask, other=0.0) * scale
    p = tl.load(weights + at, mask=mask, other=0.0) * (1.0 - rate * decay)
    m = tl.load(means + at, mask=mask, other=0.0)
    m += (1.0 - beta1) * (g - m)
    v = beta2 * tl.load(squares + at, mask=mask, other=0.0) + (1.0 - beta2) * g * g
    p -= rate / mean_share * m / (tl.sqrt(v) / tl.sqrt(square_share) + eps)
    tl.store(means + at, m, mask=mask)
    tl.store(squares + at, v, mask=mask)
    tl.store(weights + at, p, mask=mask)
    if rounded is not None:
        tl.store(rounded + at, p, mask=mask)


@triton.jit
def _power(base: tl.constexpr, t):
    """``base`` to the power ``t``, in double precision: what is left of 1 is little at first."""
    return tl.exp(t * tl.log(tl.full([], base, tl.float64)))
