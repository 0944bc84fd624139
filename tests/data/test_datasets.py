import shutil
import zipfile
from functools import partial
from pathlib import Path

import pytest
from data import ogb_files
from data.tu_files import folder, zipped

from mnagt.data.download import download_tu
from mnagt.data.readers.ogb import DEEPEST
from mnagt.data.registry import DATASETS, EMBEDDED, LOADERS, category_meanings, data_root, load_dataset, locate_dataset
from mnagt.errors import InputError
from mnagt.tasks import SingleLabel

SELF_LOOPS = {"COLLAB": 2837}
"""Dropped by us, and counted as edges in the published mean."""


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data root, and a download site out of reach."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr("mnagt.data.download.download_tu", partial(download_tu, site="http://127.0.0.1:9"))
    return tmp_path / "root"


@pytest.mark.parametrize("name", DATASETS)
def test_entries_are_complete(name):
    source = DATASETS[name]
    assert source.name == name
    assert source.kind in LOADERS
    assert source.description


@pytest.mark.real_data
@pytest.mark.parametrize("name", [name for name, source in DATASETS.items() if source.kind == "tu"])
def test_real_data_has_the_published_statistics(name, data_root):
    source = DATASETS[name]
    dataset = load_dataset(data_root / f"{name}.zip")
    assert dataset.name == name
    assert len(dataset) == source.graphs
    assert isinstance(dataset.task, SingleLabel)
    assert dataset.task.num_outputs == source.classes
    assert set(dataset.targets.tolist()) == set(range(source.classes))
    edges = len(dataset.source) / 2 + SELF_LOOPS.get(name, 0)
    assert dataset.sizes.double().mean().item() == pytest.approx(source.mean_nodes, abs=0.0051)
    assert edges / len(dataset) == pytest.approx(source.mean_edges, abs=0.0051)


@pytest.mark.real_data
@pytest.mark.parametrize("name", [f"ogbg-mol{name}" for name in ("bace", "bbbp", "esol", "freesolv", "hiv", "tox21")])
def test_real_molecules_have_the_published_statistics(name, data_root):
    source, dataset = DATASETS[name], load_dataset(name, root=data_root)
    assert (dataset.name, len(dataset), dataset.task.num_outputs) == (name, source.graphs, source.classes)
    assert dataset.task.metric == source.metric
    assert dataset.sizes.double().mean().item() == pytest.approx(source.mean_nodes, abs=0.051)
    assert len(dataset.source) / 2 / len(dataset) == pytest.approx(source.mean_edges, abs=0.051)
    assert dataset.official is not None
    assert (dataset.official >= 0).all()
    shares = dataset.official.long().bincount() / len(dataset)
    assert shares.tolist() == pytest.approx([0.8, 0.1, 0.1], abs=0.002)


@pytest.mark.real_data
def test_real_methods_have_the_published_statistics(data_root):
    source, dataset = DATASETS["pypi_ast"], load_dataset("pypi_ast", root=data_root)
    assert len(dataset) == source.graphs
    assert dataset.features.nodes.labels == (108, 10_030, DEEPEST + 1)
    assert dataset.sizes.double().mean().item() == pytest.approx(source.mean_nodes, abs=0.051)
    assert dataset.edge_labels is not None
    assert dataset.official is not None
    child, parent, after, before = dataset.edge_labels[:, 0].long().bincount().tolist()
    assert child == parent
    assert after == before
    assert child / len(dataset) == pytest.approx(source.mean_edges, abs=0.051)
    assert dataset.official.long().bincount().tolist() == [78_495, 5_268, 5_609]
    task = dataset.task.fit(dataset.targets[dataset.official == 0])
    assert task.num_outputs == 5 * 5002


@pytest.mark.real_data
def test_the_embedded_copy_is_the_real_one(data_root):
    with zipfile.ZipFile(EMBEDDED / "MUTAG.zip") as ours, zipfile.ZipFile(data_root / "MUTAG.zip") as real:
        assert sorted(ours.namelist()) == sorted(real.namelist())
        for member in ours.namelist():
            assert ours.read(member) == real.read(member)


