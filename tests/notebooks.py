"""Run a notebook of docs/notebooks and write it with its outputs as a page of the site.

The sources are plain Python (jupytext's percent format), so that they are read, linted and compared like any other.
They are run in a scratch folder; the page and its pictures go to build/notebooks.

    python -m tests.notebooks docs/notebooks/first_map.py
"""

from __future__ import annotations

import base64
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = REPOSITORY / "build" / "notebooks"
OBJECTS = re.compile(r"<matplotlib|Text\(")  # what drawing returns
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def run(source: Path, pages: Path = PAGES) -> float:
    """Execute a notebook, write its page, and return the seconds that it took. A cell that fails raises."""
    import jupytext
    from nbclient import NotebookClient

    notebook = jupytext.read(source)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
        os.environ["PYTHONPATH"] = paths
        NotebookClient(notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    seconds = time.monotonic() - begun
    pages.mkdir(parents=True, exist_ok=True)
    text = "\n\n".join(_cells(source.stem, notebook.cells, pages))
    (pages / f"{source.stem}.md").write_text(text + "\n", encoding="utf-8")
    return seconds


def _cells(name: str, cells: Iterable[Any], pages: Path) -> Iterable[str]:
    pictures = 0
    for cell in cells:
        if cell.cell_type == "markdown":
            yield cell.source
            continue
        yield f"```python\n{cell.source}\n```"
        for output in cell.outputs:
            if output.get("name") == "stderr":
                continue  # messages of the program, such as that a part has few fields
            data = output.get("data", {})
            if "image/png" in data:
                pictures += 1
                picture = pages / f"{name}-{pictures}.png"
                picture.write_bytes(base64.b64decode(data["image/png"]))
                yield f"![Output]({picture.name})"
                continue
            text = data.get("text/plain", output.get("text", ""))
            if text and not OBJECTS.match(text):
                yield f"```text\n{COLOURS.sub('', text).rstrip()}\n```"


def main() -> None:
    for source in map(Path, sys.argv[1:]):
        print(f"{source.stem}: {run(source):.1f} s")


if __name__ == "__main__":
    main()
