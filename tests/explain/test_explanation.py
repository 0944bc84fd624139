"""Explanations: they are the model's own, they add up, and they find what matters."""

import gzip
import math
import re
import shutil
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch
from markup import Elements, is_self_contained

from mnagt import from_graphs, from_networkx
from mnagt.cli import main
from mnagt.data.readers.code import read_functions
from mnagt.data.readers.code_trees import NONE, encode_functions
from mnagt.data.readers.smiles import FEATURES, read_smiles
from mnagt.data.registry import load_dataset
from mnagt.errors import InputError
from mnagt.explain import (
    ExplainConfig,
    Explanation,
    attribution,
    check_by_deletion,
    compute_kernel_statistics,
    explain,
    explain_to,
)
from mnagt.explain.attribution import Attribution, DeletionCurve, deletion_curve, integrated_gradients, occlusion
from mnagt.graphs import molecules
from mnagt.graphs.features import Features
from mnagt.inference.calibration import LEVELS, Calibration
from mnagt.inference.model_folder import TrainedModel, load_model
from mnagt.inference.predict import predict
from mnagt.inference.random_forest import RandomForest
from mnagt.models.registry import build_model
from mnagt.nn.layer import Layer
from mnagt.runs.config import RunConfig, SplitConfig, TrainConfig
from mnagt.tasks import UNKNOWN, MultiLabel, Regression, SingleLabel, SubTokens, Task
from mnagt.training.fit_trees import Tree, set_trees
from mnagt.training.run import train

SMALL = {"dim": 16, "depth": 2, "head_dim": 8, "wl_vocabulary_size": 256}
CHROMIUM = shutil.which("chromium")
MUTAG = load_dataset("MUTAG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "mutag"
    config = RunConfig(
        "MUTAG",
        settings=SMALL,
        train=TrainConfig(epochs=12, batch_size=32, lr=3e-3, seed=3),
        split=SplitConfig("stratified"),
        device="cpu",
    )
    train(config, out)
    return out


@pytest.fixture(scope="module")
def trained(folder: Path) -> TrainedModel:
    return load_model(folder)


@pytest.fixture(scope="module")
def explained(trained: TrainedModel) -> list[Explanation]:
    return explain(trained, MUTAG, torch.arange(0, 188, 12))


def untrained(name: str, task: Task, features: Features = MUTAG.features, **settings) -> TrainedModel:
    torch.manual_seed(11)
    model = build_model(name, settings, features, task.num_outputs).eval()
    for module in model.modules():  # as training would have left them
        if hasattr(module, "running_var"):
            torch.nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
    return TrainedModel(model, task, name, settings, vocabularies=MUTAG.vocabularies)


def test_weights_of_kernels_are_the_models_own_and_add_up(trained, explained):
    for each in explained[:3]:
        graph = MUTAG.batch(torch.tensor([each.index]))
        own = trained.model.kernel_weights(graph)
        assert len(own) == len(each.kernel_weights) == 2
        for layer, told in zip(own, each.kernel_weights, strict=True):
            torch.testing.assert_close(told, layer)
            torch.testing.assert_close(told.sum(dim=1), torch.ones(graph.num_nodes))


@pytest.mark.parametrize("name", ["mnagt", "mnagt-paper", "transformer", "grover"])
def test_attention_told_is_attention_paid(name):
    model, graph = untrained(name, MUTAG.task).model, MUTAG.batch(torch.tensor([5, 0, 7]))
    with torch.inference_mode():
        x, inner = model.encode(graph)
        layer = model.layers[0]
        assert isinstance(layer, Layer)
        hops, attention = layer.hops(x, inner), layer.attention
        value = attention.to_value([kernel(hops).value for kernel in attention.kernels])
        value = value.unflatten(2, (attention.heads, attention.head_dim)).split(graph.sizes.tolist())
        told = model.attention_weights(graph)[0]
        z = [torch.einsum("khij,jkhd->ikhd", weight, v) for weight, v in zip(told, value, strict=True)]
        torch.testing.assert_close(attention.to_out.each(torch.cat(z).flatten(2)), attention(hops))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("mnagt", SMALL),
        ("mnagt", {**SMALL, "readout": "virtual-node", "wl_iterations": 0}),
        ("mnagt-paper", {}),
        ("gin", {}),
        ("graphtrans", {}),
        ("sagpool", {}),
    ],
    ids=str,
)
def test_attributions_add_up_to_the_answer(name, settings):
    model = untrained(name, MUTAG.task, **settings)
    for each in explain(model, MUTAG, torch.tensor([3, 14])):
        found = each.attribution
        answer = each.output.score(model.outputs(MUTAG, torch.tensor([each.index]))).item()
        assert found.output == pytest.approx(answer, rel=1e-5, abs=1e-6)
        assert abs(found.gap) <= 0.02 * max(1, abs(found.output - found.baseline))
        assert len(found.nodes) == each.graph.num_nodes
        assert found.nodes.abs().max() > 0


