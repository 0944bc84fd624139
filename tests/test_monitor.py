"""`mnagt monitor` finds drift where there is some, and writes a page."""

import pytest
from markup import Elements, is_self_contained

from mnagt import load_dataset, train
from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.monitor import monitor


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("monitor") / "run"
    train("MUTAG", out, model="gin", epochs=1, dim=8, depth=1, device="cpu")
    return out


def test_graphs_of_the_same_kind_have_not_drifted(folder, tmp_path, capsys):
    assert main(["monitor", str(folder), "MUTAG", "--out", str(tmp_path / "drift.html")]) == 0
    told = capsys.readouterr().out
    assert "of 188 graphs" in told
    assert "No feature has drifted." in (tmp_path / "drift.html").read_text()


def test_large_graphs_among_small_ones_are_drift(folder, tmp_path, capsys):
    sizes = load_dataset("MUTAG").sizes
    large = [str(i) for i in range(188) if sizes[i] >= 22]
    page = tmp_path / "drift.html"
    assert main(["monitor", str(folder), "MUTAG", "--graphs", ",".join(large), "--out", str(page)]) == 1
    rows = {line.split()[0]: line.split()[-1] for line in capsys.readouterr().out.splitlines()}
    assert (rows["nodes"], rows["edges"]) == ("drift", "drift")
    found = monitor(folder, "MUTAG", graphs=list(map(int, large)))
    assert {"nodes", "edges"} <= set(found.drifted)
    assert found.counts["nodes"][-1] == pytest.approx(sum(sizes[list(map(int, large))] > found.bins["nodes"].edges[-1]))
    assert found.farthest == sorted(found.farthest, key=lambda pair: -pair[1])
    assert is_self_contained(page.read_text())
    assert len(Elements(page.read_text()).all("svg")) >= 5


def test_a_model_without_a_domain_says_so(folder, tmp_path):
    (folder / "domain.safetensors").rename(tmp_path / "kept")
    try:
        with pytest.raises(InputError, match="knows nothing of its training graphs"):
            monitor(folder, "MUTAG")
    finally:
        (tmp_path / "kept").rename(folder / "domain.safetensors")
