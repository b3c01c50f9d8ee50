"""The pictures of README and docs are those that today's programs draw, and all are shown."""

import json
import os
import re
from pathlib import Path

import pytest
from benchmarks import curves, pictures
from benchmarks.browser import executable
from PIL import Image
from tests.documents import PAGES, ROOT
from tests.golden.test_portable import PORTABLE

REDRAW = "run make pictures"
BY_HAND = {"road.svg"}  # edited, not drawn
SHOWN = re.compile(r"pictures/([\w-]+\.(?:svg|png))")
