"""Labels, splits and groups by tables, of which each row names an image."""

from collections.abc import Iterable, Mapping, Sequence

from lockstep.errors import LockstepError, option
from lockstep.pictures.manifest import SPLITS, Manifest, Row, split_of
from lockstep.pictures.paths import PathIndex
from lockstep.pictures.table import Line, Table, read_table
from lockstep.text import few, listed, noted

_TITLES = 5  # tables that a message names


def by_tables(manifest: Manifest) -> Manifest:
    """Add what the tables say that name the images, unless the folders say the same.

    Tables and folders that name different classes are a problem, if the user has not chosen.
    """
    source, listing = manifest.source, manifest.listing
    by_folder = manifest.by == "names" or len({row.labels for row in manifest.rows.values()}) > 1
    asked = source.layout == "table" or any(
        (source.label_column, source.group_column, source.split_column)
    )
    beside = [f"../{path.name}" for path in listing.root.resolve().parent.glob("*.[cCtT][sS][vV]")]
    index = PathIndex(listing.root, listing.images)
    # A text with the name of an image is about this image, as an annotation of YOLO.
    named = [path for path in listing.tables if not index.about_one(path)]
    paths = sorted(named or beside) if listing.images else []
    if not asked and (not paths or (source.layout and (by_folder or not manifest.partial))):
        remedy = f"name its {option('split_column')} or {option('group_column')} to use it"
        unread = sorted(named) if source.layout else []
        return manifest.adding(notes=noted(unread, "table", "that is not read", remedy))
    by_folder = by_folder and source.layout != "table" and not source.label_column
    tables, errors = _tables(manifest, paths, index, by_folder)
    if asked and not (tables or errors or manifest.partial):
        errors = ["no CSV here names the images: add one with the columns file and label"]
    if not tables or (errors and by_folder):
        return manifest.adding(errors)
    notes = [f"not read: {error}" for error in errors]
    manifest = manifest.adding(notes=[*notes, *(table.note for table in tables if table.note)])
    titles = _titles(tables)
    needed = manifest.rows if by_folder else [*manifest.rows, *manifest.unlabelled]
    lines, problems = _matched(tables, index, needed, by_folder, source.multi_label)
    if by_folder:
        manifest = manifest.adding(_contradiction(manifest, lines, titles))
        if manifest.problems or not any(line.split or line.group for line in lines.values()):
            return manifest
        lines = {
            path: lines[path]._replace(labels=row.labels)
            for path, row in manifest.rows.items()
            if path in lines
        }
    else:
        columns = [*dict.fromkeys(name for table in tables for name in table.columns)]
        of = f"the columns {few(columns)} of " if columns else ""
        manifest = manifest._replace(by="table", columns=columns, origin=of + titles)
    problems = problems and [*errors, *problems]
    unknown = sorted({line.split for line in lines.values() if not split_of(line.split)} - {""})
    problems += noted(unknown, "name", f"of a split in {titles}", "call it train, val or test")
    manifest = manifest._replace(table=titles).adding(problems)
    return manifest if manifest.problems else _as_stated(manifest, lines)


def _tables(
    manifest: Manifest,
    paths: Sequence[str],
    index: PathIndex,
    by_folder: bool,
    strict: bool = False,
) -> tuple[list[Table], list[str]]:
    """Return the tables of labels at `paths`, and what is wrong with others or with all of them, a
    sentence each. Some may have labels, and others the splits or groups of the same images, unless
    each is to be read as if it were alone, `strict`.
    """
    source = manifest.source
    tables = list[Table]()
    errors = list[str]()
    other = "give each class a folder with its images"
    if by_folder:
        other = f"add {option('layout', manifest.by)}"
    for path in paths:
        try:
            if table := read_table(path, index, source, by_folder, strict):
                tables.append(table)
        except LockstepError as error:
            errors.append(f"{error}, or {other}")
    first = [table.lines[0] for table in tables]
    lacking = not (by_folder or any(line.labels is not None for line in first))
    lacking |= bool(source.split_column) and not any(line.split for line in first)
    lacking |= bool(source.group_column) and not any(line.group for line in first)
    if lacking and not strict:
        return _tables(manifest, paths, index, by_folder, strict=True)
    versions = [table for table in tables if table.alone]
    if len({table.folder for table in versions}) < len(versions):
        alike = _titles(versions)
        return [], [f"{alike} are tables of labels: keep one, and move the others away"]
    # Datasets of Hugging Face may have several configurations of the same images.
    places = {
        (line.split, table.folder)
        for line, table in zip(first, tables, strict=True)
        if line.labels is not None and not table.alone
    }
    if len(places) > len({split for split, _ in places}):
        folders = few(sorted({folder for _, folder in places}))
        return [], [f"a split is in several of the folders {folders}: give one of them"]
    return tables, errors


