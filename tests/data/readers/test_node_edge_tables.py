"""Tables of graphs, nodes and edges; what is wrong with one is told with its line."""

from pathlib import Path

import pytest
import torch

from mnagt import load_dataset
from mnagt.data.readers.node_edge_tables import read_node_edge_tables
from mnagt.errors import InputError
from mnagt.tasks import SingleLabel

TABLES = {
    "graphs": "graph,y,family\ng2,no,a\ng1,yes,a\ng3,no,b\n",
    "nodes": "graph,node,element,charge\ng1,10,C,0.5\ng2,7,N,1\ng1,20,O,2\ng3,1,,-1\ng1,30,C,0\n",
    "edges": "graph,source,target,bond\ng1,10,20,2\ng1,30,20,1\n",
}


@pytest.fixture
def written(tmp_path):
    """Writes the tables, some of them changed."""

    def write(**changed: str) -> Path:
        for name, text in (TABLES | changed).items():
            (tmp_path / f"{name}.csv").write_text(text)
        return tmp_path

    return write


def check(dataset) -> None:
    assert dataset.task == SingleLabel(("no", "yes"))
    assert dataset.targets.tolist() == [0, 1, 0]
    assert dataset.groups.tolist() == [0, 0, 1]
    assert dataset.sizes.tolist() == [1, 3, 1]
    assert dataset.columns == {"node_labels": ("element",), "node_values": ("charge",), "edge_labels": ("bond",)}
    assert dataset.node_labels[:, 0].tolist() == [1, 0, 2, 0, -1]
    assert dataset.node_values[:, 0].tolist() == [1, 0.5, 2, 0, -1]
    batch = dataset.batch(torch.tensor([1]))
    assert batch.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    assert batch.edge_labels[:, 0].tolist() == [1, 1, 0, 0]


def test_rows_in_any_order_make_the_graphs(written):
    check(load_dataset(written(), targets=["y"], group="family"))
    assert read_node_edge_tables(written()).ids == ["g2", "g1", "g3"]


def test_parquet_reads_as_csv_does(tmp_path, written):
    csv = pytest.importorskip("pyarrow.csv")
    parquet = pytest.importorskip("pyarrow.parquet")
    options = csv.ConvertOptions(strings_can_be_null=True)
    for name in TABLES:
        source = written() / f"{name}.csv"
        parquet.write_table(csv.read_csv(source, convert_options=options), tmp_path / f"{name}.parquet")
        source.unlink()
    for name in TABLES:
        (tmp_path / f"{name}.csv").unlink(missing_ok=True)
    check(load_dataset(tmp_path, targets=["y"], group="family"))
    (tmp_path / "nodes.parquet").write_bytes(b"PAR1")
    with pytest.raises(InputError, match=r"nodes\.parquet: not a readable Parquet file"):
        load_dataset(tmp_path)


def test_without_ids_nodes_are_called_by_their_place(written):
    folder = written(
        nodes="graph,w\n1,0.5\n2,0.5\n1,1.5\n", graphs="graph\n1\n2\n", edges="graph,source,target\n1,0,1\n"
    )
    assert load_dataset(folder).batch(torch.tensor([0])).edge_index.T.tolist() == [[1, 0], [0, 1]]


REFUSED = {
    "no graph column": ({"nodes": "node\n1\n"}, r"nodes\.csv: no column 'graph'; there are: node"),
    "no source": ({"edges": "graph,target\ng1,10\n"}, r"edges\.csv: no column 'source'"),
    "unknown graph": ({"nodes": TABLES["nodes"] + "g9,1,C,1\n"}, r"nodes\.csv, line 7, column 'graph': 'g9' is not in"),
    "empty id": ({"nodes": TABLES["nodes"] + ",1,C,1\n"}, r"nodes\.csv, line 7, column 'graph': the field is empty"),
    "graph twice": (
        {"graphs": TABLES["graphs"] + "g1,no,a\n"},
        r"graphs\.csv, line 5, column 'graph': 'g1' is there twice",
    ),
    "no nodes": (
        {"graphs": TABLES["graphs"] + "g4,no,a\n"},
        r"graphs\.csv, line 5, column 'graph': the graph has no nodes",
    ),
    "node twice": (
        {"nodes": TABLES["nodes"] + "g1,10,C,1\n"},
        r"nodes\.csv, line 7, column 'node': node '10' is there twice",
    ),
    "no such node": ({"edges": TABLES["edges"] + "g2,7,10,1\n"}, r"edges\.csv, line 4, column 'target': no node 10"),
    "no number": ({"nodes": TABLES["nodes"] + "g1,5,C,\n"}, r"nodes\.csv, line 7, column 'charge': expected a finite"),
    "mixed": (
        {"nodes": TABLES["nodes"] + "g1,5,C,x\n"},
        r"nodes\.csv, line 7, column 'charge': 'x' is a text, and others",
    ),
    "ragged": ({"edges": TABLES["edges"] + "g2\n"}, r"edges\.csv, line 4: 1 fields"),
    "target": ({"graphs": "graph,y\ng1,0.5\ng2,x\ng3,1\n"}, r"graphs\.csv, line 3, 'y': 'x' is not a number"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_tables_are_refused_by_line_and_column(written, case):
    changed, told = REFUSED[case]
    with pytest.raises(InputError, match=told):
        load_dataset(written(**changed), targets=["y"])


def test_one_table_of_each_kind(written):
    folder = written()
    (folder / "nodes.tsv").write_text("graph\n")
    with pytest.raises(InputError, match=r"nodes\.csv and nodes\.tsv are both there"):
        load_dataset(folder)
