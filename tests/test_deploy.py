"""What is in deploy/ passes its linters, starts the service with options that exist, and installs it."""

import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from mnagt.cli import _parser
from mnagt.serve.config import ServeConfig
from mnagt.settings import describe_fields

yaml = pytest.importorskip("yaml")
httpx = pytest.importorskip("httpx")
ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
HADOLINT = shutil.which("hadolint", path=Path(sys.executable).parent)


def instructions(name: str) -> list[str]:
    """The instructions of the Dockerfile with this name, each as one line."""
    joined = re.sub(r"\\\n", " ", DOCKERFILE)
    return [line.split(None, 1)[1] for line in joined.splitlines() if line.startswith(f"{name} ")]


def kubernetes() -> dict[str, dict[str, Any]]:
    texts = [path.read_text() for path in sorted(DEPLOY.glob("kubernetes*.yaml"))]
    return {each["kind"]: each for text in texts for each in yaml.safe_load_all(text)}


def commands() -> Iterator[tuple[str, list[str]]]:
    """The arguments of ``mnagt`` in each file."""
    yield "Dockerfile", json.loads(instructions("CMD")[-1])
    yield "compose.yaml", yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["mnagt"]["command"]
    (start,) = re.findall(r"^ExecStart=(.*)$", (DEPLOY / "mnagt.service").read_text(), re.MULTILINE)
    yield "mnagt.service", shlex.split(start)[1:]
    (container,) = kubernetes()["Deployment"]["spec"]["template"]["spec"]["containers"]
    yield "kubernetes.yaml", container["args"]


