"""Callers have tokens and rates of their own; pages of other sites and HTTPS are allowed where that is set."""

import re
import shutil
import ssl
import subprocess

import httpx
import pytest

from mnagt.cli import main
from mnagt.errors import InputError
from mnagt.serve.app import check_tls
from mnagt.serve.callers import Callers, read_callers
from mnagt.serve.config import ServeConfig, read_token

TOKENS = """
[alice]
token = "alice-0123456789abc"
per_minute = 3
[bob]
token = "bob-0123456789abcdef"
"""
ALICE, BOB = ({"Authorization": f"Bearer {token}"} for token in ("alice-0123456789abc", "bob-0123456789abcdef"))


@pytest.fixture
def tokens(tmp_path) -> str:
    path = tmp_path / "tokens.toml"
    path.write_text(TOKENS)
    return str(path)


def test_each_caller_has_a_token_and_a_rate(start, molecules, tokens):
    at = start(molecules, tokens=tokens, token="the-one-of-the-environment")

    def ask(headers: dict[str, str]) -> httpx.Response:
        return httpx.post(f"{at}/predict", json={"smiles": ["C"]}, headers=headers)

    assert [ask(ALICE).status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = ask(ALICE)
    assert "more requests than alice may send" in refused.json()["detail"]
    assert 1 <= int(refused.headers["retry-after"]) <= 20
    assert [ask(BOB).status_code for _ in range(9)] == [200] * 9
    assert ask({"Authorization": "Bearer the-one-of-the-environment"}).status_code == 200
    assert httpx.get(f"{at}/model", headers=ALICE).status_code == 200  # costs nothing
    assert ask({}).status_code == ask({"Authorization": "Bearer alice"}).status_code == 401
    metrics = httpx.get(f"{at}/metrics", headers=BOB).text
    assert 'mnagt_caller_requests_total{caller="alice",status="200"} 3\n' in metrics
    assert 'mnagt_caller_requests_total{caller="alice",status="429"} 2\n' in metrics


def test_the_token_is_asked_for_before_the_body_is_read(start, molecules, tokens):
    at = start(molecules, tokens=tokens, max_body=100)
    large = httpx.post(f"{at}/predict", content=b"x" * 200)
    assert large.status_code == 401
    assert large.headers["www-authenticate"] == "Bearer"
    assert httpx.get(f"{at}/nothing").status_code == 401
    assert {httpx.get(at + path).status_code for path in ("/", "/page.js", "/livez", "/v2/health/ready")} == {200}


def test_a_token_on_the_command_line_is_advised_against(tmp_path, capsys):
    assert main(["serve", str(tmp_path), "--token", "0123456789abcdef"]) == 2
    assert "set MNAGT_TOKEN, or use --tokens FILE" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["serve", "--help"])
    assert not re.search(r"--token\b", capsys.readouterr().out)


def test_the_environment_gives_a_token_where_there_is_none(monkeypatch):
    monkeypatch.setenv("MNAGT_TOKEN", "of-the-environment")
    assert read_token(ServeConfig()).token == "of-the-environment"
    assert read_token(ServeConfig(token="of-a-file")).token == "of-a-file"