def test_a_trained_models_attributions_add_up(explained):
    gaps = [each.attribution.gap for each in explained]
    rises = [each.attribution.output - each.attribution.baseline for each in explained]
    assert np.abs(gaps).sum() < 0.02 * np.abs(rises).sum()


@pytest.mark.parametrize(
    "task", [MUTAG.task, MultiLabel(("q", "r")), Regression(("n",), (5.0,), (3.0,))], ids=lambda task: task.kind
)
def test_what_is_explained_is_the_prediction_that_is_shown(task):
    """In its units, with the temperature and with the forest."""
    thresholds = ((math.inf,) * LEVELS,) * task.num_thresholds
    model = replace(
        untrained("gin", task, dim=5), calibration=Calibration(2.5 if task.has_probability else 1.0, thresholds, 9)
    )
    for forest in (None, RandomForest(task.num_outputs, trees=3, max_leaves=2)):
        if forest is not None:
            set_trees(forest, [Tree.leaf(0.1 + 0.1 * n) for n in range(len(forest.root))])
        both = replace(model, forest=forest, settings={"forest_weight": 0.4})
        (each,) = explain(both, MUTAG, torch.tensor([3]))
        found = each.attribution
        assert found.baseline + found.nodes.sum().item() + found.gap == pytest.approx(found.output, abs=1e-4)
        shown = [value for value in each.prediction.values() if isinstance(value, float)]
        if each.probability is None:
            assert shown == pytest.approx([found.output], rel=1e-4)
        else:
            assert each.probability == pytest.approx(max(shown), rel=1e-4)
            assert 1 / (1 + math.exp(-found.output)) == pytest.approx(each.probability, rel=1e-4)


def test_captum_finds_the_same(trained):
    captum = pytest.importorskip("captum.attr")
    model, index = trained.model, 17
    say = trained.task.explained_outputs(trained.outputs(MUTAG, torch.tensor([index])))[0].score
    (ours,) = integrated_gradients(model, MUTAG, torch.tensor([index]), [say], steps=64)

    def forward(*brought: torch.Tensor) -> torch.Tensor:
        graph = MUTAG.batch(torch.full((len(brought[0]),), index))
        return say(attribution._outputs(model, [h.flatten(0, 1) for h in brought], graph))

    brought = attribution._node_inputs(model, MUTAG.batch(torch.tensor([index])))
    theirs = captum.IntegratedGradients(forward).attribute(tuple(h.detach()[None] for h in brought), n_steps=600)
    both = torch.stack([each.sum(dim=2)[0] for each in theirs]).sum(dim=0).float()
    torch.testing.assert_close(ours.nodes, both, atol=0.02 * ours.nodes.abs().max().item(), rtol=0.02)


def test_silencing_the_weightiest_nodes_hurts_more_than_chance(trained, explained):
    curve = check_by_deletion(trained, MUTAG, explained)
    assert curve.ordered[0] == pytest.approx(curve.chance[0])
    assert curve.ratio < 0.9
    assert curve.interval is not None
    assert curve.interval[0] < curve.ratio < curve.interval[1] < 1
    assert curve.verdict == "better than chance"
    backwards = [-each.attribution.nodes for each in explained]
    indices = torch.tensor([each.index for each in explained])
    confidences = [each.output.confidence for each in explained]
    wrong = deletion_curve(trained.model, MUTAG, indices, backwards, confidences)
    assert wrong.ratio > 1.05
    assert wrong.verdict == "worse than chance"
    alone = check_by_deletion(trained, MUTAG, explained[:1])
    assert alone.interval is None
    assert alone.interval is None
    assert "takes 5 graphs or more" in alone.verdict


