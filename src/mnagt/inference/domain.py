"""The applicability domain of a model: how far graphs are from those that it was trained on.

A graph's distance is that of its vector to the nearest vectors of training graphs, divided by the distance that 95 % of
the validation graphs stay within. Above 1 the graph is unlike those that the model knows.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from mnagt.data.packed import PackedDataset
from mnagt.data.splits import Split
from mnagt.errors import InputError
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.weisfeiler_lehman import subtree_colours
from mnagt.inference.drift import Bins, bins_from_dict, bins_to_dict, fit_bins
from mnagt.inference.outputs import compute_outputs
from mnagt.inference.random_forest import ForestEnsemble
from mnagt.inference.weights import MAX_WEIGHT, load_tensors, save_tensors
from mnagt.nn.encoders import NoEncoder
from mnagt.nn.graph_model import GraphModel

DISTANCE = "distance"
"""The column of predictions."""
LEVEL = 0.95
"""The share of validation graphs with a distance of at most 1."""
NEIGHBOURS = 5
MAX_GRAPHS, MAX_NUMBERS = 2000, 2**18
"""Training graphs, and numbers of their vectors, that are kept at most."""
MAX_DEVIATIONS = 10.0
"""Standardised columns of vectors are cut off there."""
WL_ITERATIONS, WL_SLOTS = 2, 256

VectorKind = Literal["embedding", "wl-counts"]
"""What the vector of a graph is: the input of the model's head; or, of models that encode no nodes (``counts``, those
of scikit-learn, modules of one's own), the logarithms of the counts of WL colours, hashed to ``WL_SLOTS`` columns."""


@dataclass(frozen=True, eq=False)
class Domain:
    """Vectors of training graphs, and how far validation graphs are from them."""

    kind: VectorKind
    center: Float[Tensor, "dim"]
    scale: Float[Tensor, "dim"]
    reference: Float[Tensor, "graphs dim"]
    """Standardised vectors of training graphs, drawn at random if there are many."""
    limit: float
    """The distance that 95 % of the validation graphs stay within, before it is divided by itself."""
    bins: Mapping[str, Bins]
    """Sizes and categories of training graphs, and distances of validation graphs (``mnagt monitor``)."""

    def distances(self, vectors: Float[Tensor, "graphs dim"]) -> Float[Tensor, "graphs"]:
        """The mean distance to the ``NEIGHBOURS`` nearest training graphs, divided by that of validation graphs."""
        return _nearest(self._standardise(vectors), self.reference.to(vectors.device)) / self.limit

    def _standardise(self, vectors: Float[Tensor, "graphs dim"]) -> Float[Tensor, "graphs dim"]:
        z = (vectors.float() - self.center.to(vectors.device)) / self.scale.to(vectors.device)
        return z.nan_to_num(0.0).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)

    def save(self, path: Path, weights: str) -> None:
        """Write the file of a model folder; ``weights`` is the fingerprint of the model's."""
        tensors = {"center": self.center, "scale": self.scale, "reference": self.reference}
        note = {"kind": self.kind, "limit": self.limit, "bins": bins_to_dict(self.bins), "weights": weights}
        save_tensors(path, tensors, note)

    @classmethod
    def load(cls, path: Path, weights: str) -> "Domain":
        """What ``save`` wrote for the model with these weights."""
        tensors, note = load_tensors(path)
        remedy = "restore it, or delete it to go without distances"
        if not isinstance(note, dict) or note.get("weights") != weights:
            raise InputError(f"{path}: of another model; {remedy}")
        try:
            kind, limit = note["kind"], float(note["limit"])
            center, scale, reference = (tensors[name] for name in ("center", "scale", "reference"))
            shapes = (*center.shape, *scale.shape, *reference.shape[1:])
            is_sound = kind in get_args(VectorKind) and 0 < limit < math.inf and len(reference) >= NEIGHBOURS
            is_sound &= len(shapes) == 3 and len(set(shapes)) == 1 and bool((scale > 0).all())
            if not is_sound or not all(each.abs().max() < MAX_WEIGHT for each in (center, scale, reference)):
                raise ValueError
        except (KeyError, TypeError, ValueError, RuntimeError):
            raise InputError(f"{path}: damaged; {remedy}") from None
        return cls(kind, center, scale, reference, limit, bins_from_dict(note.get("bins"), str(path)))


