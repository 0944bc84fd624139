"""Random walks and spectra of all graphs of peptides-func, as a training computes them: in threads, some at a time.

``MNAGT_DATA`` names the folder that holds peptides_func. The cache folder is a new one. Seconds by the
wall clock, and of the processor in all threads together: where other programs run, only the second says something.
"""

import os
import tempfile
import time

import common
import torch

from mnagt import load_dataset
from mnagt.data.encodings import with_encodings

SIZES = {"random-walk": 16, "adjacency-spectrum": 24}
TARGET = 60
"""Seconds of processor time of each thread, for both."""


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--every", type=int, default=1, help="of so many graphs one (default: all)")
    options = parser.parse_args()
    dataset = load_dataset("peptides-func")
    dataset = dataset.select(torch.arange(0, len(dataset), options.every))
    rows = {}
    for name, size in SIZES.items():
        wall, processor = time.perf_counter(), time.process_time()
        with tempfile.TemporaryDirectory() as cache:
            os.environ["MNAGT_CACHE"] = cache
            with_encodings(dataset, {name: size})
        rows[name] = {
            "size": size,
            "seconds": time.perf_counter() - wall,
            "processor_seconds": time.process_time() - processor,
        }
        print(f"{name:20}{rows[name]['seconds']:7.1f} s{rows[name]['processor_seconds']:7.1f} s of processor")
    threads = torch.get_num_threads()
    common.write(options.out, {"data": "peptides-func", "graphs": len(dataset), "threads": threads, "encodings": rows})
    each = sum(row["processor_seconds"] for row in rows.values()) / threads
    common.exit_if_missed([f"{each:.0f} s of each thread for both, {TARGET} wanted"] if each > TARGET else [])


if __name__ == "__main__":
    main()
