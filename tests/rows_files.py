"""Writers of files with images in their rows, as datasets have them."""

import hashlib
import json

import pyarrow as pa
from pyarrow import ipc, parquet


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
