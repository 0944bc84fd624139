"""Clusters and orders of molecules by their Morgan fingerprints, for splits of dissimilar parts."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from mnagt.data.readers.smiles import first_components, run_rdkit

_ROWS = 1024
"""Molecules that are compared with all others at once."""

Bits = Float[np.ndarray, "molecules bits"]


def morgan_bits(smiles: Sequence[str]) -> Bits:
    """The Morgan fingerprint (radius 2, 1024 bits) of each molecule, or of what ``first_components`` names, as 0 and 1.

    >>> morgan_bits(["CCO", "OCC"]).sum(axis=1).tolist()
    [6.0, 6.0]
    """
    packed = np.concatenate([part["bits"] for part in run_rdkit("fingerprints", first_components(smiles))])
    return np.unpackbits(packed, axis=1).astype(np.float32)


def butina_clusters(bits: Bits, cutoff: float) -> NDArray[np.int64]:
    """The Taylor-Butina cluster of each molecule: its members are within ``cutoff`` (Tanimoto distance) of its centre.

    The molecule with the most neighbours is the first centre; each next one has the most neighbours of those left, as
    counted at the start. Time grows with the square of the number of molecules.
    """
    sizes, neighbours = bits.sum(axis=1), []
    for start in range(0, len(bits), _ROWS):
        shared = bits[start : start + _ROWS] @ bits.T
        union = sizes[start : start + _ROWS, None] + sizes - shared
        neighbours += [np.flatnonzero(row) for row in shared >= (1 - cutoff) * union - 1e-6]
    cluster = np.full(len(bits), -1)
    order = sorted(range(len(bits)), key=lambda molecule: len(neighbours[molecule]), reverse=True)
    for centre in order:
        if cluster[centre] < 0:
            members = neighbours[centre]
            cluster[members[cluster[members] < 0]] = centre
    return np.unique(cluster, return_inverse=True)[1].astype(np.int64)


def kmeans_clusters(bits: Bits, clusters: int, seed: int) -> NDArray[np.int64]:
    """The k-means cluster of each molecule, by scikit-learn's mini-batch k-means."""
    from sklearn.cluster import MiniBatchKMeans

    cluster = MiniBatchKMeans(min(clusters, len(bits)), random_state=seed, batch_size=_ROWS).fit_predict(bits)
    return cluster.astype(np.int64)


def kennard_stone_order(bits: Bits) -> NDArray[np.int64]:
    """The molecules in the order of Kennard and Stone (1969): each is the farthest from all before it.

    Distances are Euclidean. The first is the farthest from the mean, where the paper begins with the farthest pair.
    """
    squares = bits.sum(axis=1)
    nearest = squares - 2 * bits @ bits.mean(axis=0)
    order, is_left = [], np.ones(len(bits), bool)
    for _ in range(len(bits)):
        chosen = int(np.where(is_left, nearest, -np.inf).argmax())
        distance = squares + squares[chosen] - 2 * bits @ bits[chosen]
        nearest = np.minimum(nearest, distance) if order else distance
        is_left[chosen] = False
        order.append(chosen)
    return np.array(order, np.int64)
