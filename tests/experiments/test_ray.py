"""Trials on a Ray cluster: what is lost is run elsewhere, and the ledger is that of a run on one machine."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from threading import Timer
from typing import Any
from zipfile import ZipFile

import pytest

from mnagt.cli import main
from mnagt.data.registry import EMBEDDED
from mnagt.errors import InputError
from mnagt.experiments import trials
from mnagt.experiments.config import RayConfig
from mnagt.experiments.executors import MAX_ATTEMPTS, RAY_ENVIRONMENT, run_parallel
from mnagt.experiments.ledger import Ledger
from mnagt.experiments.trials import run_trials, with_seed
from mnagt.experiments.tune import TuneConfig, tune
from mnagt.runs.config import RunConfig, TrainConfig

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
"""Ray leaves sockets and log files to the end of the process."""

CONFIG = RunConfig("MUTAG", "gin", {"dim": 8, "depth": 1}, TrainConfig(epochs=1, batch_size=64), device="cpu")
RECIPE = 'dataset = "MUTAG"\nmodel = "gin"\ndevice = "cpu"\n[settings]\ndim = 8\ndepth = 1\n[train]\nepochs = 2\n'


def figures(ledger: Path) -> dict[int, Any]:
    """By seed, what does not depend on where and when; each seed is there once."""
    records = [json.loads(line) for line in ledger.read_text().splitlines()]
    seeds = [record["config"]["train"]["seed"] for record in records]
    assert len(set(seeds)) == len(seeds)
    return {
        seed: (
            record["result"]["test"],
            record["result"]["valid"],
            record["curves"],
            record["dataset"],
            record["split"],
        )
        for seed, record in zip(seeds, records, strict=True)
    }


def test_a_command_gives_on_ray_what_it_gives_here(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("gin.toml").write_text(RECIPE)
    words = ["trials", "gin.toml", "--seeds", "2", "--ledger"]
    assert main([*words, "there.jsonl", "--engine", "ray"]) == 0
    printed = capfd.readouterr()
    assert re.fullmatch(r"recipe .*\n.*/gin +2 .*\n", printed.out)
    assert sorted(printed.err.splitlines()) == [
        line for seed in (0, 1) for line in printed.err.splitlines() if line.startswith(f"MUTAG gin seed {seed}: test ")
    ]
    assert main([*words, "here.jsonl", "--jobs", "2"]) == 0
    assert figures(Path("there.jsonl")) == figures(Path("here.jsonl"))
    record = json.loads(Path("there.jsonl").read_text().splitlines()[0])
    assert set(record["ran_on"]) == {"machine", "versions"}
    assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray-address", "a:1"], "--ray-address: only with --engine ray"),
        (
            ["--engine", "ray", "--jobs", "2"],
            "--jobs is for --engine local; on Ray, --cpus-per-trial says how many run",
        ),
        (["--engine", "ray", "--gpus-per-trial", "2"], "gpus_per_trial must be at most 1, got 2"),
        (["--engine", "ray", "--cpus-per-trial", "0"], "cpus_per_trial must be at least 1, got 0"),
        (["--engine", "dask"], "invalid choice: 'dask'"),
    ],
)
@pytest.mark.parametrize(
    "command", [["trials", "gin.toml"], ["reproduce", "table1"], ["tune", "MUTAG"]], ids=lambda words: words[0]
)
def test_a_bad_word_is_named(command, words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("gin.toml").write_text(RECIPE)
    assert main([*command, *words]) == 2
    assert said in capsys.readouterr().err


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"needs ray, which is not installed: pip install .*\[ray\]"):
        run_trials([CONFIG], Ledger(tmp_path / "trials.jsonl"), ray=RayConfig())


def test_a_search_on_a_cluster_needs_a_storage_that_all_reach(tmp_path):
    with pytest.raises(InputError, match="with --storage"):
        tune(CONFIG, tmp_path, ray=RayConfig("127.0.0.1:1"))


# A cluster of two nodes


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Of one node with one CPU; a test adds others."""
    os.environ.update(RAY_ENVIRONMENT)
    from ray.cluster_utils import Cluster

    at = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "object_store_memory": 2**27}
    )
    yield at
    at.shutdown()


@pytest.fixture
def second(cluster: Any) -> Iterator[Callable[[], None]]:
    """Adds a node with one CPU, and returns what ends it as a machine does that loses power: processes and all."""
    node = cluster.add_node(num_cpus=1, object_store_memory=2**27)

    def kill() -> None:
        raylet = node.all_processes["raylet"][0].process.pid
        for process in [raylet, *children(raylet)]:
            os.kill(process, signal.SIGKILL)

    yield kill
    cluster.remove_node(node, allow_graceful=False)


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
def test_trials_of_a_node_that_is_lost_are_run_elsewhere(cluster, second, tmp_path, caplog):
    configs = [with_seed(replace(CONFIG, train=replace(CONFIG.train, epochs=120)), seed) for seed in range(6)]
    seen = []

    def told(config: RunConfig, record: dict[str, Any]) -> None:
        seen.append(config.train.seed)
        if len(seen) == 2:
            Timer(record["result"]["seconds"] / 3, second).start()  # in the middle of the next

    caplog.set_level(logging.WARNING, "mnagt.experiments.executors")
    run_trials(configs, Ledger(tmp_path / "there.jsonl"), ray=RayConfig(cluster.address), on_trial=told)
    assert sorted(seen) == list(range(6))
    assert [record.getMessage()[:17] for record in caplog.records] == ["a worker was lost"]
    run_trials(configs, Ledger(tmp_path / "here.jsonl"), jobs=2)
    assert figures(tmp_path / "there.jsonl") == figures(tmp_path / "here.jsonl")