@pytest.mark.parametrize(
    ("file", "arguments"), list(commands()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_each_starts_the_service_with_options_that_exist(file, arguments):
    parsed, unknown = _parser(arguments).parse_known_args(arguments)
    assert not unknown
    assert (parsed.run.__name__, str(parsed.model).endswith("models")) == ("run_serve", True)
    given = {name: value for name in describe_fields(ServeConfig) if (value := getattr(parsed, name)) is not None}
    assert not any("token" == name for name in given), "a token on the command line can be seen by all"
    if file != "Dockerfile":
        assert "tokens" in given


def test_the_containers_have_no_rights():
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["mnagt"]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert "ports" not in service, "only the proxy is reached from outside"
    pod = kubernetes()["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    for stage in DOCKERFILE.split("\nFROM ")[2:]:
        ends_as = re.findall(r"^USER (\d+)$", stage, re.MULTILINE)[-1:]
        assert ends_as == ([] if stage.startswith("base AS service") else [str(pod["securityContext"]["runAsUser"])])
    probes = {name: each["httpGet"]["path"] for name, each in container.items() if name.endswith("Probe")}
    assert probes == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    labels = kubernetes()["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kubernetes()["Service"]["spec"]["selector"] == labels
    assert kubernetes()["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels


def test_prometheus_reads_metrics_with_a_token():
    template = kubernetes()["Deployment"]["spec"]["template"]
    assert "--tokens" in template["spec"]["containers"][0]["args"]
    assert not any(name.startswith("prometheus.io") for name in template["metadata"].get("annotations", {}))
    monitor = kubernetes()["PodMonitor"]["spec"]
    assert monitor["selector"]["matchLabels"] == template["metadata"]["labels"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in [port["name"] for port in template["spec"]["containers"][0]["ports"]]
    assert (endpoint["path"], endpoint["authorization"]["type"]) == ("/metrics", "Bearer")


@pytest.mark.skipif(shutil.which("caddy") is None, reason="caddy is not installed")
def test_the_proxy_speaks_https_for_the_service(tmp_path):
    """Caddy with the file of compose.yaml, a certificate of its own, and an echo for the service."""

    class Echo(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = len(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{self.headers['Host']} {self.headers['X-Forwarded-Proto']} {length}".encode())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as service:
        threading.Thread(target=service.serve_forever, daemon=True).start()
        proxied = (DEPLOY / "Caddyfile").read_text().replace("mnagt:8000", f"127.0.0.1:{service.server_port}")
        # nothing of the system is changed: no certificate for it, no port 80
        alone = "{\n\tadmin off\n\tskip_install_trust\n\tauto_https disable_redirects\n}\n"
        (tmp_path / "Caddyfile").write_text(alone + proxied)
        environ = os.environ | {"HOST": f"localhost:{port}", "XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)}
        words = ["caddy", "run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
        with subprocess.Popen(words, env=environ, stderr=subprocess.DEVNULL) as caddy:
            root = tmp_path / "caddy" / "pki" / "authorities" / "local" / "root.crt"
            try:
                while not root.exists():
                    assert caddy.poll() is None
                    time.sleep(0.1)
                https = httpx.Client(verify=ssl.create_default_context(cafile=str(root)), timeout=30)
                answer = httpx.Response(503)
                for _ in range(100):  # until it has a certificate
                    try:
                        answer = https.post(f"https://localhost:{port}/predict", content=b"x" * 1000)
                        break
                    except httpx.TransportError:
                        time.sleep(0.2)
                assert (answer.status_code, answer.text) == (200, f"localhost:{port} https 1000")
                too_long = https.post(f"https://localhost:{port}/predict", content=b"x" * 1_100_000)
                assert too_long.status_code in (413, 502)  # Caddy 2.6 says 502
            finally:
                caddy.terminate()
                service.shutdown()


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
def test_hadolint_finds_nothing():
    linted = subprocess.run([str(HADOLINT), str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_finds_nothing_and_little_is_exposed(tmp_path):
    unit = tmp_path / "mnagt.service"
    unit.write_text((DEPLOY / "mnagt.service").read_text().replace("/opt/mnagt/bin/mnagt", "/bin/true"))
    verified = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (verified.returncode, verified.stderr) == (0, "")
    exposed = ["systemd-analyze", "security", "--offline=true", "--threshold=20", str(unit)]
    assert subprocess.run(exposed, capture_output=True).returncode == 0, "an exposure above 2.0 of 10"


@pytest.mark.slow
def test_the_steps_of_the_image_install_a_service_that_answers(tmp_path):
    """In a virtual environment in place of /opt/mnagt, from the files that the image copies, in its environment."""
    source, home = tmp_path / "src", tmp_path / "mnagt"
    source.mkdir()
    for copied in instructions("COPY")[:-1]:
        *names, target = copied.split()
        for name in names:
            place = source / target / ("" if (ROOT / name).is_dir() else name)
            (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)
    build = instructions("RUN")[0].replace("/opt/mnagt", str(home)).replace("python -m", f"{sys.executable} -m")
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    subprocess.run(build, shell=True, cwd=source, check=True, env=clean)
    environ = dict(pair.split("=", 1) for pair in instructions("ENV")[0].split())
    environ = {name: value.replace("/tmp", str(tmp_path)) for name, value in environ.items() if name != "PATH"}
    mnagt, model = home / "bin" / "mnagt", tmp_path / "models" / "one"
    trained = [mnagt, "train", "MUTAG", "--model", "gin", "--epochs", "1", "--out", model, "--device", "cpu"]
    subprocess.run(trained, cwd=tmp_path, check=True, env=clean | environ)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [word.replace("/models", str(tmp_path / "models")) for word in json.loads(instructions("CMD")[-1])]
    process = subprocess.Popen([mnagt, *arguments, "--port", str(port)], cwd=tmp_path, env=clean | environ)
    try:
        body = json.dumps({"graphs": [{"nodes": 1, "node_labels": [[0]], "edge_labels": []}]}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{port}/predict", body, {"Content-Type": "application/json"})
        answer = None
        for _ in range(600):
            assert process.poll() is None
            try:
                answer = json.load(urllib.request.urlopen(request, timeout=10))
                break
            except urllib.error.HTTPError as error:
                pytest.fail(error.read().decode())
            except urllib.error.URLError:  # it is not there yet
                time.sleep(0.2)
        assert answer is not None
        assert set(answer["predictions"][0]) == {"prediction", "p(-1)", "p(1)", "distance"}
    finally:
        process.terminate()
        assert process.wait(60) is not None
