"""The command line as a new user meets it: what works, and one line about what does not."""

import csv
import errno
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from data.tu_files import folder

import mnagt
from mnagt import load_dataset, read_recipe
from mnagt.cli import COMMANDS, main
from mnagt.cli.predict import _count_predictions
from mnagt.data.packed import PackedDataset
from mnagt.data.registry import EMBEDDED
from mnagt.files import read_json
from mnagt.inference.weights import load_tensors
from mnagt.models.registry import resolve_settings
from mnagt.runs.config import RunConfig, TrainConfig

SMALL = ["--batch-size", "64", "--dim", "8", "--depth", "1", "--device", "cpu"]
TINY = [*SMALL, "--epochs", "2", "--head-dim", "4"]


KEEP = "mnagt.training.run.remove_checkpoint"


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on MUTAG, with its checkpoint."""
    out = tmp_path_factory.mktemp("runs") / "first"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KEEP, lambda path: None)
        assert main(["train", "MUTAG", "--out", str(out), *TINY]) == 0
    return out


@pytest.fixture
def copied(run_folder: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return shutil.copytree(run_folder, tmp_path / "copy")


@pytest.fixture
def done(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that works; what it printed."""

    def run(*words: object) -> str:
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        return printed.out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that is refused: code 2 and one line, which comes back."""

    def run(*words: object) -> str:
        capsys.readouterr()
        code = main([str(word) for word in words])
        printed = capsys.readouterr()
        assert code == 2
        assert printed.out == ""
        (line,) = printed.err.splitlines()
        assert line.startswith("mnagt: error: ")
        assert "Traceback" not in line
        return line.removeprefix("mnagt: error: ")

    return run


# Help


@pytest.mark.parametrize("words", [[], ["--help"]], ids=["nothing", "help"])
def test_help_lists_the_commands(words, capsys):
    with pytest.raises(SystemExit) if words else nullcontext():
        assert main(words) == 0
    told = capsys.readouterr().out
    assert COMMANDS.keys() <= set(told.split())
    assert "Begin with: mnagt quickstart" in told


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit) as exit:
        main([name, "--help"])
    assert exit.value.code == 0
    told = " ".join(capsys.readouterr().out.split())
    assert COMMANDS[name].description in told
    assert told.startswith(f"usage: mnagt {name}")


def test_train_explains_the_settings_of_the_model_at_hand(capsys):
    for model, has, lacks in (("gin", "--conv", "--max-hop"), ("mnagt-paper", "--max-hop", "--conv")):
        with pytest.raises(SystemExit):
            main(["train", "--model", model, "--help"])
        told = capsys.readouterr().out
        assert f"settings of the model {model}" in told
        assert has in told
        assert lacks not in told


def test_the_version_is_told_and_the_same_everywhere(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert exit.value.code == 0
    version = capsys.readouterr().out.split()[1]
    root = Path(__file__).parents[1]
    released = re.findall(r"^## \[(\d\S*)\] - (\S+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    citation = (root / "CITATION.cff").read_text()
    assert released == (version, *re.findall(r"^date-released: (\S+)$", citation, re.MULTILINE))
    assert f'version = "{version}"' in (root / "pyproject.toml").read_text()
    assert f"version: {version}\n" in citation
    assert f"version = {{{version}}}" in (root / "docs" / "cite.md").read_text()
    assert f"image: mnagt:{version}\n" in (root / "deploy" / "kubernetes.yaml").read_text()


def test_lists_name_what_there_is(done):
    assert "MUTAG" in done("datasets")
    assert "mnagt-paper" in done("models")
    assert "attention backend" in done("info")


# What works


def test_train_says_what_came_of_it_and_what_to_do_next(tmp_path, capsys):
    out = tmp_path / "run"
    assert main(["train", "MUTAG", "--out", str(out), *TINY]) == 0
    printed = capsys.readouterr()
    assert "mnagt on MUTAG" in printed.out
    assert f"next: mnagt predict {out} MUTAG" in printed.out
    assert "epoch 2/2" in printed.err
    metrics = [line.split()[0] for line in printed.out.splitlines() if line.endswith(tuple("0123456789"))]
    assert set(metrics) >= {"accuracy", "rocauc", "ap", "mcc", "f1", "brier", "ece"}


def test_evaluate_repeats_what_training_found(run_folder, done):
    result = json.loads((run_folder / "result.json").read_text())
    printed = done("evaluate", run_folder, "--device", "cpu").splitlines()
    low, high = result["test_intervals"]["accuracy"]
    assert printed[0] == "19 graphs"
    assert printed[2].split() == ["accuracy", f"{result['test']['accuracy']:.4f}", f"{low:.4f}", "to", f"{high:.4f}"]
    valid = json.loads(done("evaluate", run_folder, "--part", "valid", "--json", "--device", "cpu"))
    assert (valid["graphs"], valid["accuracy"]) == (19, result["valid"])
    assert set(valid) - {"graphs", "intervals"} == set(result["test"])
    assert done("evaluate", run_folder, "--dataset", "MUTAG", "--device", "cpu").startswith("188 graphs")


def test_predictions_go_to_the_screen_or_to_a_file(run_folder, tmp_path, done):
    printed = done("predict", run_folder, "MUTAG", "--device", "cpu")
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [row["graph"] for row in rows] == [str(i) for i in range(188)]
    assert {row["prediction"] for row in rows} <= {"-1", "1"}
    assert all(abs(float(row["p(-1)"]) + float(row["p(1)"]) - 1) < 1e-5 for row in rows)
    out = tmp_path / "answers" / "all.csv"
    assert done("predict", run_folder, "MUTAG", "--out", out, "--device", "cpu") == ""
    assert out.read_text().splitlines() == printed.splitlines()


def test_graphs_are_predicted_in_the_order_asked_for(run_folder, done):
    rows = done("predict", run_folder, "MUTAG", "--graphs", "5,3,5", "--device", "cpu").splitlines()
    assert [row.split(",")[0] for row in rows] == ["graph", "5", "3", "5"]
    assert rows[1] == rows[3]
    everything = done("predict", run_folder, "MUTAG", "--device", "cpu").splitlines()[1:]
    for row in rows[1:]:
        number, *_, probability = row.split(",")
        assert float(probability) == pytest.approx(float(everything[int(number)].split(",")[-1]), abs=1e-6)


def written_as_tu(dataset: PackedDataset, graph: int, path: Path) -> Path:
    """One graph as text files, its labels as the source wrote them."""
    batch = dataset.batch(torch.tensor([graph]))
    assert batch.node_labels is not None
    assert batch.edge_labels is not None
    nodes, edges = (dataset.vocabularies[f"{kind}_labels/0"] for kind in ("node", "edge"))
    texts = {
        "A": [f"{u + 1}, {v + 1}" for u, v in batch.edge_index.T.tolist()],
        "graph_indicator": ["1"] * batch.num_nodes,
        "graph_attributes": ["0.5"],
        "node_labels": [nodes[i] for i in batch.node_labels[:, 0].tolist()],
        "edge_labels": [edges[i] for i in batch.edge_labels[:, 0].tolist()],
    }
    path.mkdir()
    for name, lines in texts.items():
        (path / f"ONE_{name}.txt").write_text("\n".join(lines) + "\n")
    return path


def test_a_file_without_some_of_the_atoms_is_read_as_in_training(run_folder, tmp_path, done):
    mutag = load_dataset("MUTAG")
    labels = mutag.node_labels
    assert labels is not None
    has_chlorine = [bool((labels[a:b] == 5).any()) for a, b in zip(mutag.node_ptr, mutag.node_ptr[1:], strict=False)]
    graph = has_chlorine.index(True)
    alone = written_as_tu(mutag, graph, tmp_path / "ONE")
    assert load_dataset(alone).label_counts["node_labels"] < mutag.label_counts["node_labels"]
    ours, theirs = (
        done("predict", run_folder, data, "--graphs", number, "--device", "cpu").splitlines()[1].split(",")[2:]
        for data, number in ((alone, 0), ("MUTAG", graph))
    )
    assert list(map(float, ours)) == pytest.approx(list(map(float, theirs)), abs=1e-6)


def test_an_atom_never_met_is_refused(run_folder, tmp_path, refused):
    path = written_as_tu(load_dataset("MUTAG"), 0, tmp_path / "ONE")
    labels = (path / "ONE_node_labels.txt").read_text().split()
    (path / "ONE_node_labels.txt").write_text("\n".join(["99", *labels[1:]]))
    said = refused("predict", run_folder, path, "--device", "cpu")
    assert said == "ONE: column 0 of node_labels holds 99, which the model does not know; it was trained on MUTAG"


def test_graphs_without_answers_are_predicted_and_not_learned_from(run_folder, tmp_path, done, refused):
    path = written_as_tu(load_dataset("MUTAG"), 0, tmp_path / "ONE")
    for answers in path.glob("ONE_graph_[la]*.txt"):
        answers.unlink()
    assert (
        done("predict", run_folder, path, "--device", "cpu").splitlines()[0] == "graph,prediction,p(-1),p(1),distance"
    )
    assert "ONE: no targets to learn from" in refused("train", path)


def test_options_override_the_recipe(tmp_path, done):
    recipe = tmp_path / "it.toml"
    recipe.write_text(
        'dataset = "MUTAG"\nmodel = "gin"\ndevice = "cpu"\n[settings]\ndim = 8\ndepth = 1\n'
        '[train]\nepochs = 3\nlr = 0.01\n[split]\nkind = "stratified"\n'
    )
    done("train", "--recipe", recipe, "--out", tmp_path / "run", "--epochs", 1, "--dim", 16, "--split-fold", 2)
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert (config["model"], config["settings"]["dim"], config["settings"]["depth"]) == ("gin", 16, 1)
    assert (config["train"]["epochs"], config["train"]["lr"]) == (1, 0.01)
    assert (config["split"]["kind"], config["split"]["fold"]) == ("stratified", 2)


@pytest.mark.real_data
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), read_recipe("ogbg-molfreesolv/mnagt")),
        (("--recipe", "none"), RunConfig("ogbg-molfreesolv", train=TrainConfig(batch_size=32))),  # of 513 graphs
        (("--model", "gin-virtual"), read_recipe("ogbg-molfreesolv/gin-virtual")),
        (("--model", "gin"), RunConfig("ogbg-molfreesolv", "gin")),
        (("--recipe", "ogbg-molesol/mnagt"), replace(read_recipe("ogbg-molesol/mnagt"), dataset="ogbg-molfreesolv")),
    ],
    ids=lambda part: "-".join(part) if isinstance(part, tuple) else "",
)
def test_a_data_set_is_trained_by_its_own_recipe(words, expected, data_root, tmp_path, done):
    done("train", "ogbg-molfreesolv", *words, "--epochs", 1, "--device", "cpu", "--out", tmp_path / "run")
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    dataset = load_dataset("ogbg-molfreesolv")
    settings = resolve_settings(expected.model, expected.settings, dataset.features, dataset.task.num_outputs)
    assert config["settings"] == settings
    assert config["train"] == json.loads(json.dumps(asdict(replace(expected.train, epochs=1))))
    assert (config["dataset"], config["model"]) == ("ogbg-molfreesolv", expected.model)


def test_a_file_goes_before_a_recipe_of_the_package(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert read_recipe("nci1/gin") == read_recipe(Path(mnagt.__file__).parent / "recipes" / "nci1.toml" / "gin")
    (tmp_path / "nci1").mkdir()
    (tmp_path / "nci1" / "gin").write_text('dataset = "MUTAG"\n')
    assert read_recipe("nci1/gin").dataset == "MUTAG"


def test_another_model_leaves_the_recipes_settings_behind(tmp_path, done):
    recipe = tmp_path / "it.toml"
    recipe.write_text('dataset = "MUTAG"\nmodel = "mnagt"\n[settings]\nmax_hop = 1\n[train]\nepochs = 1\n')
    done("train", "--recipe", recipe, "--model", "gin", "--out", tmp_path / "run", *SMALL)
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["model"] == "gin"
    dataset = load_dataset("MUTAG")
    assert config["settings"] == resolve_settings("gin", {"dim": 8, "depth": 1}, dataset.features, 2)


def test_options_are_those_of_the_model_that_a_data_set_is_trained_by(capsys):
    assert main(["train", "NCI1", "--forest-trees", "3"]) == 2
    assert "has no option '--forest-trees'" in capsys.readouterr().err
    assert main(["train", "NCI1", "--classifier", "tree"]) == 2  # an option of mnagt-wl, with a value that is none
    assert "--classifier: expected" in capsys.readouterr().err


def test_a_run_without_a_place_gets_one(tmp_path, monkeypatch, done):
    monkeypatch.chdir(tmp_path)
    done("train", "MUTAG", "--model", "gin", "--epochs", 1, *SMALL)
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.startswith("MUTAG-gin-")


def test_a_finished_run_can_be_resumed_and_stays_the_same(copied, done):
    before = json.loads((copied / "result.json").read_text())
    assert f"saved in {copied}" in done("train", "--resume", copied)
    assert json.loads((copied / "result.json").read_text()) == before


def test_a_sweep_compares_the_recipes_of_a_file_by_validation(tmp_path, done):
    sweep = tmp_path / "sweep.toml"
    sweep.write_text(
        'dataset = "MUTAG"\ntrain.epochs = 2\nsettings.depth = 1\n[models.gin]\nsettings.dim = 8\n[models.gcn]\n'
    )
    folders = tmp_path / "splits"
    for name, valid in (("a", "0\n1\n2\n"), ("b", "3\n4\n5\n6\n")):
        (folders / name).mkdir(parents=True)
        for part, indices in (("train", "7\n8\n9\n10\n"), ("valid", valid), ("test", "11\n")):
            (folders / name / f"{part}.txt").write_text(indices)
    ledger = tmp_path / "sweep.jsonl"
    words = ("--validation-only", "--split-folders", folders, "--seeds", 3, "--ledger", ledger, "--device", "cpu")
    head, *rows = done("trials", sweep, *words).splitlines()
    assert head.split("  ")[0] == "recipe"
    assert "test" not in head
    assert [row.split()[:2] for row in rows] == [["sweep/gin", "3"], ["sweep/gcn", "3"]]
    records = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert all(record["result"]["test"] == {} for record in records)
    assert [record["split"]["valid"] for record in records] == [3, 4, 3] * 2


def test_trials_end_in_a_table_and_are_kept(tmp_path, done):
    recipe = tmp_path / "mutag" / "gin.toml"
    recipe.parent.mkdir()
    recipe.write_text('dataset = "MUTAG"\nmodel = "gin"\n[settings]\ndim = 8\ndepth = 1\n[train]\nepochs = 1\n')
    ledger = tmp_path / "trials.jsonl"
    table = done("trials", recipe, "--seeds", 2, "--ledger", ledger, "--device", "cpu")
    assert table.splitlines()[1].startswith("mutag/gin")
    assert ledger.read_text().count("\n") == 2
    assert done("trials", recipe, "--seeds", 2, "--ledger", ledger) == table
    assert ledger.read_text().count("\n") == 2


def test_output_cut_off_by_a_pipe_is_no_error(run_folder):
    program = [sys.executable, "-m", "mnagt", "predict", str(run_folder), "MUTAG", "--device", "cpu"]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


# What is refused


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "no command 'trian'; did you mean 'train'? there are: "),
        (["train"], "which data set? `mnagt datasets` lists them; for example: mnagt train MUTAG"),
        (["train", "MUTAGG"], "no data set 'MUTAGG'; did you mean 'MUTAG'? there are: "),
        (["train", "no/where.zip"], "no/where.zip: no such file or folder; data sets by name: "),
        (["train", "MUTAG", "--model", "mnagtt"], "no model 'mnagtt'; did you mean 'mnagt'? there are: "),
        (["train", "MUTAG", "--epoch", "1"], "mnagt train has no option '--epoch'; did you mean '--epochs'?"),
        (["train", "MUTAG", "--model", "gin", "--heads", "2"], "`mnagt train --model gin --help` lists them"),
        (["train", "MUTAG", "NCI1"], "mnagt train has no option 'NCI1'"),
        (["train", "my.xlsx", "--target", "y"], "my.xlsx: spreadsheets are not read; save the sheet as CSV (UTF-8)"),
        (["evaluate", "run", "new.csv"], "to score the graphs of 'new.csv' give --dataset new.csv; "),
        (["train", "MUTAG", "--epochs", "x"], "--epochs: expected a whole number, got 'x'"),
        (["train", "MUTAG", "--epochs", "0"], "epochs must be at least 1, got 0"),
        (["train", "MUTAG", "--epochs"], "argument --epochs: expected one argument; `mnagt train --help` explains"),
        (["train", "MUTAG", "--lr", "nan"], "lr must be at least 0, got nan"),
        (["train", "MUTAG", "--seed", str(2**70)], "is too large"),
        (
            ["train", "MUTAG", "--schedule", "x"],
            "--schedule: expected 'cosine' or 'inverse-sqrt' or 'constant', got 'x'",
        ),
        (["train", "MUTAG", "--mixer", "x"], "mixer must be one of adaptive, concat, mean, sum, got 'x'"),
        (["train", "MUTAG", "--dropout", "1.5"], "dropout"),
        (["train", "MUTAG", "--dim", "-1"], "dim must be at least 1, got -1"),
        (["train", "MUTAG", "--split", "x"], "--split: expected 'auto' or 'official' or 'random'"),
        (["train", "MUTAG", "--split", "files"], "a split from files needs their folder: --split-folder"),
        (["train", "MUTAG", "--split", "stratified", "--split-fold", "10"], "fold must be 0 to 9, got 10"),
        (["train", "MUTAG", "--device", "tpu"], "device must be auto, cpu, cuda or cuda:N, got 'tpu'"),
        (["train", "MUTAG", "--device", "meta"], "device must be auto, cpu, cuda or cuda:N, got 'meta'"),
        (["train", "--recipe", "gone.toml"], "gone.toml: no such file"),
        (["train", "--recipe"], "argument --recipe: expected one argument"),
        (["train", "--resume", "gone"], "gone/run.json: no such file; `mnagt train DATASET --out gone` starts a run"),
        (["evaluate", "gone"], "gone: no such folder; give the folder that `mnagt train` wrote"),
        (["evaluate", "."], ".: holds no trained model; train it"),
        (["evaluate", ".", "--part", "x"], "argument --part: invalid choice: 'x'"),
        (["predict", "gone", "MUTAG"], "gone: no such folder; give the folder that `mnagt train` wrote"),
        (["predict", "gone"], "the following arguments are required: dataset; `mnagt predict --help` explains"),
        (["trials", "gone.toml"], "gone.toml: no such file"),
        (["trials", "gone.toml", "--seeds", "x"], "argument --seeds: invalid int value: 'x'"),
        (["quickstart", "--folds", "2"], "folds must be at least 3, got 2"),
        (["models", "--all"], "mnagt models has no option '--all'"),
    ],
    ids=" ".join,
)
def test_a_bad_word_is_named_with_its_remedy_and_nothing_is_written(words, said, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("model = \n", "not TOML: Invalid value (at line 1"),
        ('dataset = "MUTAG"\n[train\nlr = 1', "(at line 2"),
        ("dataset = 3", "dataset: expected a word, got 3"),
        ("datasets = 3", "no setting 'datasets'; there are: by_data, dataset, device, model, "),
        ('model = "x"', "no model 'x'; there are: "),
        ("train = 3", "train: expected a table of settings, got 3"),
        ('[train]\nepochs = "many"', "train: epochs: expected a whole number, got 'many'"),
        ("[train]\nepochs = 2.5", "train: epochs: expected a whole number, got 2.5"),
        ("[train]\nepochs = 0", "train: epochs must be at least 1, got 0"),
        ("[train]\nepoch = 1", "train: no setting 'epoch'; there are: "),
        ('[settings]\ndim = "wide"', "settings: dim: expected a whole number, got 'wide'"),
        ("[settings]\nwidth = 3", "settings: no setting 'width'; there are: "),
        ('[settings]\nreadout = "x"', "settings: readout must be one of"),
        ('[split]\nkind = "x"', "split: kind: expected 'auto' or 'official' or 'random'"),
    ],
)
@pytest.mark.parametrize("command", [["train", "--recipe"], ["trials"]], ids=" ".join)
def test_a_bad_recipe_is_named_with_the_place(command, content, said, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("it.toml").write_text(content)
    line = refused(*command, "it.toml")
    assert line.startswith("it.toml: ")
    assert said in line
    assert os.listdir(tmp_path) == ["it.toml"]


@pytest.mark.parametrize("option", ["--seeds", "--jobs"])
def test_trials_count_from_one(option, refused, tmp_path):
    (tmp_path / "it.toml").write_text('model = "gin"')
    assert "--seeds and --jobs count from 1, got" in refused("trials", tmp_path / "it.toml", option, 0)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed_before_anything_is_written(run_folder, tmp_path, refused):
    out = tmp_path / "run"
    said = "no device 'cuda': 0 GPUs here; use --device cpu or auto"
    assert refused("train", "MUTAG", "--out", out, "--device", "cuda") == said
    assert not out.exists()
    assert refused("evaluate", run_folder, "--device", "cuda") == said
    assert refused("predict", run_folder, "MUTAG", "--device", "cuda:1") == said.replace("'cuda'", "'cuda:1'")


def test_a_gpu_without_room_is_told_in_a_line(tmp_path, monkeypatch, refused):
    def no_room(self: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 20.00 GiB")

    monkeypatch.setattr("mnagt.training.trainer.Trainer.run", no_room)
    said = refused("train", "MUTAG", "--out", tmp_path / "run", *TINY)
    assert "has too little memory for batches of 64 graphs; lower batch_size or choose a smaller model" in said


def test_a_run_is_not_written_over(run_folder, refused):
    said = refused("train", "MUTAG", "--out", run_folder, *TINY)
    assert said == f"{run_folder}: holds a run already; go on with --resume {run_folder}, or choose another --out"


def test_a_run_goes_on_as_it_began(run_folder, refused):
    said = refused("train", "MUTAG", "--resume", run_folder, "--epochs", 9)
    assert said == "--resume goes on with the run's own settings; leave out: dataset, epochs"


@pytest.mark.parametrize(
    ("graphs", "said"),
    [
        ("188", "MUTAG has graphs 0 to 187; asked for 188"),
        ("3,-1", "MUTAG has graphs 0 to 187; asked for -1"),
        (str(10**30), "MUTAG has graphs 0 to 187; asked for 1000"),
        ("a", "--graphs: expected whole numbers with commas between, got 'a'"),
        ("1,,2", "--graphs: expected whole numbers with commas between, got '1,,2'"),
        ("", "--graphs: expected whole numbers with commas between, got ''"),
    ],
)
def test_graphs_that_are_not_there_are_refused(run_folder, graphs, said, refused):
    assert said in refused("predict", run_folder, "MUTAG", f"--graphs={graphs}", "--device", "cpu")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_zip_is_named(share, tmp_path, refused):
    whole = (EMBEDDED / "MUTAG.zip").read_bytes()
    (tmp_path / "MUTAG.zip").write_bytes(whole[: int(share * len(whole))])
    said = refused("train", tmp_path / "MUTAG.zip", "--out", tmp_path / "run", *TINY)
    assert said.startswith(f"{tmp_path / 'MUTAG.zip'}: not a readable zip")
    assert said.endswith("fetch it again")
    assert not (tmp_path / "run").exists()


def test_places_that_cannot_be_written_are_named(run_folder, tmp_path, monkeypatch, refused):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MNAGT_DATA", str(tmp_path / "file" / "data"))
    inside = tmp_path / "file" / "x"
    assert refused("train", "NCI1", *TINY).startswith(f"cannot write {tmp_path / 'file' / 'data' / 'NCI1.zip'}: ")
    assert refused("train", "MUTAG", "--out", inside, *TINY).startswith(f"cannot write {inside}")
    assert refused("train", "MUTAG", "--out", tmp_path / "file", *TINY).startswith(f"cannot write {tmp_path / 'file'}")
    assert refused("quickstart", "--out", inside).startswith(f"cannot write {inside}")
    assert refused("predict", run_folder, "MUTAG", "--out", inside, "--device", "cpu").startswith(
        f"cannot write {inside}"
    )
    folder_said = refused("predict", run_folder, "MUTAG", "--out", tmp_path, "--device", "cpu")
    assert folder_said == f"cannot write {tmp_path}: it is a folder; choose another name"
    (tmp_path / "it.toml").write_text('model = "gin"')
    assert str(inside) in refused("trials", tmp_path / "it.toml", "--ledger", inside)
    assert sorted(os.listdir(tmp_path)) == ["file", "it.toml"]


def test_folds_of_numbers_are_drawn_at_random(tmp_path, done):
    numbers = folder(tmp_path / "SMALL", {"graph_attributes": "1.5\n2.5\n3\n4\n"}, without=("graph_labels",))
    words = ("--split", "stratified", "--split-folds", "3", "--out", tmp_path / "run")
    done("train", numbers, *words, *TINY)
    parts = read_json(tmp_path / "run" / "split.json")
    assert sorted(i for part in parts.values() for i in part) == [0, 1, 2, 3]


def test_too_few_graphs_are_refused(tmp_path, refused):
    assert "4 graphs are too few" in refused("train", folder(tmp_path / "SMALL"), *TINY)


def test_graphs_with_other_questions_are_refused(run_folder, tmp_path, refused):
    labels = dict.fromkeys(("node_labels", "node_attributes", "edge_labels", "edge_attributes"))
    other = folder(tmp_path / "SMALL", without=tuple(labels))
    said = refused("evaluate", run_folder, "--dataset", other, "--device", "cpu")
    assert said.startswith(
        "the targets of SMALL are single-label (-1, 3, 7), and the model predicts single-label (-1, 1)"
    )
    said = refused("predict", run_folder, other, "--device", "cpu")
    assert said.startswith("SMALL: the model reads 1 categorical and 0 continuous columns of nodes")


# Damage


def halved(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def changed(path: Path, *keys: str, to: object) -> None:
    inner = content = read_json(path)
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = to
    path.write_text(json.dumps(content))


CONFIG, SPLIT, RUN, WEIGHTS = "config.json", "split.json", "run.json", "model.safetensors"
DAMAGE: dict[str, tuple[Callable[[Path], object], str, str]] = {
    "half the weights": (lambda run: halved(run / WEIGHTS), WEIGHTS, "restore it or train again"),
    "no weights": (lambda run: (run / WEIGHTS).unlink(), "", "holds no trained model; train it, or go on"),
    "half a config": (lambda run: halved(run / CONFIG), CONFIG, "not JSON"),
    "no config": (lambda run: (run / CONFIG).unlink(), "", "holds no trained model"),
    "a list": (lambda run: (run / CONFIG).write_text("[]"), CONFIG, "it is damaged or not a model's"),
    "no model": (lambda run: (run / CONFIG).write_text("{}"), CONFIG, "no 'model' in it"),
    "unknown model": (lambda run: changed(run / CONFIG, "model", "name", to="x"), CONFIG, "no model 'x'"),
    "no settings": (lambda run: changed(run / CONFIG, "model", "settings", to=3), CONFIG, ""),
    "no task": (lambda run: changed(run / CONFIG, "task", to=3), CONFIG, "it is damaged or not a model's"),
    "unknown task": (lambda run: changed(run / CONFIG, "task", "kind", to="x"), CONFIG, "no task 'x'"),
    "columns": (lambda run: changed(run / CONFIG, "features", "nodes", "labels", to=["x"]), CONFIG, "whole number"),
    "half a split": (lambda run: halved(run / SPLIT), SPLIT, "not JSON"),
    "no parts": (lambda run: (run / SPLIT).write_text("{}"), SPLIT, "damaged or not a split; restore it"),
    "a part of words": (lambda run: changed(run / SPLIT, "test", to=["x"]), SPLIT, "damaged or not a split"),
    "a graph too many": (lambda run: changed(run / SPLIT, "test", to=[500]), SPLIT, "damaged or not a split"),
    "no record": (lambda run: (run / RUN).unlink(), RUN, "no such file"),
    "an empty record": (lambda run: (run / RUN).write_text("{}"), RUN, "no 'config' in it"),
    "another data set": (lambda run: changed(run / RUN, "dataset", "graphs", to=3), RUN, "put the old one back"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_refused_by_the_name_of_the_file(damage, copied, refused):
    damaging, file, said = DAMAGE[damage]
    damaging(copied)
    line = refused("evaluate", copied, "--device", "cpu")
    assert line.startswith(f"{copied / file}: ")
    assert said in line


@pytest.mark.parametrize(
    ("damaging", "said"),
    [
        (lambda run: halved(run / "last.safetensors"), "last.safetensors: damaged or not a checkpoint"),
        (lambda run: (run / "last.safetensors").write_bytes(b""), "last.safetensors: damaged or not a checkpoint"),
        (lambda run: shutil.copy(run / "model.safetensors", run / "last.safetensors"), "of another model"),
        (lambda run: changed(run / "run.json", "config", to=3), "run.json: expected a table of settings, got 3"),
        (lambda run: changed(run / "run.json", "config", "dataset", to="gone.zip"), "gone.zip: no such file or folder"),
        (lambda run: changed(run / "run.json", "config", "model", to="x"), "no model 'x'"),
    ],
)
def test_a_damaged_run_is_not_resumed(damaging, said, copied, refused):
    damaging(copied)
    before = {path.name: path.read_bytes() for path in copied.iterdir()}
    assert said in refused("train", "--resume", copied)
    assert {path.name: path.read_bytes() for path in copied.iterdir()} == before


def test_the_checkpoint_of_another_model_is_refused(copied, tmp_path, done, refused, monkeypatch):
    monkeypatch.setattr(KEEP, lambda path: None)
    done("train", "MUTAG", "--model", "gin", "--epochs", 1, "--out", tmp_path / "gin", *SMALL)
    for name in ("last.safetensors", "model.safetensors"):
        shutil.copy(tmp_path / "gin" / name, copied / name)
    for words in (["train", "--resume", copied], ["evaluate", copied, "--device", "cpu"]):
        assert ".safetensors: of another model, or another version of it: " in refused(*words)


def test_a_disk_that_fills_up_leaves_the_last_checkpoint_and_the_run_goes_on_from_it(
    tmp_path, monkeypatch, refused, done
):
    words = ["train", "MUTAG", *TINY, "--checkpoint-seconds", "0", "--epochs", "3"]
    done(*words, "--out", tmp_path / "undisturbed")
    out, fsync = tmp_path / "run", os.fsync

    def sometimes(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}")
        if ".last.safetensors." in name and (out / "metrics.jsonl").read_text().count("\n") >= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr("mnagt.files.os.fsync", sometimes)
        assert main([*words, "--out", str(out)]) == 2
    assert load_tensors(out / "last.safetensors")[1]["epoch"] == 1
    assert not list(out.glob(".*"))
    assert not (out / "model.safetensors").exists()
    assert "holds no trained model" in refused("evaluate", out)
    done("train", "--resume", out)
    one, other = (load_tensors(run / "model.safetensors")[0] for run in (tmp_path / "undisturbed", out))
    assert all(torch.equal(one[key], other[key]) for key in one.keys() | other.keys())


def test_on_a_terminal_commands_end_with_the_next_one(monkeypatch, capsys):
    assert main(["datasets"]) == 0
    assert "next:" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["datasets"]) == 0
    assert capsys.readouterr().err.endswith("next: mnagt train MUTAG\n")


def test_the_next_step_fits_the_data_and_a_shell(tmp_path, monkeypatch, capsys):
    out = tmp_path / "my runs"
    assert main(["train", "MUTAG", "--epochs", "1", "--dim", "8", "--depth", "1", "--out", str(out)]) == 0
    assert f"next: mnagt predict '{out}' MUTAG --out" in capsys.readouterr().out
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["evaluate", str(out)]) == 0
    assert capsys.readouterr().err.endswith(f"next: mnagt predict '{out}' MUTAG --out predictions.csv\n")


ENDLESS = {"serve", "completion"}
"""A service, and a script for the shell. The others without a next step print it themselves."""


@pytest.mark.parametrize("name", COMMANDS)
def test_next_steps_are_commands_with_arguments_of_the_command(name):
    words = COMMANDS[name].next_step.format(model=["runs/mine"], dataset="my.csv", new="NEW.csv", out="x").split()
    assert words[:1] == ["mnagt"] or name in {"quickstart", "train", "compare", "tune", "reproduce", *ENDLESS}
    assert not words or words[1] in COMMANDS


def test_the_nearest_file_and_column_are_proposed(tmp_path, refused):
    (tmp_path / "Solubility.csv").write_text("smiles,logS (mol/L),other\nC,1,2\n")
    (tmp_path / "graphs.jsonl").write_text("")
    assert "no such file; did you mean 'Solubility.csv'?" in refused("train", tmp_path / "solublity.csv")
    assert "no such file; did you mean 'graphs.jsonl'?" in refused("train", tmp_path / "graph.jsonl")
    said = refused("train", tmp_path / "Solubility.csv", "--target", "logs")
    assert "no column 'logs' (--target); did you mean 'logS (mol/L)'? there are: smiles" in said


def test_the_quickstart_prints_one_screen_and_opens_its_report(tmp_path, monkeypatch, capsys):
    opened = []
    monkeypatch.chdir(tmp_path)  # where there is no examples/amines.csv
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    monkeypatch.setattr("shutil.which", lambda name: None)  # as after `make quickstart`
    words = ["quickstart", "--epochs", "1", "--folds", "3", "--jobs", "1", "--open", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 80 for line in lines if str(tmp_path) not in line)
    for name in ("majority class", "wl-linear", "gin", "mnagt"):
        assert sum(line.startswith(f"  {name} ") for line in lines) == 1
    assert opened == [(tmp_path / "out" / "report.html").as_uri()]
    assert lines[-1].strip() == "mnagt train MY.csv --target COLUMN"
    activate = Path(sys.prefix, "bin", "activate")
    assert any(line.startswith("next    . ") for line in lines) == activate.is_file()
    explain = next(line for line in lines if "mnagt explain" in line).split("mnagt ", 1)[1]
    assert main([*explain.split()[:-1], str(tmp_path / "why.html")]) == 0
    assert (tmp_path / "why.html").exists()


def test_a_file_that_holds_no_graphs_is_refused_by_its_name(tmp_path, refused):
    (tmp_path / "notes.md").write_text("# Notes")
    said = refused("train", tmp_path / "notes.md", "--out", tmp_path / "run", *TINY)
    assert said.startswith(f"{tmp_path / 'notes.md'}: no file of graphs, by its name; those that are read end in .csv")


def test_rows_that_cannot_be_read_are_not_counted_as_predictions():
    table = {"smiles": ["CO", "CC("], "prediction": ["yes", None], "note": [None, "not a SMILES"]}
    said = "1 prediction in new.csv; 1 more with a note in place of a prediction"
    assert _count_predictions(table, Path("new.csv")) == said
    assert _count_predictions({"graph": [0, 1], "note": [0.5, 0.1]}, Path("new.csv")) == "2 predictions in new.csv"