def test_a_bucket_fills_up_in_a_minute(tokens):
    clock = [0.0]
    callers = Callers(ServeConfig(tokens=tokens), lambda: clock[0])
    assert [callers.count("alice") for _ in range(4)] == [0, 0, 0, pytest.approx(20)]
    clock[0] = 19.0
    assert callers.count("alice") == pytest.approx(1)
    clock[0] = 20.1
    assert callers.count("alice") == 0
    clock[0] = 1000.0
    assert [callers.count("alice") > 0 for _ in range(4)] == [False, False, False, True]
    assert not any(callers.count("bob") for _ in range(1000))
    shared = Callers(ServeConfig(tokens=tokens, workers=3), lambda: clock[0])
    assert [shared.count("alice") > 0 for _ in range(2)] == [False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "no caller in it"),
        ('[a]\ntoken = "short"', "the token of a has fewer than 16"),
        ('["a b"]\ntoken = "0123456789abcdef"', "is no name of a caller"),
        ('[a]\ntoken = "0123456789abcdef"\nper_minute = 0', "tokens.toml: a: per_minute must be above 0"),
        ('[a]\ntoken = "0123456789abcdef"\nrate = 1', "no setting 'rate'"),
        ('[a]\ntoken = "0123456789abcdef"\n[b]\ntoken = "0123456789abcdef"', "two callers have the same token"),
        ('a = "0123456789abcdef"', r"a: expected a table, \[a\] with token"),
        ('[a]\ntoken = ["0123456789abcdef"]', r"a: expected a table, \[a\] with token"),
        ("[a]\nper_minute = 6", "tokens.toml: a: no token in it"),
        ("[a", "not TOML"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_read_is_refused_without_telling_any(tmp_path, content, message):
    (tmp_path / "tokens.toml").write_text(content)
    with pytest.raises(InputError, match=message) as refusal:
        read_callers(tmp_path / "tokens.toml")
    assert "0123456789" not in str(refusal.value)


@pytest.mark.parametrize("content", [None, "", "[a", 'a = "0123456789abcdef"'])
@pytest.mark.parametrize("workers", [1, 2])
def test_nothing_is_served_without_the_file_of_tokens(content, workers, molecules, tmp_path, capsys):
    if content is not None:
        (tmp_path / "tokens.toml").write_text(content)
    molecules.save(tmp_path / "model")
    words = ["--tokens", str(tmp_path / "tokens.toml"), "--workers", str(workers)]
    assert main(["serve", str(tmp_path / "model"), *words]) == 2
    printed = capsys.readouterr()
    assert (printed.out, "tokens.toml" in printed.err, "0123456789" in printed.err) == ("", True, False)


@pytest.mark.parametrize("token", ["0123456789abcdef\n", " 0123456789abcdef", "01234567\n89abcdef"])
def test_a_token_that_no_header_holds_is_refused(token):
    with pytest.raises(InputError, match="the token of default has a line break, or a blank"):
        Callers(ServeConfig(token=token))


def test_the_caller_of_the_environment_is_not_in_the_file(tmp_path):
    (tmp_path / "tokens.toml").write_text('[default]\ntoken = "0123456789abcdef"')
    with pytest.raises(InputError, match=r"\[default\] is the caller of MNAGT_TOKEN"):
        Callers(ServeConfig(tokens=str(tmp_path / "tokens.toml"), token="of-the-environment"))


def test_a_rate_may_be_less_than_one_a_minute(tmp_path):
    (tmp_path / "tokens.toml").write_text('[a]\ntoken = "0123456789abcdef"\nper_minute = 0.5')
    callers = Callers(ServeConfig(tokens=str(tmp_path / "tokens.toml")), lambda: 0.0)
    assert [callers.count("a") for _ in range(2)] == [0, pytest.approx(120)]


def test_pages_of_other_sites_may_ask_where_that_is_allowed(start, molecules, at):
    asked = {"Origin": "https://lab.example", "Access-Control-Request-Method": "POST"}
    asked |= {"Access-Control-Request-Headers": "authorization,content-type"}
    open_one = start(molecules, cors_origins=("https://lab.example/",), token="0123456789abcdef")
    allowed = httpx.options(f"{open_one}/predict", headers=asked)
    assert (allowed.status_code, allowed.headers["access-control-allow-origin"]) == (200, "https://lab.example")
    assert httpx.options(f"{open_one}/predict", headers=asked | {"Origin": "https://other.example"}).status_code == 400
    answer = httpx.post(
        f"{open_one}/predict",
        json={"smiles": ["C"]},
        headers={"Origin": "https://lab.example", "Authorization": "Bearer 0123456789abcdef"},
    )
    assert answer.headers["access-control-allow-origin"] == "https://lab.example"
    assert "X-Model" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-origin" not in httpx.options(f"{at}/predict", headers=asked).headers


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", cert]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_https_where_there_is_a_certificate(start, molecules, certificate):
    cert, key = certificate
    at = start(molecules, tls_cert=cert, tls_key=key).replace("http:", "https:")
    trusted = ssl.create_default_context(cafile=cert)
    assert httpx.post(f"{at}/predict", json={"smiles": ["C"]}, verify=trusted).status_code == 200
    with pytest.raises(httpx.TransportError):
        httpx.get(at.replace("https:", "http:") + "/livez")


def test_a_certificate_that_cannot_be_used_is_refused(certificate, tmp_path):
    cert, key = certificate
    check_tls(ServeConfig(tls_cert=cert, tls_key=key))
    check_tls(ServeConfig())
    with pytest.raises(InputError, match="--tls-key is the key of a certificate"):
        check_tls(ServeConfig(tls_key=key))
    for wrong in (ServeConfig(tls_cert=cert), ServeConfig(tls_cert=str(tmp_path / "none.pem"))):
        with pytest.raises(InputError, match="no certificate with its key"):
            check_tls(wrong)