def test_occlusion_is_what_a_graph_without_the_node_lacks(monkeypatch):
    monkeypatch.setattr(attribution, "NODES_AT_ONCE", 40)
    bare = from_graphs([nx.cycle_graph(5), nx.star_graph(6)], ["a", "b"])
    model = untrained("gin", SingleLabel(("a", "b")), bare.features, dim=5).model
    found = occlusion(model, bare, torch.tensor([1]), [lambda out: out[:, 1]])[0]
    whole, *without = (nx.star_graph(6), nx.empty_graph(6), *[nx.star_graph(5)] * 6)  # the centre is node 0
    with torch.inference_mode():
        said = model(from_networkx([whole, *without]))[:, 1]
    torch.testing.assert_close(found, said[0] - said[1:], rtol=1e-4, atol=1e-5)


def test_cutting_out_no_node_leaves_the_answer(trained, explained):
    curve = check_by_deletion(trained, MUTAG, explained, is_cut=True, orders=1)
    left = [each.output.confidence(trained.outputs(MUTAG, torch.tensor([each.index]))).item() for each in explained]
    assert curve.ordered[0] == pytest.approx(np.mean(left), abs=1e-5)


@pytest.mark.parametrize(
    "task",
    [SingleLabel(("a", "b", "c")), MultiLabel(("q", "r")), Regression(("n", "m"), (1.0, 5.0), (2.0, 3.0))],
    ids=lambda task: task.kind,
)
def test_another_answer_can_be_asked_for(task):
    output = torch.tensor([[0.5, 2.0, -1.0], [3.0, 0.0, 0.1]])[:, : task.num_outputs]
    name = task.target_names[1]
    asked = task.explained_outputs(output, name)
    assert [each.name for each in asked] == [name, name]
    assert all(0 < each.confidence(output)[row] <= 1 for row, each in enumerate(asked))
    with pytest.raises(InputError, match=f"'z'; choose one of: .*{name}"):
        task.explained_outputs(output, "z")


def test_what_is_left_of_a_class_is_its_probability_and_log_odds_agree():
    output = torch.randn(7, 3)
    (explained,) = SingleLabel(("a", "b", "c")).explained_outputs(output[:1], "b")
    torch.testing.assert_close(explained.confidence(output), output.softmax(dim=1)[:, 1])
    torch.testing.assert_close(explained.score(output).sigmoid(), output.softmax(dim=1)[:, 1])


def test_kernel_statistics_are_the_mean_over_its_nodes(trained):
    statistics = compute_kernel_statistics(trained, MUTAG, torch.arange(40), batch_size=7)
    assert statistics is not None
    weights = torch.stack(trained.model.kernel_weights(MUTAG.batch(torch.arange(40))), dim=1)
    labels = MUTAG.batch(torch.arange(40)).node_labels
    assert labels is not None
    assert statistics.by_type[0].name == "C"
    is_carbon = labels[:, 0] == labels[:, 0].mode().values
    torch.testing.assert_close(statistics.by_type[0].weights, weights[is_carbon].double().mean(dim=0))
    assert [group.name for group in statistics.by_class] == ["not mutagenic", "mutagenic"]
    assert sum(group.nodes for group in statistics.by_class) == len(labels)
    assert compute_kernel_statistics(untrained("gin", MUTAG.task), MUTAG, torch.arange(3)) is None


def test_the_page_is_whole(folder, tmp_path, capsys):
    out = tmp_path / "page.html"
    assert main(["explain", str(folder), "MUTAG", "--graphs", "0,9,30,35,41", "--out", str(out), "--drawn", "2"]) == 0
    assert re.search(r"area ratio .*: 0\.\d+ \([\d. to]+\) with nodes set to zero", capsys.readouterr().out)
    page = out.read_text()
    found = Elements(page)
    assert is_self_contained(page)
    assert len(found.all("article")) == 2
    assert len(found.all("img", **{"class": "heat"})) == 2 * 2 * 2 * 2  # graphs, layers, kernels, heads
    assert len(re.findall(r"<title>\w+ \(node \d+\): [+-]", page)) == MUTAG.sizes[[0, 9]].sum()
    assert "Over all graphs" in found.text


def test_a_molecule_is_drawn_by_rdkit(tmp_path):
    smiles = ["CC(=O)Oc1ccccc1C(=O)[O-]", "C", "[Na+].[Cl-]"]
    model = replace(untrained("mnagt", MultiLabel(("active",)), FEATURES, **SMALL), vocabularies={})
    model.save(tmp_path / "model")
    table = tmp_path / "some.smi"
    table.write_text("\n".join(f"{each} {name}" for each, name in zip(smiles, ("aspirin", "", "salt"), strict=True)))
    explain_to(tmp_path / "page.html", tmp_path / "model", str(table), ExplainConfig(orders=2))
    page = (tmp_path / "page.html").read_text()
    assert is_self_contained(page)
    assert len(Elements(page).all("svg", **{"class": "molecule"})) == 3
    assert re.findall(r"<h3>(.*?)</h3>", page) == ["aspirin, line 1", "line 2", "salt, line 3"]
    assert re.search("These are too few graphs to compare the colours with chance", " ".join(page.split()))
    assert page.count("<ellipse") >= read_smiles(smiles).graphs.node_ptr[-1]  # a coloured disc behind each atom