@pytest.mark.slow
def test_what_kills_its_worker_each_time_is_given_up(cluster, tmp_path):
    def fragile(seed: int) -> int:
        with (tmp_path / "begun").open("a") as file:
            file.write(f"{seed}\n")
        if seed == 3:
            os.kill(os.getpid(), 9)
        return seed * seed

    got, errors = {}, {}
    with run_parallel(fragile, [2, 3, 5], ray=RayConfig(cluster.address), device=lambda seed: "cpu") as outcomes:
        for seed, outcome in outcomes:
            try:
                got[seed] = outcome()
            except InputError as error:
                errors[seed] = str(error)
    assert got == {2: 4, 5: 25}
    assert list(errors) == [3]
    assert errors[3].startswith(f"{MAX_ATTEMPTS} workers in turn were lost at the same trial")
    assert sorted((tmp_path / "begun").read_text().split()) == ["2", *["3"] * MAX_ATTEMPTS, "5"]


@pytest.mark.slow
def test_a_node_with_other_data_is_refused(cluster, tmp_path, monkeypatch):
    """Here the first graph has another class than on the cluster."""
    with ZipFile(EMBEDDED / "MUTAG.zip") as there, ZipFile(tmp_path / "MUTAG.zip", "w") as here:
        for name in there.namelist():
            content = there.read(name)
            if name.endswith("graph_labels.txt"):
                assert content.startswith(b"1")
                content = b"-1" + content[1:]
            here.writestr(name, content)
    monkeypatch.setenv("MNAGT_DATA", str(tmp_path))
    trials._LOADED.clear()
    ledger = Ledger(tmp_path / "trials.jsonl")
    with pytest.raises(InputError, match=r"node \S+: has {.*}, and where it is asked for it is {.*into its MNAGT_DATA"):
        run_trials([CONFIG], ledger, ray=RayConfig(cluster.address))
    trials._LOADED.clear()
    assert ledger.by_key() == {}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("device", "config", "said"),
    [
        ("cuda:0", {}, "device cuda:0: Ray hands out GPUs by share; say cuda, cpu or auto"),
        ("cuda", {}, "no node of the Ray cluster has 1 CPUs and 0.25 of a GPU"),
        ("auto", {"cpus_per_trial": 99}, "no node of the Ray cluster has 99 CPUs; lower --cpus-per-trial"),
    ],
)
def test_what_no_node_has_is_not_waited_for(cluster, device, config, said, tmp_path):
    with pytest.raises(InputError, match=said):
        run_trials(
            [replace(CONFIG, device=device)],
            Ledger(tmp_path / "trials.jsonl"),
            ray=RayConfig(cluster.address, **config),
        )


def test_a_cluster_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InputError, match=r"no Ray cluster at 127\.0\.0\.1:1"):
        run_trials([CONFIG], Ledger(tmp_path / "trials.jsonl"), ray=RayConfig("127.0.0.1:1"))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_stopped_it_keeps_what_is_finished_and_goes_on(cluster, number, tmp_path):
    (tmp_path / "gin.toml").write_text(RECIPE.replace("epochs = 2", "epochs = 100"))
    words = [sys.executable, "-m", "mnagt", "trials", "gin.toml", "--seeds", "4", "--ledger", "it.jsonl"]
    words += ["--engine", "ray"]
    there = {**os.environ, "RAY_ADDRESS": cluster.address}
    with subprocess.Popen(words, cwd=tmp_path, env=there, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stderr is not None
        assert driver.stderr.readline().startswith("MUTAG gin seed ")
        time.sleep(0.2)
        driver.send_signal(number)
        rest = driver.stderr.read()
    assert driver.returncode == {signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}[number]
    assert "Traceback" not in rest
    done = figures(tmp_path / "it.jsonl")
    assert 1 <= len(done) < 4
    again = subprocess.run(words, cwd=tmp_path, env=there, capture_output=True, text=True, check=True)
    assert len(again.stderr.splitlines()) == 4 - len(done)
    assert figures(tmp_path / "it.jsonl").keys() == {0, 1, 2, 3}


@pytest.mark.slow
def test_a_search_on_ray_survives_the_loss_of_a_node(cluster, second, tmp_path):
    told = []

    def tell(trial: Any) -> None:
        told.append(trial)
        if len(told) == 2:
            Timer(trial.seconds / 3, second).start()

    search = TuneConfig(6, seeds=1, only=("lr",), storage=f"sqlite:///{tmp_path}/shared.db", heartbeat_timeout=2.0)
    longer = replace(CONFIG, train=replace(CONFIG.train, epochs=60))
    tuned = tune(longer, tmp_path / "out", search=search, ray=RayConfig(cluster.address), on_trial=tell)
    over = [trial.number for trial in tuned.trials if trial.state != "lost"]
    assert sorted(trial.number for trial in told) == over
    assert len(over) == 6
    assert len(tuned.trials) == 7