def test_mutag_comes_with_the_package(nowhere):
    dataset = load_dataset("MUTAG", root=nowhere)
    source = DATASETS["MUTAG"]
    assert (len(dataset), len(dataset.source), int(dataset.sizes.sum())) == (188, 7442, 3371)
    assert dataset.sizes.double().mean().item() == pytest.approx(source.mean_nodes, abs=0.005)
    assert not nowhere.exists()


def test_mutags_categories_have_meanings(nowhere):
    dataset = load_dataset("MUTAG", root=nowhere)
    assert category_meanings(dataset, "node_labels/0") == ("C", "N", "O", "F", "I", "Cl", "Br")
    assert category_meanings(dataset, "edge_labels/0") == ("aromatic", "single", "double", "triple")
    assert category_meanings(dataset, "classes") == ("not mutagenic", "mutagenic")


def test_values_without_known_meaning_stand_for_themselves(tmp_path):
    dataset = load_dataset(folder(tmp_path / "SMALL"))
    assert category_meanings(dataset, "node_labels/0") == ("2", "4", "9")
    assert category_meanings(dataset, "edge_labels/7") == ()


@pytest.mark.parametrize("place", ["NCI1.zip", "NCI1", "NCI1/raw", "NCI1/NCI1"])
def test_a_name_is_found_in_the_root(nowhere, tmp_path, place):
    files = folder(tmp_path / "files", name="NCI1")
    nowhere.mkdir()
    if place.endswith(".zip"):
        zipped(files, nowhere / place)
    else:
        shutil.copytree(files, nowhere / place)
    assert load_dataset("NCI1", root=nowhere).sizes.tolist() == [3, 2, 1, 2]


@pytest.mark.parametrize("name", ["ogbg-molesol", "ogbg_molesol"])
@pytest.mark.parametrize("place", ["ogbg_molesol", "ogbg-molesol", "ogbg_molesol.zip", "esol.zip"])
def test_sets_of_ogb_are_found_under_all_their_names(nowhere, tmp_path, name, place):
    if place.endswith(".zip"):
        nowhere.mkdir()
        ogb_files.zipped(ogb_files.folder(tmp_path / "files"), nowhere / place, "esol/")
    else:
        ogb_files.folder(nowhere / place)
    dataset = load_dataset(name, root=nowhere)
    assert (dataset.name, len(dataset), dataset.task.metric) == ("ogbg-molesol", 4, "rmse")
    assert locate_dataset("ogbg-molesol", nowhere) == nowhere / place
    assert load_dataset(nowhere / place).task.metric == "rmse", "known by the name of its folder"


@pytest.mark.parametrize("name", ["ENZYMES", "Tox21_ER_LBD_testing", "on_no_list"])
@pytest.mark.parametrize("place", ["{}.zip", "{}", "{}/raw"])
def test_any_data_set_of_the_tu_collection_is_found_in_the_root(nowhere, tmp_path, name, place):
    files, path = folder(tmp_path / "files", name=name), nowhere / place.format(name)
    nowhere.mkdir()
    zipped(files, path) if path.suffix else shutil.copytree(files, path)
    dataset = load_dataset(name, root=nowhere)
    assert (dataset.name, dataset.sizes.tolist()) == (name, [3, 2, 1, 2])


def test_any_data_set_of_ogb_is_found_in_the_root(nowhere):
    for name in ("ogbg-molchembl", "on-no-list"):
        ogb_files.folder(nowhere / name.replace("-", "_"))
        assert load_dataset(name, root=nowhere).name == name
    with pytest.raises(InputError, match="ogbg-ppa cannot be read: its nodes have no columns"):
        load_dataset("ogbg-ppa", root=nowhere)


