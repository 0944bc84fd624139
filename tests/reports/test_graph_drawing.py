"""Drawings of graphs hold every node and bond."""

import re
import sys

import numpy as np
import pytest
from markup import Elements, numbers

from mnagt.reports.graph_drawing import DrawnGraph, draw_pies, draw_values
from mnagt.reports.picture import kernel_keys

CHAIN = DrawnGraph(["C", "N", "O", "Cl"], [(0, 1, "single"), (1, 2, "double"), (2, 3, "aromatic")])


@pytest.mark.parametrize("nodes", [["C"], ["Br"], ["C", "N", "O", "F", "C"]])
def test_every_atom_is_a_pie_in_every_layer(nodes):
    shares = np.random.default_rng(0).dirichlet([5, 5, 5], (2, len(nodes))).tolist()
    picture = draw_pies("it", DrawnGraph(nodes, []), shares, kernel_keys(3)).to_svg()
    for layer in range(2):
        assert len(Elements(picture).all("g", **{"class": f"layer layer-{layer}"})) == 1
    assert picture.count("<title>") == 2 * 3 * len(nodes)
    assert np.isfinite(numbers(picture)).all()


def test_a_share_of_nothing_and_a_whole_share_are_drawn():
    picture = draw_pies("it", DrawnGraph(["C"], []), [[[0.0, 1.0, 0.0]]], kernel_keys(3))
    assert picture.to_svg().count("<title>") == 1


def test_symbols_are_printed_but_for_carbon():
    picture = draw_pies("it", CHAIN, [], []).to_svg()
    assert re.findall(r"<text[^>]*>([^<]*)<", picture) == ["N", "O", "Cl"]


@pytest.mark.parametrize(("kind", "lines"), [("single", 1), ("double", 2), ("triple", 3), ("aromatic", 2), ("?", 1)])
def test_a_bond_has_the_lines_of_its_kind(kind, lines):
    picture = draw_pies("pair", DrawnGraph(["C", "C"], [(0, 1, kind)]), [], []).to_svg()
    assert picture.count("stroke-width: 1.8") == lines
    assert picture.count("stroke-dasharray: 3.5,3") == (kind == "aromatic")


def test_a_molecule_is_drawn_by_rdkit_in_colours_of_the_page():
    pytest.importorskip("rdkit")
    graph = DrawnGraph(["C", "C", "O"], [(0, 1, "single"), (1, 2, "single")], "CCO")
    picture = draw_values('a "name"', graph, [0.5, -1.0, 0.0])
    assert Elements(picture).all("svg", **{"class": "molecule", "aria-label": 'a "name"'})
    assert picture.count("<ellipse") == 3
    assert "color-mix(in srgb, var(--series-0) 50%, transparent)" in picture
    assert "fill:var(--series-1)" in picture
    assert "#000000" not in picture


def test_without_rdkit_or_smiles_nodes_are_discs(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    values = [0.5, -1.0, 0.0, 0.25]
    for smiles in (None, "not a molecule"):
        picture = draw_values("it", DrawnGraph(CHAIN.nodes, CHAIN.bonds, smiles), values)
        tips = re.findall(r"<title>([^<]*)</title>", picture)
        assert tips == ["C (node 0): +0.500", "N (node 1): -1.000", "O (node 2): +0.000", "Cl (node 3): +0.250"]
