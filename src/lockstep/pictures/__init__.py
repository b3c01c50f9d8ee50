"""From files of pictures to pixels in memory.

In the order of the work: `listing.py` lists a folder; `folders.py`, `names.py` and `tables.py` make
its `manifest.py`, which names the labels, split and group of each image; `doubts.py` says what can
be read in two ways; `index.py` reads the files; `survey.py` divides them into splits; `check.py`
reports what it found; `decode.py` decodes; and `pixels.py` keeps the pixels. `data/folder.py` makes
datasets of them.
"""
