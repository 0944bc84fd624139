"""Training, predictions and the service ask for nothing that only POSIX systems have. They were run on Linux only."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]

WITHOUT_POSIX = """
import json, os, signal, sys, threading, time, urllib.request
import fastapi, rdkit.Chem, rich, safetensors.torch, sklearn, torch, uvicorn  # these may ask for what they like

for name in ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for module, names in (
    (os, "fork forkpty getuid geteuid getgid getegid getloadavg killpg mkfifo nice sched_getaffinity setsid "
         "statvfs O_DIRECTORY O_NOFOLLOW"),
    (signal, "SIGALRM SIGCHLD SIGHUP SIGQUIT SIGUSR1 alarm setitimer"),
):
    for name in names.split():
        delattr(module, name)

from mnagt.cli import main
from mnagt.serve.app import create_app, uvicorn_options
from mnagt.serve.config import ServeConfig

small = ["--model", "mnagt", "--dim", "8", "--depth", "1", "--epochs", "2", "--device", "cpu"]
assert main(["train", "graphs.csv", "--target", "y", *small, "--out", "run"]) == 0
assert main(["predict", "run", "graphs.csv", "--out", "predictions.csv"]) == 0
assert main(["screen", "run", "graphs.csv", "--out", "screened", "--jobs", "1"]) == 0
config = ServeConfig()
server = uvicorn.Server(uvicorn.Config(create_app("run", config), port=0, **uvicorn_options(config)))
thread = threading.Thread(target=server.run)
thread.start()
while not server.started:
    time.sleep(0.01)
address = "http://127.0.0.1:%d/predict" % server.servers[0].sockets[0].getsockname()[1]
body = json.dumps({"smiles": ["CCO"]}).encode()
answer = urllib.request.urlopen(urllib.request.Request(address, body, {"Content-Type": "application/json"}))
print(sorted(json.load(answer)["predictions"][0]))
server.should_exit = True
thread.join()
"""


def run_program(program: str, folder: Path) -> str:
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


def test_training_predictions_and_the_service_do_without_what_windows_lacks(tmp_path):
    rows = [f"{'C' * (n % 9 + 1)}{'ON'[n % 2]},{'yes' if n % 2 else 'no'}" for n in range(40)]
    (tmp_path / "graphs.csv").write_text("smiles,y\n" + "\n".join(rows) + "\n")
    assert run_program(WITHOUT_POSIX, tmp_path) == "['distance', 'p(no)', 'p(yes)', 'prediction']"
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 41
    assert len((tmp_path / "screened" / "part-00000.csv").read_text().splitlines()) == 41


def test_the_metadata_names_linux_and_other_systems_are_warned_at_import(tmp_path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    systems = [each for each in project["classifiers"] if each.startswith("Operating System")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    program = """
import sys, warnings
warnings.simplefilter("always")
with warnings.catch_warnings(record=True) as caught:
    if len(sys.argv) > 1:
        sys.platform = sys.argv[1]
    import mnagt
print([str(each.message) for each in caught])
"""
    assert run_program(program, tmp_path) == "[]"
    elsewhere = "import sys; sys.argv.append('win32')\n" + program
    assert run_program(elsewhere, tmp_path) == "['mnagt was tested on Linux only; on win32 parts of it may fail']"
