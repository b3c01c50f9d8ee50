"""A Hugging Face Hub on this machine: the few endpoints that huggingface_hub asks, with the answers
of the real one, for one user.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml

OWNER, TOKEN = "me", "hf_aVerySecretTokenOfMine"  # who may write, and see private repositories
TAG = "v1"  # of the last commit of each repository
LFS = (".safetensors", ".parquet")  # files that are stored apart, as by the Hub's .gitattributes


def sha1(content: bytes) -> str:
    """The object id that git gives a file."""
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()


class Repository:
    """A repository: its commits by id in order, each with all its files."""

    def __init__(self, *, private: bool = False) -> None:
        self.private = private
        self.commits: dict[str, dict[str, bytes]] = {}

    def commit(self, files: dict[str, bytes]) -> str:
        """Add a commit that changes `files`. Return its id."""
        every = {**(self.commits[self.head] if self.commits else {}), **files}
        names = [[name, sha1(content)] for name, content in sorted(every.items())]
        new = hashlib.sha1(json.dumps([self.head, names]).encode()).hexdigest()
        self.commits[new] = every
        return new

    @property
    def head(self) -> str:
        return [*self.commits, "0" * 40][max(len(self.commits) - 1, 0)]


class Hub:
    """The server's state.

    repositories: by kind and name, as "models/me/photos". requests: lines and headers, as text.
    down: whether each request is answered with 503.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.stored: dict[str, bytes] = {}  # by SHA-256
        self.requests: list[str] = []
        self.down = False
        self.url = ""

    def add(self, name: str, files: dict[str, bytes], kind: str = "models", **options: Any) -> str:
        """Make a repository with one commit. Return the commit."""
        self.repositories[f"{kind}/{name}"] = repository = Repository(**options)
        return repository.commit(files)

    def add_dataset(self, name: str, root: Path) -> str:
        """Make a repository of the files in `root`. Return its commit."""
        paths = [path for path in root.rglob("*") if path.is_file()]
        files = {str(path.relative_to(root)): path.read_bytes() for path in paths}
        return self.add(name, files, "datasets")


