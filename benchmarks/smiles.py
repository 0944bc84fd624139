"""SMILES of molhiv to graphs: ours in one process and in one a core, beside PyTorch Geometric's ``from_smiles``.

``MNAGT_DATA`` names the folder that holds ogbg_molhiv. Seconds count from the list of SMILES to the graphs, the start
of the processes included; those of ours are packed, sorted and ready for batches. The variants take turns. All of
molhiv is then read once more, by one process a core. One process of ours and ``from_smiles`` are also compared by the
processor's time, which what else the machine does changes less; on a busy machine ``--processor`` measures that alone.
"""

import os
import time
import warnings
from collections.abc import Callable, Mapping

import common

from mnagt.data.readers.smiles import read_smiles
from mnagt.data.readers.text_table import read_table

TARGET = 5000
"""Molecules a second, with one process a core."""
PER_PROCESS = 3.0
"""Times as many as ``from_smiles``, of a second of processor time."""
SAMPLE = 8000
ROUNDS = 3


def from_smiles(smiles: list[str]) -> list[object]:
    from rdkit.rdBase import BlockLogs
    from torch_geometric.utils import from_smiles

    with BlockLogs():
        return [from_smiles(text) for text in smiles]


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--processor", action="store_true", help="only what is measured in processor time")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", ".*torch.jit.script.*", DeprecationWarning)
    table = read_table(common.data_file("ogbg_molhiv/mapping/mol.csv.gz"))
    smiles = table.column(table.find_smiles_column())
    some, cores = smiles[:: len(smiles) // SAMPLE][:SAMPLE], os.cpu_count() or 1
    variants = {
        "pyg from_smiles": lambda: from_smiles(some),
        "mnagt, 1 process": lambda: read_smiles(some, workers=1),
        f"mnagt, {cores} processes": lambda: read_smiles(some, workers=cores),
    }
    one_process = {name: variants[name] for name in ("pyg from_smiles", "mnagt, 1 process")}
    taken = common.medians(one_process, ROUNDS, warm_up=1, clock=time.process_time)
    rows = {name: {"per_processor_second": SAMPLE / taken[name]} for name in one_process}
    pyg, ours = (rows[name]["per_processor_second"] for name in one_process)
    print(f"by processor time, one process: {ours:,.0f} a second for {pyg:,.0f}, {ours / pyg:.2f}x")
    missed = [f"{ours / pyg:.2f}x from_smiles a process, {PER_PROCESS:g}x wanted"] if ours < PER_PROCESS * pyg else []
    if not options.processor:
        missed += time_by_the_clock(variants, smiles, cores, rows)
    common.write(options.out, {"data": "ogbg_molhiv", "sample": SAMPLE, "readers": rows})
    common.exit_if_missed(missed)


def time_by_the_clock(
    variants: Mapping[str, Callable[[], object]], smiles: list[str], cores: int, rows: dict[str, dict[str, float]]
) -> list[str]:
    """Adds molecules a second to ``rows``; a line for each target that is missed."""
    for name, taken in common.medians(variants, ROUNDS, warm_up=0).items():
        rows.setdefault(name, {})["per_second"] = SAMPLE / taken
    start = time.perf_counter()
    found = read_smiles(smiles, workers=cores)
    taken = time.perf_counter() - start
    rows["mnagt, all of molhiv"] = {"per_second": len(smiles) / taken, "seconds": taken, "refused": len(found.refused)}
    for name, row in rows.items():
        speed_up = row["per_second"] / rows["pyg from_smiles"]["per_second"]
        print(f"{name:24}{row['per_second']:9,.0f} molecules/s{speed_up:7.1f}x")
    print(f"all of molhiv: {taken:.1f} s, {len(found.refused)} of {len(smiles):,} refused by RDKit")
    best = rows[f"mnagt, {cores} processes"]["per_second"]
    return [f"{best:,.0f} molecules/s, {TARGET:,} wanted"] if best < TARGET else []


if __name__ == "__main__":
    main()