@pytest.mark.parametrize(
    ("name", "file"), [("mine", "mine.jsonl"), ("ENZYMES", "ENZYMES.zip"), ("NCI1", "NCI1.csv.gz")]
)
def test_a_name_that_lies_as_a_file_says_so(nowhere, tmp_path, monkeypatch, name, file):
    monkeypatch.chdir(tmp_path)
    (tmp_path / file).touch()
    with pytest.raises(
        InputError, match=f"{name} is no data set in .*root, but there is the file {file}; give its path"
    ):
        load_dataset(name, root=nowhere)


def test_the_nearest_name_is_suggested_from_the_collections_too(nowhere):
    for given, meant in {"enzymes": "ENZYMES", "mutag": "MUTAG", "REDIT-BINARY": "REDDIT-BINARY"}.items():
        with pytest.raises(InputError, match=f"no data set '{given}'; did you mean '{meant}'"):
            load_dataset(given, root=nowhere)


def test_a_folder_in_the_layout_of_ogb_may_have_any_name(tmp_path):
    dataset = load_dataset(ogb_files.folder(tmp_path / "mine"))
    assert (dataset.name, dataset.task.metric) == ("mine", "rocauc")
    assert load_dataset(tmp_path / "mine" / "raw").name == "mine"


def test_a_changed_split_is_read_again(tmp_path):
    load_dataset(ogb_files.folder(tmp_path / "mine"))
    changed = {"split/scaffold/test": "1\n3\n", "split/scaffold/train": "0\n"}
    dataset = load_dataset(ogb_files.folder(tmp_path / "mine", ogb_files.MOLECULES | changed))
    assert dataset.official is not None
    assert dataset.official.tolist() == [0, 2, 1, 2]


def test_what_no_site_has_must_be_put_there(nowhere):
    with pytest.raises(InputError, match=r"pypi_ast is not in .*root, and no public site has it; put its folder there"):
        load_dataset("pypi_ast", root=nowhere)


def test_the_root_comes_before_the_embedded_copy(nowhere):
    folder(nowhere / "MUTAG", name="MUTAG")
    assert len(load_dataset("MUTAG", root=nowhere)) == 4


def test_an_empty_folder_in_the_root_does_not_count(nowhere):
    (nowhere / "NCI1" / "raw").mkdir(parents=True)
    with pytest.raises(InputError, match="cannot fetch"):
        load_dataset("NCI1", root=nowhere)


def test_the_root_may_come_from_the_environment(nowhere, monkeypatch):
    folder(nowhere / "NCI109", name="NCI109")
    monkeypatch.setenv("MNAGT_DATA", str(nowhere))
    assert len(load_dataset("NCI109")) == 4
    monkeypatch.delenv("MNAGT_DATA")
    assert data_root() == Path.home() / ".cache" / "mnagt" / "data"


def test_a_path_is_read_whatever_its_name(tmp_path):
    path = folder(tmp_path / "SMALL")
    assert load_dataset(path).name == load_dataset(str(path)).name == "SMALL"


def test_a_changed_folder_is_read_again(tmp_path):
    assert len(load_dataset(folder(tmp_path / "SMALL"))) == 4
    assert load_dataset(folder(tmp_path / "SMALL", {"graph_labels": "1\n2\n3\n4\n"})).task.num_outputs == 4


def test_other_files_in_a_folder_do_not_count(tmp_path, monkeypatch):
    path = folder(tmp_path / "SMALL")
    before = load_dataset(path)
    (path / "processed").mkdir()
    (path / "processed" / "data.pt").write_text("anything")
    monkeypatch.setattr("mnagt.data.readers.tu.read_tu", lambda path: pytest.fail("read again"))
    assert len(load_dataset(path)) == len(before)


def test_a_name_that_is_not_known_is_answered_with_the_nearest():
    with pytest.raises(InputError, match=r"no data set 'COLAB'; did you mean 'COLLAB'\? there are: COLLAB, MUTAG"):
        load_dataset("COLAB")


@pytest.mark.parametrize("path", [Path("nothing"), "some/where", "nothing.zip", "~nobody-of-that-name/x"])
def test_a_path_to_nothing_is_answered_as_a_path(path):
    with pytest.raises(InputError, match="no such file or folder"):
        load_dataset(path)
