"""The page and its pictures, from evidence made by hand: nothing is trained here."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from experiments.markup import Elements, numbers

from mnagt.experiments.crossval import CrossValidation, Fold
from mnagt.experiments.quickstart import PUBLISHED, Evidence, Molecule
from mnagt.experiments.quickstart_report import kernel_name, page, verdict, write_report
from mnagt.experiments.structures import layout, pie, smallest_ring, structure
from mnagt.experiments.svg import Axis, Markup, element, ramp

BENZENE = [(i, (i + 1) % 6) for i in range(6)]
NAPHTHALENE = [*BENZENE, (0, 6), (6, 7), (7, 8), (8, 9), (9, 1)]


def cross_validation(model: str, accuracies: list[float], epochs: int = 7, *, is_flat: bool = False) -> CrossValidation:
    folds = tuple(
        Fold(
            accuracy,
            epoch=1,
            history=[
                {"epoch": e + 1, "loss": 0.5 if is_flat else 1 / (1 + e + i), "valid_accuracy": accuracy}
                for e in range(epochs)
            ],
            predicted=[0, 1, 1, 0, 1],
            actual=[0, 1, 1, 1, 1],
        )
        for i, accuracy in enumerate(accuracies)
    )
    return CrossValidation(model, parameters=12_345, folds=folds, seconds=11.0)


def molecule(atoms: list[str], bonds: list[tuple[int, int, str]], layers: int = 2, kernels: int = 3) -> Molecule:
    drawn = np.random.default_rng(0).dirichlet(np.ones(kernels), (layers, len(atoms)))
    return Molecule(5, atoms, bonds, "mutagenic", "not mutagenic", 0.93, drawn.tolist())


KINDS = ("single", "double", "triple", "aromatic", "unheard of")
CHAIN = molecule(["C", "N", "O", "Cl", "C", "F"], [(i, i + 1, kind) for i, kind in enumerate(KINDS)])
EVIDENCE = Evidence(
    "MUTAG",
    188,
    ("not mutagenic", "mutagenic"),
    (cross_validation("mnagt", [0.9, 0.8, 0.97]), cross_validation("gin", [0.81, 0.83, 0.87])),
    [CHAIN],
    seconds=131.0,
    device="cpu",
)


# --- the page ---


def test_the_page_is_one_whole_file(tmp_path: Path):
    write_report(tmp_path / "new" / "report.html", EVIDENCE)
    written = (tmp_path / "new" / "report.html").read_text(encoding="utf-8")
    assert written == page(EVIDENCE)
    assert written.startswith("<!doctype html>")
    Elements(written)


def test_it_holds_the_figure_of_each_model():
    said = Elements(page(EVIDENCE)).text
    for model in EVIDENCE.models:
        assert f"{100 * model.mean:.1f} ± {100 * model.deviation:.1f} %" in said
    for name, score, _ in PUBLISHED:
        assert f"{name}, published{score:.1f}" in said
    assert "80.0 %" in said, "4 of 5 graphs are of the larger class"


def test_nothing_comes_from_outside():
    written = page(EVIDENCE)
    assert "http" not in written.replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"@import|url\(|<script|<link|<img|<iframe|\bsrc=|\bhref=", written)


def test_names_are_text_not_markup():
    nasty = ('<b>"bold"</b>', "</svg><script>alert(1)</script>")
    odd = replace(CHAIN, atoms=["<i>", "&", "C", "C", "C", "C"], actual=nasty[0], predicted=nasty[1])
    evidence = replace(EVIDENCE, class_names=nasty, molecules=[odd], device="<cpu>", dataset="<u>")
    elements, ordinary = Elements(page(evidence)), Elements(page(EVIDENCE))
    assert {tag for tag, _ in elements.found} == {tag for tag, _ in ordinary.found}
    assert len(elements.all("b")) == len(ordinary.all("b"))
    assert nasty[0] in elements.text
    assert "<cpu>" in elements.text


def test_pictures_say_what_they_show():
    pictures = Elements(page(EVIDENCE)).all("svg")
    assert all(picture.get("aria-label") or picture.get("aria-hidden") == "true" for picture in pictures)
    assert sum("aria-label" in picture for picture in pictures) > 7


def test_confusion_counts_are_summed_over_folds():
    written = page(EVIDENCE)
    assert "9 mutagenic predicted as mutagenic: 75.0 %" in written
    assert "3 mutagenic predicted as not mutagenic: 25.0 %" in written
    assert "mnagt: 12 of 15 right" in written


def test_every_layer_is_there_and_the_last_is_chosen():
    elements = Elements(page(EVIDENCE))
    assert [choice["id"] for choice in elements.all("input")] == ["layer-0", "layer-1"]
    assert ["checked" in choice for choice in elements.all("input")] == [False, True]
    for i in range(2):
        assert len(elements.all("g", **{"class": f"layer layer-{i}"})) == 1


@pytest.mark.parametrize("kernels", [1, 2, 3, 5])
def test_any_number_of_kernels_has_colours_and_names(kernels):
    written = page(replace(EVIDENCE, molecules=[molecule(["C", "O"], [(0, 1, "double")], kernels=kernels)]))
    assert len(set(ramp(kernels))) == kernels
    for k in range(kernels):
        assert kernel_name(k) in written


def test_equal_histories_need_no_room():
    flat = cross_validation("mnagt", [1.0, 1.0, 1.0], is_flat=True)
    written = page(replace(EVIDENCE, models=(flat, replace(flat, model="gin"))))
    assert np.isfinite(numbers(written)).all()
    assert "reach the same mean accuracy" in written


@pytest.mark.parametrize("epochs", [0, 1, 2, 61])
def test_any_number_of_epochs_is_drawn(epochs):
    models = tuple(cross_validation(name, [0.5, 0.7, 0.9], epochs) for name in ("mnagt", "gin"))
    written = page(replace(EVIDENCE, models=models))
    Elements(written)
    assert np.isfinite(numbers(written)).all()


def test_it_does_without_molecules_weights_or_rivals():
    for evidence in (
        replace(EVIDENCE, molecules=[]),
        replace(EVIDENCE, molecules=[replace(CHAIN, weights=[])]),
        replace(EVIDENCE, models=EVIDENCE.models[:1]),
    ):
        assert evidence.models[0].model in page(evidence)
        Elements(page(evidence))


@pytest.mark.parametrize(
    ("ours", "other", "says"),
    [
        ([0.8, 0.9, 0.7], [0.8, 0.9, 0.7], "reach the same"),
        ([0.8, 0.9, 0.7], [0.9, 0.8, 0.69], "mnagt is higher than gin, by 0.3 points"),
        ([0.8, 0.9, 0.7], [0.9, 0.8, 0.69], "well within noise"),
        ([0.8, 0.9, 0.7], [0.83, 0.92, 0.78], "gin is higher than mnagt, by 4.3 points"),
        ([0.8, 0.9, 0.7], [0.83, 0.92, 0.78], "does not show one"),
        ([0.80, 0.90, 0.70], [0.71, 0.80, 0.61], "more than noise"),
        ([0.75, 1.0, 0.5], [0.5, 0.75, 0.25], "more than noise"),
    ],
)
def test_the_verdict_follows_the_numbers(ours, other, says):
    assert says in verdict(cross_validation("mnagt", ours), cross_validation("gin", other))


# --- pictures ---


def test_text_is_escaped_once():
    inner = element("title", "a < b & c")
    assert element("g", inner, "d > e", aria_label='"') == Markup(
        '<g aria-label="&quot;"><title>a &lt; b &amp; c</title>d &gt; e</g>'
    )


@pytest.mark.parametrize("shares", [[1.0], [0.2, 0.3, 0.5], [0.0, 1.0, 0.0], [1 / 7] * 7])
def test_the_slices_of_a_pie_go_round_once(shares):
    arcs = Elements(pie(3, 5, 7, shares, ramp(len(shares)))).all("circle")
    lengths = [float((arc["stroke-dasharray"] or "").split()[0]) for arc in arcs]
    starts = [-float(arc["stroke-dashoffset"] or "") for arc in arcs]
    assert sum(lengths) == pytest.approx(1, abs=1e-3)
    assert starts == pytest.approx(np.cumsum([0.0, *shares[:-1]]), abs=1e-3)


@pytest.mark.parametrize("atoms", [["C"], ["Br"], ["C", "N", "O", "F", "C"]])
def test_atoms_without_bonds_are_drawn_apart(atoms):
    drawn = molecule(atoms, [])
    picture = structure("apart", drawn.atoms, [], drawn.weights, ["a", "b", "c"], ramp(3))
    assert len(Elements(picture).all("g", **{"class": "pie"})) == 2 * len(atoms)
    assert np.isfinite(numbers(picture)).all()
    places = layout(len(atoms), [])
    apart = np.hypot(*(places[:, None] - places[None]).T) + np.eye(len(atoms))
    assert apart.min() > 0.7


def test_symbols_are_printed_but_for_carbon():
    symbols = re.findall(r'class="symbol">([^<]*)<', page(EVIDENCE))
    assert symbols == ["N", "O", "Cl", "F"]


@pytest.mark.parametrize(("kind", "lines"), [("single", 1), ("double", 2), ("triple", 3), ("aromatic", 2), ("?", 1)])
def test_a_bond_has_the_lines_of_its_kind(kind, lines):
    picture = Elements(structure("pair", ["C", "C"], [(0, 1, kind)], [], [], []))
    assert len(picture.all("line")) == lines
    assert len(picture.all("line", **{"stroke-dasharray": "3.5 3"})) == (kind == "aromatic")


def test_the_same_molecule_is_laid_out_the_same():
    np.testing.assert_array_equal(layout(10, NAPHTHALENE), layout(10, NAPHTHALENE))


def test_rings_look_like_rings():
    hexagon = layout(6, BENZENE)
    np.testing.assert_allclose(np.hypot(*(hexagon - hexagon.mean(axis=0)).T), 1, atol=0.01)
    fused = layout(10, NAPHTHALENE)
    lengths = [np.hypot(*(fused[i] - fused[j])) for i, j in NAPHTHALENE]
    np.testing.assert_allclose(lengths, 1, atol=0.05)


def test_a_nitro_group_keeps_its_oxygens_apart():
    places = layout(9, [*BENZENE, (0, 6), (6, 7), (6, 8)])
    assert np.hypot(*(places[7] - places[8])) > 1.3


def test_the_smallest_ring_of_a_bond():
    near = [[j for bond in NAPHTHALENE if i in bond for j in bond if j != i] for i in range(10)]
    assert sorted(smallest_ring(2, 3, near)) == [0, 1, 2, 3, 4, 5]
    assert sorted(smallest_ring(7, 8, near)) == [0, 1, 6, 7, 8, 9]
    assert smallest_ring(0, 1, [[1], [0, 2], [1]]) == []


@pytest.mark.parametrize("values", [[], [0.0], [3.0, 3.0], [0.113, 0.987], [-5e3, 7e4], [float("nan"), 1.0]])
def test_an_axis_has_round_ticks_around_its_values(values):
    axis = Axis.over(values, 100, 10)
    ticks = axis.ticks()
    assert 2 <= len(ticks) <= 12
    known = [value for value in values if value == value]
    assert all(axis.low - 1e-9 <= value <= axis.high + 1e-9 for value in known)
    assert all(10 - 1e-6 <= axis(tick) <= 100 + 1e-6 for tick in ticks)