REAL = {
    "numbers": ("esol", "Amigdalin", []),
    "ranks": ("esol", "Amigdalin", ["--target-transform", "rank"]),
    "classes, with a forest": ("bbbp", "Propanolol", ["--forest-trees", "5"]),
}
SUM = (
    r"Explained: (?P<name>.*?), (?P<output>-?[\d.]+) in (?P<unit>.*?)\. That is (-?[\d.]+) with all inputs zero, "
    r"([+-][\d.]+) by the colours, and ([+-][\d.]+) by the error"
)


@pytest.mark.real_data
@pytest.mark.parametrize("case", REAL)
def test_on_a_real_table_the_page_adds_up_to_the_calibrated_prediction(case, data_root, tmp_path):
    name, molecule, options = REAL[case]
    with gzip.open(data_root / f"ogbg_mol{name}" / "mapping" / "mol.csv.gz", "rt") as file:
        (tmp_path / "my.csv").write_text("".join(line for line, _ in zip(file, range(161), strict=False)))
    table, run, page = (str(tmp_path / each) for each in ("my.csv", "run", "page.html"))
    words = ["--split", "random", "--dim", "8", "--depth", "1", "--epochs", "2", "--device", "cpu", *options]
    assert main(["train", table, "--out", run, *words]) == 0
    assert main(["calibrate", run, "--device", "cpu"]) == 0
    assert main(["explain", run, table, "--graphs", "0,1,5", "--out", page, "--drawn", "3"]) == 0
    text = " ".join(Elements(Path(page).read_text()).text.split())
    assert "These are too few graphs to compare the colours with chance" in text
    assert ("the forest's part is in the value" in text) == ("--forest-trees" in options)
    found = re.search(SUM, text.partition(f"{molecule}, line 2")[2])
    assert found is not None
    assert sum(map(Decimal, found.groups()[-3:])) == Decimal(found["output"])
    predicted = {key: column[0] for key, column in predict(run, table, graphs=[0], device="cpu").items()}
    if found["unit"].startswith("log-odds"):
        probability = 1 / (1 + math.exp(-float(found["output"])))
        assert probability == pytest.approx(predicted[f"p({found['name']})"], abs=0.005)
    elif found["unit"].startswith("units of"):
        assert float(found["output"]) == pytest.approx(predicted[f"predicted {found['name']}"], abs=0.006)
    else:
        assert found["unit"].startswith("normal score of measured log solubility")


def test_sums_add_up_as_they_are_shown():
    for seed in range(100):
        nodes, baseline = torch.randn(5, generator=torch.Generator().manual_seed(seed)), seed / 7 - 5
        total = baseline + nodes.sum().item() + 0.004
        for scale in (1.0, 1e-5, 1e4):
            found = Attribution(nodes * scale, total * scale, baseline * scale).format_sum()
            assert Decimal(found[0]) == sum(map(Decimal, found[1:]))
            assert float(found[0]) == pytest.approx(total * scale, rel=5e-3, abs=5e-3 * scale)
            assert not {"-0.00", "+-0.00"} & set(found)


def test_an_effect_that_no_digit_shows_is_no_better_than_chance():
    areas = tuple((0.997 * area, area) for area in torch.linspace(0.5, 1, 12).tolist())
    small = DeletionCurve((1.0,) * 10, (1.0,) * 10, 12, areas)
    assert small.interval == pytest.approx((0.997, 0.997))
    assert small.verdict == "no better than chance"
    few = replace(small, graphs=2, areas=((0.5, 0.9), (0.4, 0.8)))
    assert few.verdict == "not compared with chance, which takes 5 graphs or more"


