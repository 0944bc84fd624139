"""Two ranks do what one does, stop together, and go on as another number of them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor
from training import rank_cases

from mnagt import resume
from mnagt.data.registry import load_dataset
from mnagt.files import read_json
from mnagt.inference.weights import load_tensors
from mnagt.training.distributed import ALONE, TORCHRUN_VARIABLES, estimate_cost, partition

HERE = Path(__file__).parent
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> Path:
    """What two ranks leave of every case, after one alone was interrupted."""
    folder = tmp_path_factory.mktemp("two")
    rank_cases.interrupted(folder / "one.safetensors", ALONE)
    names = [name for name in rank_cases.cases(folder) if name != "NCI1" or "MNAGT_DATA" in os.environ]
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [sys.executable, *words, str(HERE / "rank_cases.py"), str(folder), *names],
        env=ENV, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def found(folder: Path, case: str) -> dict[str, Tensor]:
    """What the ranks found, which is the same."""
    first, second = (load_tensors(folder / f"{case}-{rank}.safetensors")[0] for rank in range(2))
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)  # a ROC-AUC of one class
    return first


@pytest.mark.parametrize("case", rank_cases.STILL)
def test_gradients_weights_and_statistics_are_those_of_one_rank(case, two):
    torch.testing.assert_close(found(two, case), rank_cases.STILL[case](ALONE), rtol=1e-6, atol=1e-6)


@pytest.mark.real_data
def test_gradients_on_nci1_are_those_of_one_rank(data_root, two):
    torch.testing.assert_close(found(two, "NCI1"), rank_cases.nci1(ALONE), rtol=1e-6, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("model", ["wl-linear", "mnagt-wl"])
def test_what_rank_0_fits_is_what_one_rank_fits(model, two):
    fitted, alone = found(two, model), rank_cases.with_counts(model, ALONE)
    assert fitted.keys() == alone.keys()
    wide = [name for name in alone if name.startswith("state/readout.") and "deep" not in name]
    assert len(wide) >= 3
    torch.testing.assert_close({name: fitted[name] for name in wide}, {name: alone[name] for name in wide})


def test_one_rank_asks_and_all_stop_at_the_same_step(two):
    assert found(two, "interrupted")["step"].tolist() == [1, 1]
    tensors, position = load_tensors(two / "two.safetensors")
    assert (position["epoch"], position["step"]) == (1, 1)
    assert tensors["random/cpu"].shape[0] == 2
    assert not torch.equal(*tensors["random/cpu"])


def test_resumed_by_as_many_ranks_it_ends_bit_for_bit_the_same(two):
    torch.testing.assert_close(found(two, "resumed"), found(two, "whole"), rtol=0, atol=0)


def test_resumed_by_another_number_it_goes_on_from_there(two, caplog):
    caplog.set_level("INFO")
    fewer = rank_cases.resumed(two / "two.safetensors", ALONE)
    assert "dropout is seeded anew from step 5 on" in caplog.text
    more = found(two, "resumed from one")
    for whole, part in ((found(two, "whole"), fewer), (rank_cases.resumed(None, ALONE), more)):
        assert torch.equal(whole["figures"][0], part["figures"][0])  # the epoch before
        assert whole["figures"].shape == part["figures"].shape
        assert not torch.equal(whole["figures"][1], part["figures"][1])


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "by_count"), [("NCI1", 1.03), ("PROTEINS", 1.1)])
def test_ranks_have_as_much_to_do(name, by_count, data_root):
    """The busiest of four, beside the mean: by cost within a half percent, by count far from it."""
    data = load_dataset(name)
    costs = estimate_cost(data.sizes)[torch.randperm(len(data), generator=torch.Generator().manual_seed(0))]
    ours, plain = [], []
    for batch in costs[: len(data) // 256 * 256].split(256):
        ours.append(max(float(batch[hand].sum()) for hand in partition(batch, 4)) / float(batch.sum() / 4))
        plain.append(max(float(hand.sum()) for hand in batch.chunk(4)) / float(batch.sum() / 4))
    assert sum(plain) / len(plain) > by_count
    assert max(ours) < 1.005


def test_no_graph_is_lost_or_dealt_twice():
    costs = estimate_cost(torch.tensor([5, 1, 9, 9, 2, 70, 3]))
    hands = partition(costs, 3)
    assert torch.cat(hands).sort().values.tolist() == list(range(7))
    assert [5] in [hand.tolist() for hand in hands]  # the large one is dear enough alone
    assert sorted(map(len, partition(costs[:1], 3))) == [0, 0, 1]


WORDS = ["train", "MUTAG", "--epochs", "500", "--batch-size", "64", "--dim", "8", "--depth", "1", "--head-dim", "8",
         "--device", "cpu"]  # fmt: skip


@contextmanager
def two_ranks(folder: Path) -> Iterator[list[subprocess.Popen]]:
    """Started as torchrun does, which would end the others itself if one fell; they have trained for two epochs."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = str(one.getsockname()[1])
    told = [dict(zip(TORCHRUN_VARIABLES, (str(rank), "2", "127.0.0.1", port), strict=True)) for rank in range(2)]
    words = [sys.executable, "-m", "mnagt", *WORDS, "--out", str(folder)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with ExitStack() as ended:
        ranks = [ended.enter_context(subprocess.Popen(words, env=ENV | each, **pipes)) for each in told]
        for rank in ranks:
            ended.callback(rank.kill)
        log = folder / "metrics.jsonl"
        while not log.exists() or log.read_text().count("\n") < 2:
            for rank in ranks:
                assert rank.poll() is None, rank.communicate()[1]
            time.sleep(0.05)
        yield ranks


def test_sigterm_to_one_rank_stops_both_with_one_checkpoint_that_one_goes_on_from(tmp_path):
    with two_ranks(tmp_path / "run") as ranks:
        ranks[1].send_signal(signal.SIGTERM)
        (_, first), (out, second) = (rank.communicate(timeout=60) for rank in ranks)
    assert [rank.returncode for rank in ranks] == [130, 130], first + second
    assert "interrupted, nothing lost" in first
    assert out + second == ""
    settings = read_json(tmp_path / "run" / "run.json")
    settings["config"]["train"]["epochs"] = epochs = load_tensors(tmp_path / "run" / "last.safetensors")[1]["epoch"] + 1
    (tmp_path / "run" / "run.json").write_text(json.dumps(settings))
    assert len(resume(tmp_path / "run").history) == epochs


def test_a_rank_that_dies_is_missed_at_once(tmp_path):
    with two_ranks(tmp_path / "run") as ranks:
        ranks[1].kill()
        told, _ = (rank.communicate(timeout=60)[1] for rank in ranks)
    assert ranks[0].returncode == 2
    assert "rank 0 of 2 has lost another" in told
    assert "Traceback" not in told
