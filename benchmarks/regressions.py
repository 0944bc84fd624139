"""What has got slower: ours beside a peer in the same run, compared with what the last release took.

Each figure is the processor time of ours divided by that of a peer (RDKit, PyTorch, PyTorch Geometric) on the same
data, each side in its fastest round. They take turns in one thread, so that the speed of the machine cancels.
``expected.json`` holds the ratio of each pair and a band for noise. A pair beyond its band is measured up to twice
more, and only what is slower each time counts: the exit status is then 1. ``--update`` measures several times and
stores ratios and bands. No data are needed beyond those of the package.

On an idle machine ``--clock wall`` also sees time that is spent waiting.
"""

import statistics
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import common
import torch

from mnagt.data.encodings import with_encodings
from mnagt.data.readers.smiles import read_smiles
from mnagt.data.registry import load_dataset
from mnagt.files import read_json
from mnagt.graphs.batch import GraphBatch
from mnagt.graphs.convert import to_pyg
from mnagt.models.registry import build_model
from mnagt.runs.config import TrainConfig

EXPECTED = Path(__file__).with_name("expected.json")
AGAIN = 2
"""Times that a pair which seems slower is measured once more."""
SMALLEST_BAND = 0.1
"""Ratios of the same code differ by as much from day to day."""
SMILES = [
    "CC(=O)Oc1ccccc1C(=O)O", "CN1C=NC2=C1C(=O)N(C(=O)N2C)C", "CC(C)Cc1ccc(cc1)C(C)C(=O)O", "NC(=O)c1cnccn1",
    "C[C@H](N)C(=O)O", "OC[C@H]1OC(O)[C@H](O)[C@@H](O)[C@@H]1O", "CN1CCC[C@H]1c1cccnc1", "O=C(O)c1cc(O)c(O)c(O)c1",
    "CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O", "Clc1ccc2c(c1)C(c1ccccc1)=NCC(=O)N2C", "CCO", "C1CCCCC1N",
    "COc1ccc2[nH]cc(CCNC(C)=O)c2c1", "CC12CCC3C(CCc4cc(O)ccc34)C1CCC2O", "FC(F)(F)c1ccc(OC(CCNC)c2ccccc2)cc1",
    "[O-][N+](=O)c1ccc(Cl)cc1", "CC(C)(C)NCC(O)c1ccc(O)c(CO)c1", "c1ccc2c(c1)ccc1ccccc12", "CS(=O)(=O)c1ccc(N)cc1",
] * 16  # fmt: skip


class Pair(NamedTuple):
    """A step of ours and one of a peer."""

    ours: Callable[[], object]
    peer: Callable[[], object]


def read_molecules() -> Pair:
    from rdkit.rdBase import BlockLogs
    from torch_geometric.utils import from_smiles

    def peer() -> object:
        with BlockLogs():
            return [from_smiles(text) for text in SMILES]

    return Pair(lambda: read_smiles(SMILES, workers=1), peer)


def screen_molecules() -> Pair:
    """From SMILES to the outputs of a small GIN, beside RDKit's parsing alone."""
    from rdkit.Chem import MolFromSmiles

    from mnagt.data.readers.smiles import FEATURES
    from mnagt.inference.outputs import compute_outputs

    torch.manual_seed(0)
    model = build_model("gin", {"dim": 32, "depth": 3}, FEATURES, 1).eval()

    def ours() -> object:
        graphs = read_smiles(SMILES, workers=1).graphs
        return compute_outputs(model, graphs, torch.arange(len(graphs)))

    return Pair(ours, lambda: [MolFromSmiles(text) for text in SMILES])


def make_batches() -> Pair:
    """Batches of 94 graphs, beside PyTorch Geometric's of a list of graphs."""
    from torch_geometric.data import Batch

    dataset = load_dataset("MUTAG")
    graphs: Any = to_pyg(dataset.batch(torch.arange(len(dataset))))
    listed, halves = graphs.to_data_list(), torch.arange(len(dataset)).split(94)
    return Pair(
        lambda: [dataset.batch(half) for half in halves],
        lambda: [Batch.from_data_list([listed[i] for i in half]) for half in halves],
    )


def attend_to_ragged_graphs() -> Pair:
    """Attention forward and backward, beside PyTorch's on padded graphs."""
    import attention

    sizes = torch.randint(8, 60, (64,), generator=torch.Generator().manual_seed(0)).sort().values.tolist()
    graph: GraphBatch = attention.make_batch(sizes)
    tensors = attention.make_inputs(graph)
    ours, padded = attention.VARIANTS["mnagt"], attention.VARIANTS["padded"]
    return Pair(
        lambda: attention.step(ours, graph, *tensors),
        lambda: attention.step(padded, graph, *tensors),
    )


