"""Folders of images: `scan` lists the files, `index` reads them once, `survey` splits them, `reader` loads them."""