def test_a_function_is_drawn_as_its_tree(tmp_path):
    source = tmp_path / "code.py"
    source.write_text("def add(first, second):\n    total = first + second\n    return total\n")
    words = sorted({word for f in read_functions(source) for word in (*f.types, *f.attributes) if word})
    graphs = encode_functions(read_functions(source), [UNKNOWN, NONE, *words], [UNKNOWN, NONE, *words])
    task = SubTokens(("add", "total", "get"))
    model = replace(untrained("mnagt", task, graphs.features, **SMALL), vocabularies=graphs.vocabularies)
    model.save(tmp_path / "model")
    explain_to(tmp_path / "page.html", tmp_path / "model", str(source), ExplainConfig(orders=2))
    found = Elements((tmp_path / "page.html").read_text())
    assert len(found.all("li")) == len(read_functions(source)[0].types)
    assert "add, line 1" in found.text
    assert "first" in found.text


def test_bad_requests_are_told(folder, tmp_path, capsys):
    assert main(["explain", str(folder), "MUTAG", "--graphs", "0", "--target", "x", "--out", str(tmp_path / "p")]) == 2
    assert "no class 'x'; choose one of: not mutagenic, mutagenic" in capsys.readouterr().err
    assert main(["explain", str(folder), "MUTAG", "--graphs", "188"]) == 2
    assert "MUTAG has graphs 0 to 187" in capsys.readouterr().err
    assert main(["embed", str(folder), "MUTAG", "--out", str(tmp_path / "v.csv")]) == 2
    assert ".npy or .parquet" in capsys.readouterr().err


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_works_in_a_browser(folder, tmp_path):
    browsers = pytest.importorskip("playwright.sync_api")
    out = tmp_path / "page.html"
    explain_to(out, folder, "MUTAG", ExplainConfig(orders=1), graphs=[0])
    with browsers.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 390, "height": 800})
        said, asked = [], []
        page.on("console", lambda message: said.append(message.text))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(out.as_uri())
        pies = page.locator(".structure .layer")
        assert not any(pies.nth(i).is_visible() for i in range(2)), "pies are behind a click"
        page.get_by_text("Weights of the attention kernels").click()
        assert [pies.nth(i).is_visible() for i in range(2)] == [False, True]
        page.get_by_text("layer 1", exact=True).click()
        assert [pies.nth(i).is_visible() for i in range(2)] == [True, False]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        browser.close()
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [out.as_uri()]


def test_vectors_are_what_the_head_answers_from(folder, trained, tmp_path):
    vectors = trained.embed(MUTAG, torch.tensor([4, 2, 4]))
    with torch.inference_mode():
        answers = trained.model.head(vectors)
    torch.testing.assert_close(answers, trained.outputs(MUTAG, torch.tensor([4, 2, 4])))
    assert main(["embed", str(folder), "MUTAG", "--graphs", "4,2,4", "--out", str(tmp_path / "v.npy")]) == 0
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), vectors.numpy(), rtol=1e-5, atol=1e-6)


def test_vectors_in_parquet_keep_the_rows_of_a_table(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    replace(untrained("gin", MultiLabel(("active",)), FEATURES), vocabularies={}).save(tmp_path / "model")
    table = tmp_path / "some.csv"
    table.write_text("smiles\nCCO\nC(\nc1ccccc1\n")
    assert main(["embed", str(tmp_path / "model"), str(table), "--out", str(tmp_path / "v.parquet")]) == 0
    read = parquet.read_table(tmp_path / "v.parquet").to_pydict()
    assert read["graph"] == [0, 1, 2]
    assert read["name"] == ["line 2", None, "line 4"]
    assert [value is None for value in read["v0"]] == [False, True, False]


def test_descriptors_of_a_molecule_are_computed_once_and_not_for_each_copy(monkeypatch):
    torch.manual_seed(0)
    settings = {**SMALL, "descriptors": ("rdkit2d",)}
    model = build_model("mnagt", settings, FEATURES, 2).eval()
    trained = TrainedModel(model, SingleLabel(("a", "b")), "mnagt", settings, {}, {})
    graphs, real, counts = read_smiles(["CC(=O)Oc1ccccc1C(=O)O"]).graphs, molecules.compute_descriptors, []

    def compute(some: list, count: int) -> np.ndarray:
        counts.append(len(some))
        return real(some, count)

    monkeypatch.setattr(molecules, "compute_descriptors", compute)
    (explained,) = explain(trained, graphs, steps=32)
    check_by_deletion(trained, graphs, [explained])
    assert max(counts) == 1
    assert explained.attribution.gap == pytest.approx(0, abs=0.05)
    assert explained.attribution.output == pytest.approx(
        explained.output.score(trained.outputs(graphs)).item(), rel=1e-4
    )
