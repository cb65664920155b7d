"""Make the pictures of the tutorial: run its commands, copy what they draw, and take screenshots of their pages.

    make pictures                          those of the demonstration scene
    make pictures SAFE=../t31tej           also those of real images: a folder with safe/ and parcels/

Commands that ran before are not run again: build/pictures keeps their results; remove it to begin anew. Needs Chromium.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

DOCS = Path(__file__).resolve().parent
WORK = DOCS.parent / "build" / "pictures"
IMAGES = DOCS / "images" / "tutorial"
BROWSER = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--virtual-time-budget=10000", "--run-all-compositor-stages-before-draw"),
)
WIDEST = 1400  # pixels of a picture in the pages


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    scene = follow(["demonstration.md"], WORK / "scene")
    keep(scene / "sheet.png", "demo-sheet")
    keep(scene / "map.png", "demo-map")
    keep(scene / "known.png", "demo-unknown")
    screenshot(newest(scene, "star*/report.html"), "demo-report", 1150, 1100)
    screenshot(scene / "map.html", "demo-page", 1150, 800)
    if len(sys.argv) > 1:
        data = Path(sys.argv[1]).resolve()
        if not (data / "safe").is_dir() or not (data / "parcels").is_dir():
            raise SystemExit(f"{data}: has no folders safe and parcels")
        real = WORK / "real"
        real.mkdir(parents=True, exist_ok=True)
        for name in ("safe", "parcels"):
            if not (real / name).exists():
                (real / name).symlink_to(data / name)
        table = (DOCS / "tutorial" / "real-images.md").read_text(encoding="utf-8").split("```yaml\n")[1].split("```")[0]
        (real / "classes.yaml").write_text(table, encoding="utf-8")
        follow(["real-images.md", "real-map.md"], real)
        keep(real / "sheet.png", "t31-sheet")
        keep(real / "map.png", "t31-map")
        screenshot(newest(real, "star*/report.html"), "t31-report", 1150, 1100)
        screenshot(real / "map.html", "t31-page", 1150, 800)
        screenshot(newest(real, "star*/*-check.html"), "t31-check", 1150, 2050, top=950)


def follow(pages: list[str], folder: Path) -> Path:
    """Run the console commands of some pages of the tutorial, each once."""
    folder.mkdir(parents=True, exist_ok=True)
    notes = folder / "done.txt"
    done = notes.read_text(encoding="utf-8").splitlines() if notes.exists() else []
    for page in pages:
        text = (DOCS / "tutorial" / page).read_text(encoding="utf-8").replace("\\\n", "")
        for command in re.findall(r"^\$ (cropstar .*?)(?:  #.*)?$", text, re.MULTILINE):
            if command in done:
                continue
            print(f"$ {command}", flush=True)
            subprocess.run([sys.executable, "-m", *shlex.split(command)], cwd=folder, check=True)
            with notes.open("a", encoding="utf-8") as file:
                file.write(f"{command}\n")
    return folder


def newest(folder: Path, pattern: str) -> Path:
    return max(folder.glob(f"data/runs/{pattern}"), key=lambda path: path.stat().st_mtime)


def keep(picture: Path, name: str, top: int = 0) -> None:
    """Copy a picture at the size that the pages show, in few colours: they are for looking at, not for measuring."""
    from PIL import Image

    with Image.open(picture) as image:
        image = image.convert("RGB").crop((0, top, *image.size))
        image.thumbnail((WIDEST, 4 * WIDEST))
        image.quantize(192).save(IMAGES / f"{name}.png", optimize=True)
    print(f"{name}.png", (IMAGES / f"{name}.png").stat().st_size // 1000, "kB", flush=True)


def screenshot(page: Path, name: str, width: int, height: int, top: int = 0) -> None:
    """A picture of a page, without its first `top` rows."""
    browser = next(filter(None, map(shutil.which, BROWSER)), None)
    if browser is None:
        raise SystemExit("no Chromium here: install it, or set it on the PATH")
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "page.png"
        window = [f"--user-data-dir={folder}/profile", f"--window-size={width},{height}", f"--screenshot={picture}"]
        subprocess.run([browser, *FLAGS, *window, page.resolve().as_uri()], check=True, capture_output=True)
        keep(picture, name, top)


if __name__ == "__main__":
    main()
