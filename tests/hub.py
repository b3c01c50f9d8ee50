"""A server with the part of the Hugging Face Hub's interface that downloads a dataset, and writers
of the files that its datasets have.
"""

import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from pyarrow import ipc, parquet

COMMIT = hashlib.sha1(b"a commit").hexdigest()


def rows_table(images, classes=(), **columns):
    """A table as the package datasets makes it of images, which are pairs of bytes and path. Those
    of the `columns` that `classes` names have numbers of classes.
    """
    kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    values = [None if data is None else {"bytes": data, "path": path} for data, path in images]
    features = {"image": {"_type": "Image"}}
    for name, names in dict(classes).items():
        own = {"names": names, "_type": "ClassLabel"}
        several = isinstance(columns[name][0], list)
        features[name] = {"feature": own, "_type": "List"} if several else own
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    table = pa.table({"image": pa.array(values, kind), **columns})
    return table.replace_schema_metadata(metadata)


def write_parquet(path, table, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, **options)


def save_to_disk(folder, table):
    """Write what `Dataset.save_to_disk` does, and a file of its cache, which is no part of it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("data-00000-of-00001.arrow", "cache-1.arrow"):
        with ipc.new_stream(folder / name, table.schema) as stream:
            stream.write_table(table, max_chunksize=3)
    files = [{"filename": "data-00000-of-00001.arrow"}]
    (folder / "state.json").write_text(json.dumps({"_data_files": files, "_split": None}))
    (folder / "dataset_info.json").write_text("{}")


def of_folder(root, split):
    """The table of the images in root/split/CLASS, in the order of their SHA-256."""
    paths = [path for path in (root / split).rglob("*") if path.is_file()]
    paths.sort(key=lambda path: hashlib.sha256(path.read_bytes()).digest())
    names = sorted({path.parent.name for path in paths})
    images = [(path.read_bytes(), path.name) for path in paths]
    labels = [names.index(path.parent.name) for path in paths]
    return rows_table(images, {"label": names}, label=labels)


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        path = unquote(urlsplit(self.path).path)
        name, root = self.server.dataset
        files = {str(each.relative_to(root)): each for each in root.rglob("*") if each.is_file()}
        base = f"/api/datasets/{name}"
        if path in (f"{base}/revision/main", f"{base}/revision/v1", f"{base}/revision/{COMMIT}"):
            siblings = [{"rfilename": file} for file in files]
            return self.answer({"id": name, "sha": COMMIT, "siblings": siblings, "tags": []})
        if path == base:
            return self.answer({"id": name, "sha": COMMIT, "siblings": [], "tags": []})
        if path == f"{base}/tree/{COMMIT}":
            return self.answer(
                [
                    {
                        "type": "file",
                        "path": file,
                        "size": each.stat().st_size,
                        "oid": hashlib.sha1(each.read_bytes()).hexdigest(),
                    }
                    for file, each in files.items()
                ]
            )
        file = files.get(path.removeprefix(f"/datasets/{name}/resolve/{COMMIT}/"))
        if file is None:
            return self.answer({"error": "Repository not found"}, 404, "RepoNotFound")
        return self.send(file.read_bytes(), 200)

    do_HEAD = do_GET

    def answer(self, value, code=200, error=None):
        self.send(json.dumps(value).encode(), code, error)

    def send(self, data, code, error=None):
        self.send_response(code)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha1(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", COMMIT)
        if error:
            self.send_header("X-Error-Code", error)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    def log_message(self, *args):
        pass


@contextmanager
def hub(name: str, root: Path):
    """Serve the files in `root` as those of the dataset `name`, at one commit. Yield the address and
    the list of what is asked.
    """
    with ThreadingHTTPServer(("127.0.0.1", 0), _Handler) as server:
        server.dataset, server.asked = (name, root), []
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server.asked
        finally:
            server.shutdown()
            thread.join()