class DistanceModel(nn.Module):
    """From a batch of graphs to distances, in a first column, and outputs.

    ``forest`` is the ensemble of ``network`` with its forest, if it has one.
    """

    def __init__(self, network: GraphModel, domain: Domain, forest: ForestEnsemble | None = None) -> None:
        super().__init__()
        self.network, self.domain, self.forest = network, domain, forest
        self.training = network.training

    def forward(self, graph: GraphBatch) -> Float[Tensor, "graphs one_and_outputs"]:
        if self.domain.kind == "embedding":
            output, vectors = self.network.predict_and_embed(graph)
        else:
            vectors, output = count_wl_colours(graph), self.network(graph)
        if self.forest is not None:
            output = self.forest.combine(output, graph)
        return torch.cat([self.domain.distances(vectors)[:, None].to(output.dtype), output], dim=1)


def fit_domain(model: GraphModel, dataset: PackedDataset, split: Split) -> Domain | None:
    """The domain of a model; None where there are too few training graphs."""
    if len(split.train) < NEIGHBOURS:
        return None
    kind: VectorKind = "wl-counts" if isinstance(model.encoder, NoEncoder) else "embedding"
    generator = torch.Generator().manual_seed(0)
    train, valid = (_draw(part, MAX_GRAPHS, generator) for part in (split.train, split.valid))
    compute = model.eval().embed if kind == "embedding" else count_wl_colours
    vectors, held_out = (compute_outputs(compute, dataset, part).cpu().double() for part in (train, valid))
    center = vectors.nanmean(dim=0).nan_to_num()
    scale = (vectors - center).square().nanmean(dim=0).sqrt().nan_to_num()
    scale = torch.where(scale > 1e-6 * (1 + center.abs()), scale, 1.0)
    domain = Domain(kind, center.float(), scale.float(), torch.empty(0, vectors.shape[1]), 1.0, {})
    reference = domain._standardise(vectors.float())[: max(NEIGHBOURS, MAX_NUMBERS // max(1, vectors.shape[1]))]
    nearest = _nearest(domain._standardise(held_out.float()), reference)
    rank = min(len(nearest), math.ceil(LEVEL * (len(nearest) + 1)))
    limit = max(float(nearest.sort().values[rank - 1]), 1e-6)
    bins = fit_bins(dataset.batch(train), nearest / limit)
    return Domain(kind, domain.center, domain.scale, reference, limit, bins)


def count_wl_colours(graph: GraphBatch) -> Float[Tensor, "graphs slots"]:
    """Logarithms of the counts of WL colours, hashed to ``WL_SLOTS`` columns."""
    colours = subtree_colours(graph, WL_ITERATIONS).long()
    slots = (colours + 7919 * torch.arange(colours.shape[1], device=colours.device)) % WL_SLOTS
    index = (graph.graph_of_node.long()[:, None] * WL_SLOTS + slots).flatten()
    return index.bincount(minlength=graph.num_graphs * WL_SLOTS).view(graph.num_graphs, WL_SLOTS).float().log1p()


def _nearest(
    vectors: Float[Tensor, "graphs dim"], reference: Float[Tensor, "training_graphs dim"]
) -> Float[Tensor, "graphs"]:
    """The mean distance of each vector to its nearest ones; the same in any batch."""
    distances = torch.cdist(vectors, reference, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.topk(NEIGHBOURS, largest=False).values.mean(dim=1)


def _draw(part: Int[Tensor, "part"], count: int, generator: torch.Generator) -> Int[Tensor, "some"]:
    """So many of the graphs at most, in random order."""
    return part[torch.randperm(len(part), generator=generator)[:count]]
