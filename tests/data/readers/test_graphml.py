"""GraphML as networkx and editors write it; what is wrong with a file is told with its line."""

import gzip
import time
from pathlib import Path

import networkx as nx
import pytest
import torch

from mnagt import load_dataset
from mnagt.data.readers.graphml import read_graphml
from mnagt.errors import InputError
from mnagt.tasks import Regression, SingleLabel, Unlabelled

EDITORS = """<?xml version="1.0" encoding="UTF-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
  <key for="node" id="d0" yfiles.type="nodegraphics"/>
  <key for="node" id="d1" attr.name="kind" attr.type="string"><default>plain</default></key>
  <key for="all" id="d2" attr.name="weight" attr.type="double"><default>1.5</default></key>
  <key for="graph" id="d3" attr.name="y" attr.type="boolean"/>
  <graph edgedefault="directed">
    <data key="d3">true</data>
    <edge source="a" target="b"><data key="d2">3</data></edge>
    <node id="a"><data key="d0"><y:ShapeNode><y:Geometry height="30"/></y:ShapeNode></data></node>
    <node id="b"><data key="d1"> odd </data></node>
    <edge source="b" target="c" directed="false"/>
    <node id="c"/>
  </graph>
  <graph edgedefault="undirected"><data key="d3">0</data><node id="a"/></graph>
</graphml>
"""


@pytest.fixture
def written(tmp_path):
    """Writes a file."""

    def write(text: str, name: str = "mine.graphml") -> Path:
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


def test_a_folder_that_networkx_wrote(tmp_path):
    for number, graph in enumerate([nx.path_graph(3), nx.cycle_graph(5), nx.star_graph(2)]):
        graph.graph["y"] = number / 2
        nx.set_node_attributes(graph, {node: "xyz"[node % 3] for node in graph}, "kind")
        nx.set_edge_attributes(graph, {edge: float(sum(edge)) for edge in graph.edges}, "length")
        nx.write_graphml(graph, tmp_path / f"{number}.graphml{'.gz' if number == 1 else ''}")
    assert read_graphml(tmp_path).ids == ["0.graphml", "1.graphml.gz", "2.graphml"]
    dataset = load_dataset(tmp_path)
    assert dataset.task == Regression(("y",))
    assert dataset.sizes.tolist() == [3, 5, 3]
    assert dataset.columns == {"node_labels": ("kind",), "edge_values": ("length",)}
    batch = dataset.batch(torch.tensor([0]))
    assert batch.edge_index.T.tolist() == [[1, 0], [0, 1], [2, 1], [1, 2]]
    assert batch.edge_values is not None
    assert batch.edge_values[:, 0].tolist() == [1, 1, 3, 3]


def test_defaults_drawings_directions_and_several_graphs_in_a_file(written):
    dataset = load_dataset(written(EDITORS, "mine.graphml.gz"))
    assert dataset.task == SingleLabel(("false", "true"))
    assert dataset.targets.tolist() == [1, 0]
    batch = dataset.batch(torch.tensor([0]))
    assert batch.edge_index.T.tolist() == [[0, 1], [2, 1], [1, 2]]
    assert batch.node_labels is not None
    assert batch.edge_values is not None
    assert dataset.vocabularies["node_labels/0"] == ("odd", "plain")
    assert batch.node_labels[:, 0].tolist() == [1, 0, 1]
    assert batch.edge_values[:, 0].tolist() == [3, 1.5, 1.5]


def within(text: str) -> str:
    return f'<graphml>\n<key id="k" attr.name="n" attr.type="int"/>\n<graph>\n{text}\n</graph></graphml>'


REFUSED = {
    "not XML": ("<graphml>\n<graph>", "line 2: not XML"),
    "encoding": ('<?xml version="1.0" encoding="utf-99"?><graphml/>', "line 1: unknown encoding: utf-99; save"),
    "HTML": ("<html/>", "line 1: <html> without a <graph> in it"),
    "no graph": ("<graphml/>", "line 1: <graphml> without a <graph>"),
    "entities": (
        '<!DOCTYPE g [<!ENTITY a "x">]>\n<graphml/>',
        r"mine\.graphml, line 1: a document type is not read; remove <!DOCTYPE \.\.\.>$",
    ),
    "no nodes": (within(""), "line 3: a graph without nodes"),
    "twice": (within('<node id="a"/>\n<node id="a"/>'), "line 5: node 'a' is there twice"),
    "an end": (within('<node id="a"/>\n<edge source="a" target="b"/>'), "line 5: no node 'b' in its graph"),
    "a type": (within('<node id="a">\n<data key="k">1.5</data></node>'), "line 5, 'n': '1.5' is not of type int"),
    "a key": (within('<node id="a"><data key="q">1</data></node>'), "line 4: no <key> declares 'q'"),
    "nested": (within('<node id="a"><graph/></node>'), "line 4: a graph within a node"),
    "hyper": (within('<node id="a"/>\n<hyperedge/>'), "line 5: a hyperedge"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_files_are_refused_by_line(written, case):
    text, told = REFUSED[case]
    path = written(text)
    with pytest.raises(InputError, match=told) as error:
        load_dataset(path)
    assert str(error.value).startswith(str(path))


def test_a_number_that_is_missing_is_told_with_its_file(tmp_path):
    for number, attributes in enumerate([{0: 1.5, 1: 2.0}, {0: 2.5}]):
        graph = nx.path_graph(2)
        nx.set_node_attributes(graph, attributes, "w")
        nx.write_graphml(graph, tmp_path / f"{number}.graphml")
    with pytest.raises(InputError, match=r"1\.graphml, line \d+, 'w': expected a finite number, got nothing"):
        load_dataset(tmp_path)


@pytest.mark.parametrize("what", ["node", "edge", "graph"])
def test_defaults_of_many_keys_are_refused_before_they_fill_a_table(written, what):
    """A file of 250 kB that would become a table of ten million cells."""
    keys = "".join(
        f'<key id="k{i}" for="{what}" attr.name="a{i}" attr.type="string"><default>x</default></key>'
        for i in range(2000)
    )
    node, edge = '<node id="{i}"/>', '<edge source="0" target="0"/>'
    if what == "graph":
        graphs = '<graph edgedefault="undirected"><node id="0"/></graph>' * 5000
    else:
        nodes = "".join(node.format(i=i) for i in range(5000 if what == "node" else 1))
        graphs = f'<graph edgedefault="undirected">{nodes}{edge * (5000 if what == "edge" else 0)}</graph>'
    start = time.process_time()
    with pytest.raises(InputError, match=f"{what}s and 2,000 columns so far, nearly all empty"):
        read_graphml(written(f"<graphml>{keys}{graphs}</graphml>")).pack(task=Unlabelled())
    assert time.process_time() - start < 3