class Refused(Exception):
    """An answer of the Hub that is an error: status, code, message, and the repository's name."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def answer(self, status: int, content: bytes = b"", **headers: object) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do(self) -> None:
        hub = self.hub
        hub.requests.append(f"{self.command} {self.path}\n{self.headers}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        try:
            if hub.down:
                raise Refused(503, "", "down")
            path = self.path.partition("?")[0]
            for pattern, name in ROUTES.items():
                if match := re.fullmatch(pattern, f"{self.command} {path}"):
                    return getattr(self, name)(body, **match.groupdict())
            raise Refused(404, "", f"no endpoint {path}")
        except Refused as refused:
            status, code, message, *name = refused.args
            text = json.dumps({"error": message, "url": "/".join([hub.url, *name])}).encode()
            return self.answer(status, text, X_Error_Code=code, X_Error_Message=message)

    do_GET = do_HEAD = do_POST = do_PUT = do

    @property
    def user(self) -> str | None:
        return OWNER if self.headers.get("Authorization") == f"Bearer {TOKEN}" else None

    def json(self, value: object) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json")

    def find(self, kind: str | None, name: str, *, write: bool = False) -> Repository:
        """The repository. One that is private does not exist for others."""
        repository = self.hub.repositories.get(f"{kind or 'models'}/{name}")
        if repository is None or (repository.private and self.user is None):
            raise Refused(404 if self.user else 401, "RepoNotFound", "Repository not found")
        if write and name.partition("/")[0] != self.user:
            raise Refused(403 if self.user else 401, "", "no right to write")
        return repository

    def at(self, repository: Repository, revision: str) -> str:
        revision = repository.head if revision in ("main", TAG) else revision
        if revision not in repository.commits:
            raise Refused(404, "RevisionNotFound", "Revision not found")
        return revision

    def info(self, body: bytes, kind: str, name: str, revision: str | None = None) -> None:
        repository = self.find(kind, name)
        commit = self.at(repository, revision or "main")
        files = repository.commits[commit]
        self.json({"id": name, "sha": commit, "siblings": [{"rfilename": each} for each in files]})

    def tree(self, body: bytes, kind: str, name: str, revision: str) -> None:
        repository = self.find(kind, name)
        files = repository.commits[self.at(repository, revision)]
        entries = [
            {"type": "file", "path": path, "oid": sha1(content), "size": len(content)}
            for path, content in files.items()
        ]
        for entry in entries:
            if (path := entry["path"]).endswith(LFS):
                oid = self.known(path, files[path])
                entry["lfs"] = {"oid": oid, "size": entry["size"], "pointerSize": 130}
        self.json(entries)

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        if self.user is None:
            raise Refused(401, "", "Invalid username or password.")
        owner = asked["organization"] or self.user
        if owner != self.user:
            raise Refused(403, "", "no right to write")
        name = f"{owner}/{asked['name']}"
        key = f"{asked.get('type') or 'model'}s/{name}"
        if key in self.hub.repositories:
            raise Refused(409, "", "You already created this repo", name)
        private = asked.get("visibility") == "private" or asked.get("private") is True
        self.hub.repositories[key] = Repository(private=private)
        self.hub.repositories[key].commit({".gitattributes": b"*.safetensors filter=lfs\n"})
        self.json({"url": f"{self.hub.url}/{name}", "name": name})

    def validate(self, body: bytes) -> None:
        text = json.loads(body)["content"]
        assert isinstance(yaml.safe_load(text.split("---\n")[1]), dict)
        self.json({"errors": [], "warnings": []})

    def preupload(self, body: bytes, kind: str, name: str) -> None:
        repository = self.find(kind, name, write=True)
        files = repository.commits[repository.head]
        self.json(
            {
                "files": [
                    {
                        "path": path,
                        "uploadMode": "lfs" if path.endswith(LFS) else "regular",
                        "shouldIgnore": False,
                        "oid": self.known(path, files[path]) if path in files else None,
                    }
                    for path in (each["path"] for each in json.loads(body)["files"])
                ]
            }
        )

    def known(self, path: str, content: bytes) -> str:
        return hashlib.sha256(content).hexdigest() if path.endswith(LFS) else sha1(content)

    def batch(self, body: bytes, name: str) -> None:
        self.find("models", name, write=True)
        found = []
        for one in json.loads(body)["objects"]:
            href = f"{self.hub.url}/stored/{one['oid']}"
            actions = {} if one["oid"] in self.hub.stored else {"upload": {"href": href}}
            found.append({**one, **({"actions": actions} if actions else {})})
        self.json({"transfer": "basic", "objects": found})

    def store(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.stored[oid] = body
        self.answer(200)

    def commit(self, body: bytes, kind: str, name: str) -> None:
        repository = self.find(kind, name, write=True)
        files = {}
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.stored[value["oid"]]
        new = repository.commit(files)
        self.json({"commitUrl": f"{self.hub.url}/{name}/commit/{new}", "commitOid": new})

    def resolve(self, body: bytes, kind: str | None, name: str, revision: str, path: str) -> None:
        repository = self.find(kind, name)
        commit = self.at(repository, revision)
        if path not in repository.commits[commit]:
            raise Refused(404, "EntryNotFound", "Entry not found")
        content = repository.commits[commit][path]
        # The real one redirects to the file of a large one, on another host.
        self.answer(200, content, X_Repo_Commit=commit, ETag=f'"{self.known(path, content)}"')


_REPOSITORY = r"(?P<name>[\w.-]+/[\w.-]+)"
_OF_KIND = rf"/api/(?P<kind>models|datasets)/{_REPOSITORY}"
ROUTES = {
    rf"GET {_OF_KIND}(/revision/(?P<revision>[^/]+))?": "info",
    rf"GET {_OF_KIND}/tree/(?P<revision>[^/]+)": "tree",
    r"POST /api/repos/create": "create",
    r"POST /api/validate-yaml": "validate",
    rf"POST {_OF_KIND}/preupload/main": "preupload",
    rf"POST {_OF_KIND}/commit/main": "commit",
    rf"POST /{_REPOSITORY}\.git/info/lfs/objects/batch": "batch",
    r"PUT /stored/(?P<oid>\w+)": "store",
    rf"(GET|HEAD) /((?P<kind>datasets)/)?{_REPOSITORY}/resolve/(?P<revision>[^/]+)/(?P<path>.+)": "resolve",
}


@contextmanager
def hub_here() -> Iterator[Hub]:
    """Serve a Hub within the context."""
    hub = Hub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