def _titles(tables: Sequence[Table]) -> str:
    titles = [table.title for table in tables]
    return listed([*titles[:_TITLES], *[f"{len(titles) - _TITLES} more"] * (len(titles) > _TITLES)])


def _contradiction(manifest: Manifest, lines: Mapping[str, Line], titles: str) -> list[str]:
    """Return the problem that folders and tables name different classes, if the user has not chosen
    between them.
    """
    if manifest.source.layout or manifest.by != "folders":
        return []
    for path, line in lines.items():
        own = manifest.rows[path].labels if path in manifest.rows else ()
        if (line.labels or ()) != own:
            said, other = "names it too", option("label_column", "NAME")
            if line.labels:
                said, other = f"says {listed(line.labels)}", option("layout", "table")
            return [
                f"{path} is {listed(own) or 'in no class'} by its folder, and {titles} {said}: "
                f"choose with {option('layout', 'folders')} or {other}"
            ]
    return []


def _as_stated(manifest: Manifest, lines: Mapping[str, Line]) -> Manifest:
    """Give the images what their lines say. Folders may still be splits. Those without a line are
    in no class.
    """
    rows = {
        path: Row(
            split_of(line.split) or manifest.split_at(path) or "", line.labels or (), line.group
        )
        for path, line in lines.items()
    }
    # Some lie in no split's folder, so no folder is a split.
    if not all(row.split for row in rows.values()):
        rows = {path: row._replace(split="") for path, row in rows.items()}
    manifest = manifest.labelled(rows)
    folders = {split: "" for split in ("", *SPLITS) if split in manifest.classes}
    problem = f"{manifest.table} has no split train: call the split of the training images train"
    lacking = not (manifest.partial or {"", "train"} & folders.keys())
    return manifest._replace(folders=folders).adding([problem] if lacking else [])


def _matched(
    tables: Sequence[Table],
    index: PathIndex,
    paths: Iterable[str],
    by_folder: bool,
    multi_label: bool,
) -> tuple[dict[str, Line], list[str]]:
    """Return what all tables say of each of `paths`, and what does not fit, a sentence each. With
    `multi_label` data, the labels of all rows of an image count.
    """
    lines: dict[str, Line] = {}
    absent = list[str]()
    doubtful = list[str]()
    differing = list[str]()
    for table in tables:
        for line in table.lines:
            images = index.find(line.file, table.folder)
            if len(images) != 1:
                (doubtful if images else absent).append(line.file)
                continue
            if images[0] in lines:
                before = lines[images[0]]
                if together := _together(before, line, multi_label and not table.columns):
                    line = together
                else:
                    differing.append(images[0])
            lines[images[0]] = line
    title = _titles(tables)
    lacking = [
        path
        for path in paths
        if path not in lines or not (by_folder or lines[path].labels is not None)
    ]
    problems = noted(
        lacking, "image", f"without a row in {title}", "add a row, or move the image away"
    )
    for what in ("split", "group"):
        without = [path for path, line in lines.items() if not getattr(line, what)]
        if len(without) < len(lines):
            remedy = f"give a {what} to all, or to none"
            problems += noted(without, "image", f"without a {what} in {title}", remedy)
    equal = f"of {title} with several images of that name"
    return lines, [
        *noted(absent, "row", f"of {title} without an image", "add the image, or remove the row"),
        *noted(doubtful, "row", equal, "give the path of each"),
        *problems,
        *noted(differing, "image", f"with rows in {title} that differ", "keep one row of each"),
    ]


def _together(before: Line, line: Line, join: bool) -> Line | None:
    """Return what two lines say of one image; None if they contradict each other. To `join` means
    that the image has the labels of both.
    """
    labels = line.labels if before.labels is None else before.labels
    if join and labels is not None:
        labels = tuple(sorted({*labels, *(line.labels or ())}))
    both = Line(line.file, labels, before.split or line.split, before.group or line.group)
    agreed = all(
        (join or each.labels in (None, labels))
        and each.split in ("", both.split)
        and each.group in ("", both.group)
        for each in (before, line)
    )
    return both if agreed else None
