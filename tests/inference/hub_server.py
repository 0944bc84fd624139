"""A small Hugging Face Hub on this machine: repositories of files, over HTTP as ``huggingface_hub`` speaks it."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Hub:
    """What the server holds, and what it was asked."""

    address: str = ""
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """The files of each repository."""
    commits: list[dict[str, Any]] = field(default_factory=list)
    """The header of each commit."""
    downloads: list[str] = field(default_factory=list)

    def sha(self, repo: str) -> str:
        content = b"".join(name.encode() + data for name, data in sorted(self.files[repo].items()))
        return hashlib.sha1(content).hexdigest()

    def commit(self, repo: str, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    self.commits.append(value)
                case "file":
                    self.files[repo][value["path"]] = base64.b64decode(value["content"])
                case "deletedFile":
                    del self.files[repo][value["path"]]
                case other:
                    raise AssertionError(other)


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None: ...

    def reply(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def reply_json(self, content: Any) -> None:
        self.reply(200, json.dumps(content).encode(), Content_Type="application/json")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        match urlsplit(self.path).path.strip("/").split("/"):
            case ["api", "repos", "create"]:
                asked = json.loads(body)
                repo = f"{asked.get('organization') or 'me'}/{asked['name']}"
                self.hub.files.setdefault(repo, {".gitattributes": b""})
                self.reply_json({"url": f"{self.hub.address}/{repo}", "name": repo, "id": "1"})
            case ["api", "validate-yaml"]:
                self.reply_json({"errors": [], "warnings": []})
            case ["api", "models", _, _, "preupload", _]:
                files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
                self.reply_json({"files": [{**file, "shouldIgnore": False} for file in files]})
            case ["api", "models", owner, name, "commit", _]:
                repo = f"{owner}/{name}"
                self.hub.commit(repo, [json.loads(line) for line in body.splitlines()])
                sha = self.hub.sha(repo)
                address = f"{self.hub.address}/{repo}/commit/{sha}"
                self.reply_json({"success": True, "commitOid": sha, "commitUrl": address})
            case _:
                self.reply(404, b"{}")

    def do_GET(self) -> None:
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        files = self.hub.files.get(repo)
        if files is None:
            self.reply(404, b"{}", X_Error_Code="RepoNotFound")
            return
        match parts:
            case ["api", "models", _, _, "tree", *_]:
                self.reply_json([
                    {"type": "file", "path": path, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for path, data in files.items()
                ])  # fmt: skip
            case ["api", "models", *_]:
                siblings = [{"rfilename": path} for path in files]
                self.reply_json({"id": repo, "sha": self.hub.sha(repo), "siblings": siblings, "private": False})
            case [_, _, "resolve", _, path]:
                if self.command == "GET":
                    self.hub.downloads.append(path)
                tag = f'"{hashlib.sha1(files[path]).hexdigest()}"'
                self.reply(200, files[path], ETag=tag, X_Repo_Commit=self.hub.sha(repo))
            case _:
                self.reply(404, b"{}")

    def do_HEAD(self) -> None:
        self.do_GET()


@contextmanager
def serve_hub() -> Iterator[Hub]:
    """A hub that listens as long as the block runs."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
