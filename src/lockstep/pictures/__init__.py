"""From files of pictures to pixels in memory.

In the order of the work: `scan.py` lists a folder, `table.py` reads tables of labels, `cells.py`
reads the cells with several labels, `named.py` finds labels in names of files, `photos.py` reads
the files and divides them into splits, `check.py` reports what it found, `decode.py` decodes, and
`pixels.py` keeps the pixels. `data/folder.py` makes datasets of them.
"""
