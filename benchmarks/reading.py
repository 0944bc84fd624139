"""Reads COLLAB.zip with PyTorch Geometric's TU reader and with ours, each in a process of its own.

``MNAGT_DATA`` names the folder that holds COLLAB.zip. Seconds count from the zip to the tensors, imports excluded;
memory is the peak of the whole process.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import common


def pyg(path: Path) -> Callable[[], int]:
    from torch_geometric.io import read_tu_data

    def read() -> int:
        with tempfile.TemporaryDirectory() as folder:
            with zipfile.ZipFile(path) as archive:
                archive.extractall(folder)
            data, _, _ = read_tu_data(str(Path(folder) / path.stem), path.stem)
        return data.num_edges

    return read


def mnagt(path: Path) -> Callable[[], int]:
    from mnagt.data.readers.tu import read_tu

    return lambda: len(read_tu(path).source)


def mnagt_cached(path: Path) -> Callable[[], int]:
    """The source's hash included; the cache is filled by the first call."""
    import mnagt.data.cache
    import mnagt.data.readers.tu  # noqa: F401
    from mnagt.data.registry import load_dataset

    return lambda: len(load_dataset(path).source)


READERS = {"pyg": pyg, "mnagt": mnagt, "mnagt, filling the cache": mnagt_cached, "mnagt, from the cache": mnagt_cached}


def measure(reader: str, path: Path) -> dict[str, Any]:
    """Seconds, peak memory and edges of one read, in this process."""
    read = READERS[reader](path)
    start = time.perf_counter()
    edges = read()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, "edges": edges}


def measured_apart(reader: str, path: Path, cache: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--only", reader, "--path", str(path)]
    done = subprocess.run(command, env=os.environ | {"MNAGT_CACHE": cache}, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{reader} failed:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("--path", type=Path, help="the zip to read; COLLAB.zip in MNAGT_DATA unless given")
    parser.add_argument("--only", choices=READERS, help="read once, here, and print JSON")
    options = parser.parse_args()
    path = options.path or common.data_file("COLLAB.zip")
    if not path.exists():
        parser.error(f"{path} is not there")
    if options.only:
        print(json.dumps(measure(options.only, path)))
        return

    with tempfile.TemporaryDirectory() as cache:
        rows = {reader: measured_apart(reader, path, cache) for reader in READERS}
    print(f"{'reader':26}{'seconds':>9}{'peak GiB':>10}{'edges':>12}{'pyg / it':>10}")
    for reader, row in rows.items():
        row["speed_up"] = rows["pyg"]["seconds"] / row["seconds"]
        print(f"{reader:26}{row['seconds']:9.2f}{row['peak_gib']:10.2f}{row['edges']:12,}{row['speed_up']:9.1f}x")
    common.write(options.out, {"data": path.name, "readers": rows})


if __name__ == "__main__":
    main()