def train_beside(peer: str) -> Callable[[], Pair]:
    """An epoch of the default model in four layers on MUTAG, beside a peer's of ``benchmarks/peers.py``."""

    def make() -> Pair:
        import epoch

        mutag = load_dataset("MUTAG")
        mutag = replace(mutag, edge_labels=None, label_counts={"node_labels": mutag.label_counts["node_labels"]})
        dataset, split = epoch.draw_batches(mutag, 62, None)  # peers read no edges
        contest = epoch.Contest(dataset, split, TrainConfig(epochs=999, batch_size=62, checkpoint_seconds=1e9), "cpu")
        return Pair(contest.variant("mnagt").epoch, contest.variant(peer).epoch)

    return make


def walk() -> Pair:
    """Random walks of all graphs, beside PyTorch Geometric's transform."""
    from torch_geometric.transforms import AddRandomWalkPE

    dataset, transform = load_dataset("MUTAG"), AddRandomWalkPE(16)
    graphs: Any = to_pyg(dataset.batch(torch.arange(len(dataset))))
    listed = graphs.to_data_list()
    return Pair(
        lambda: with_encodings(replace(dataset), {"random-walk": 16}),  # a new one has nothing worked out
        lambda: [transform(graph.clone()) for graph in listed],
    )


PAIRS: dict[str, Callable[[], Pair]] = {
    "SMILES to graphs / PyG from_smiles": read_molecules,
    "SMILES to outputs of a GIN / RDKit parsing": screen_molecules,
    "batches / PyG Batch": make_batches,
    "attention / padded": attend_to_ragged_graphs,
    "training epoch / padded twin": train_beside("padded"),
    "training epoch / GPSConv": train_beside("gps"),
    "random walks / PyG AddRandomWalkPE": walk,
}


def measure(pairs: Mapping[str, Callable[[], Pair]], rounds: int, clock: str = "processor") -> dict[str, float]:
    """For each pair, the time of ours over the peer's, each in its fastest round."""
    found = {}
    for name, make in pairs.items():
        seconds = common.take_turns(make()._asdict(), rounds, warm_up=2, clock=common.CLOCKS[clock])
        found[name] = min(seconds["ours"]) / min(seconds["peer"])
    return found


def expect(repeats: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """The ratio to expect of each pair and its band, from several measurements."""
    expected = {}
    for name in repeats[0]:
        ratios = [found[name] for found in repeats]
        ratio = statistics.median(ratios)
        deviation = 1.4826 * statistics.median(abs(each - ratio) for each in ratios)
        expected[name] = {"ratio": ratio, "band": max(SMALLEST_BAND, 4 * deviation / ratio)}
    return expected


def find_slower(found: Mapping[str, float], expected: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """How much slower the pairs are that are beyond their bands, as a share of what was expected."""
    changes = {name: ratio / expected[name]["ratio"] - 1 for name, ratio in found.items()}
    return {name: change for name, change in changes.items() if change > expected[name]["band"]}


def check(
    pairs: Mapping[str, Callable[[], Pair]], expected: Mapping[str, Mapping[str, float]], rounds: int, clock: str
) -> dict[str, float]:
    """The pairs that got slower, with how much, after a table of all."""
    found = measure(pairs, rounds, clock)
    for _ in range(AGAIN):
        if not (suspects := find_slower(found, expected)):
            break
        again = measure({name: pairs[name] for name in suspects}, rounds, clock)
        found |= {name: min(ratio, found[name]) for name, ratio in again.items()}
    slower = find_slower(found, expected)
    print(f"{'ours / peer':46}{'expected':>9}{'now':>9}{'change':>9}{'band':>8}")
    for name, ratio in found.items():
        each = expected[name]
        change = ratio / each["ratio"] - 1
        word = "SLOWER" if name in slower else "faster: --update keeps it" if change < -each["band"] else ""
        print(f"{name:46}{each['ratio']:9.3f}{ratio:9.3f}{change:+9.1%}{each['band']:8.1%} {word}".rstrip())
    return slower


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clock", choices=common.CLOCKS, default="processor")
    parser.add_argument("--expected", type=Path, default=EXPECTED, help="ratios and bands")
    parser.add_argument("--update", action="store_true", help="store what is measured now")
    parser.add_argument("--repeats", type=int, default=5, help="measurements from which --update takes the bands")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", ".*torch.jit.script.*", DeprecationWarning)
    torch.set_num_threads(1)
    if options.update:
        expected = expect([measure(PAIRS, options.rounds, options.clock) for _ in range(options.repeats)])
        for name, each in expected.items():
            print(f"{name:46}{each['ratio']:9.3f}{each['band']:8.1%}")
        common.write(options.expected, {"pairs": expected})
        return
    expected = read_json(options.expected)["pairs"]
    if missing := PAIRS.keys() - expected.keys():
        sys.exit(f"{options.expected} lacks {', '.join(sorted(missing))}; store them with --update")
    slower = check(PAIRS, expected, options.rounds, options.clock)
    if options.out:
        common.write(options.out, {"slower": slower})
    common.exit_if_missed([f"{name} is {change:.0%} slower" for name, change in slower.items()])


if __name__ == "__main__":
    main()
