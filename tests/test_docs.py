"""The pages name commands, options, keys, files and exit codes that exist; their commands run, their links lead on."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import click
import pytest

from cropstar.cli.bench import suite
from cropstar.cli.main import COMMANDS, cropstar
from cropstar.config import find_config
from cropstar.config_keys import config_keys, config_sections
from cropstar.sources.class_rules import read_rules
from tests.prediction.test_page import CHROMIUM, QUIET

REPOSITORY = Path(__file__).resolve().parents[1]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), REPOSITORY / "deploy" / "README.md", *DOCS.rglob("*.md")])
HISTORY = REPOSITORY / "CHANGELOG.md"  # it names what is gone
COMMAND = re.compile(r"(?:^ {4,}|`|^\$ |^|-m |run )cropstar +([a-z]+)((?: [^`\n]*)?)(?:`|$)", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+?)(?: \{.*\})?$", re.MULTILINE)
CONSOLE = re.compile(r"```console\n(.*?)```", re.DOTALL)


def page_id(page: Path) -> str:
    return str(page.relative_to(REPOSITORY))


each_page = pytest.mark.parametrize("page", PAGES, ids=page_id)


@cache
def hooks() -> ModuleType:
    specification = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@cache
def texts() -> dict[Path, str]:
    """Every page of repository and site, those that are generated too. Of notebooks the source stands for the page."""
    found = {page: page.read_text(encoding="utf-8") for page in PAGES}
    found |= {DOCS / name: text for name, text in hooks().generated_pages().items()}
    for source in (DOCS / "notebooks").glob("*.py"):
        found[source.with_suffix(".md")] = re.sub(r"^# ?", "", source.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return found


# --- What a text names


def commands_of(text: str) -> list[tuple[str, list[str]]]:
    """Command and options of every line that calls cropstar."""
    joined = re.sub(r"\\\n\s*", " ", text)
    found = []
    for name, rest in COMMAND.findall(joined):
        if name not in COMMANDS and not rest.startswith(" -") and f"\ncropstar {name}" in joined:
            continue  # a sentence that begins with the word
        words = re.split(r"\s+#|\s{3,}", rest)[0].split()
        found.append((name, [word.split("=")[0] for word in words if re.match(r"--[a-z]", word)]))
    return found


@cache
def options_of(name: str) -> set[str]:
    command = cropstar.get_command(click.Context(cropstar), name)
    assert command is not None, name
    own = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if name == "bench":
        own |= {option for parameter in suite.params for option in parameter.opts}
    return own | {"--help"}


@cache
def every_option() -> set[str]:
    return {"--version"}.union(*(options_of(name) for name in COMMANDS))


@cache
def benchmark_options() -> set[str]:
    """Options of the programs in benchmarks/, which the pages of figures name."""
    sources = (REPOSITORY / "benchmarks").glob("*.py")
    return {option for path in sources for option in re.findall(r'"(--[a-z][a-z-]+)"', path.read_text("utf-8"))}


# Options of other programs that pages mention.
FOREIGN = {"--build-arg", "--nproc-per-node", "--scale", "--nthreads", "--no-deps", "--exit-code-from", "--signal"}
SECTIONS = "|".join(filter(None, config_sections()))


def problems(text: str, page: Path) -> Iterator[str]:
    """What a text says and the program does not know."""
    for name, options in commands_of(text):
        if name not in COMMANDS:
            yield f"no command: cropstar {name}"
            continue
        for option in set(options) - options_of(name):
            yield f"no option: cropstar {name} {option}"
    for option in re.findall(r"`(--[a-z][a-z-]+)[ `=]", text):
        known = every_option() | benchmark_options() | FOREIGN
        if option not in known and page.name not in ("README.md", "CONTRIBUTING.md"):
            yield f"no option: {option}"
    for key in keys_of(text):
        if key not in config_keys() and key not in config_sections():
            yield f"no key: {key}"
    for name in re.findall(r"--config ([a-z][a-z0-9-]+)\b(?![./])", text):
        try:
            find_config(name)
        except Exception as failure:
            yield f"no configuration: {failure}"
    for code in codes_of(text):
        if code not in hooks().exit_codes():
            yield f"no exit code: {code}"
    for path in files_of(text):
        if not (REPOSITORY / path).exists() and not (REPOSITORY / "cropstar" / path).exists():
            yield f"no file: {path}"
    for extra in re.findall(r"cropstar\[([a-z,-]+)\]", text):
        yield from (f"no extra: {each}" for each in extra.split(",") if each not in extras())


def keys_of(text: str) -> list[str]:
    """Keys of the configuration: in code with a section before them, or behind --set."""
    named = re.findall(rf"`((?:{SECTIONS})\.[a-z_]+)(?=[`:= ])", text)
    given = re.findall(r"--set '?([a-z_.]+)=", text)
    return [key for key in (*named, *given) if not key.startswith("task.") and key != "model.safetensors"]


def codes_of(text: str) -> list[int]:
    return [int(code) for code in re.findall(r"exit(?:s with| code:?| codes?) (\d+)\b", text)]


def files_of(text: str) -> list[str]:
    return re.findall(r"`((?:cropstar|tests|benchmarks|configs|deploy|docs)/[\w./-]+\.[a-z]+)", text)


@cache
def extras() -> set[str]:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        return set(tomllib.load(file)["project"]["optional-dependencies"])


@each_page
def test_what_a_page_names_exists(page: Path) -> None:
    if page != HISTORY:
        assert list(problems(texts()[page], page)) == []


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ("    cropstar train --modle star\n", "no option: cropstar train --modle"),
        (
            "```console\n$ cropstar predict safe -o map.tif --confidenze\n```",
            "no option: cropstar predict --confidenze",
        ),
        ("see `cropstar teach`", "no command: cropstar teach"),
        ("give `--no-such-thing` to it", "no option: --no-such-thing"),
        ("`model.layer: 3`", "no key: model.layer"),
        ("`--set optimiser.lr=3`", "no key: optimiser.lr"),
        ("    cropstar train --config demo-lstm\n", "no configuration: "),
        ("ends with exit code 9", "no exit code: 9"),
        ("in `cropstar/models/cells/moon.py`", "no file: cropstar/models/cells/moon.py"),
        ("pip install 'cropstar[moon]'", "no extra: moon"),
    ],
)
def test_a_wrong_name_in_a_page_is_noticed(wrong: str, why: str) -> None:
    page = DOCS / "how-to" / "images.md"
    found = list(problems(texts()[page] + "\n" + wrong, page))
    assert len(found) == 1
    assert found[0].startswith(why)


def test_the_checks_are_not_blind(capsys: pytest.CaptureFixture[str]) -> None:
    counts = {
        "commands": sum(len(commands_of(text)) for text in texts().values()),
        "options": sum(len(options) for text in texts().values() for _, options in commands_of(text)),
        "keys": sum(len(keys_of(text)) for text in texts().values()),
        "exit codes": sum(len(codes_of(text)) for text in texts().values()),
        "files": sum(len(files_of(text)) for text in texts().values()),
        "links": sum(len(internal_links(text)) for text in texts().values()),
    }
    with capsys.disabled():
        print("\nchecked in the pages:", ", ".join(f"{count} {name}" for name, count in counts.items()))
    least = {"commands": 250, "options": 250, "keys": 60, "exit codes": 15, "files": 30, "links": 200}
    assert all(counts[name] >= number for name, number in least.items()), counts
    called = {name for text in texts().values() for name, _ in commands_of(text)}
    assert called >= set(COMMANDS)


# --- Links


def internal_links(text: str) -> list[str]:
    return [target for target in LINK.findall(without_code(text)) if not re.match(r"[a-z]+:", target)]


def without_code(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors_of(text: str) -> set[str]:
    plain = (re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in HEADING.findall(without_code(text)))
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in plain}


def test_links_lead_somewhere() -> None:
    dead = []
    for page, text in texts().items():
        for target in internal_links(text):
            name, _, anchor = target.partition("#")
            file = (page.parent / name).resolve() if name else page
            if file in texts():
                if anchor and anchor not in anchors_of(texts()[file]) and page.parent != REPOSITORY:
                    dead.append(f"{page.name}: {target}")
            elif not file.exists():
                dead.append(f"{page.name}: {target}")
    assert dead == []


def test_contributing_names_files_that_exist() -> None:
    text = texts()[REPOSITORY / "CONTRIBUTING.md"]
    named = set(re.findall(r"`(?:cropstar/)?((?:[a-z_0-9]+/)+[a-z_0-9]+\.py)`", text))
    assert len(named) > 20
    for path in named:
        assert (REPOSITORY / "cropstar" / path).exists() or (REPOSITORY / path).exists(), path


def test_pages_are_short() -> None:
    assert len(texts()[REPOSITORY / "README.md"].split()) <= 900
    for page in (DOCS / "tutorial").glob("*.md"):
        assert len(texts()[page].split()) <= 1200, page


# --- Examples


def test_the_example_of_a_class_table_is_one(tmp_path: Path) -> None:
    for page in (DOCS / "how-to" / "classes.md", DOCS / "reference" / "classes.md", DOCS / "tutorial/real-images.md"):
        path = tmp_path / "classes.yaml"
        path.write_text(texts()[page].split("```yaml\n")[1].split("```")[0], encoding="utf-8")
        rules = read_rules(path)
        assert rules.others == "error"
        assert len(rules.table([])) >= 2
    path.write_text(texts()[DOCS / "how-to" / "classes.md"].split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    labels = ["winter barley", "110", "grain maize", "building"]
    assert read_rules(path).apply(labels) == ["winter cereals", "winter cereals", "maize", None]


def test_python_examples_can_be_compiled() -> None:
    blocks = [
        (page, block)
        for page, text in texts().items()
        for block in re.findall(r"^```python\n(.*?)```", text, re.M | re.S)
    ]
    assert len(blocks) >= 15
    for page, block in blocks:
        compile(block, str(page), "exec")


def test_the_generated_pages_have_everything() -> None:
    pages = hooks().generated_pages()
    commands = pages["reference/commands.md"]
    for name in COMMANDS:
        for option in options_of(name) - {"--help", "--log-json"}:
            assert not option.startswith("-") or option in commands, f"{name} {option}"
    assert all(f"`{key}`" in pages["reference/configuration.md"] for key in config_keys())
    assert set(hooks().exit_codes()) == {0, 1, 2, 3, 4, 5, 6, 7, 130, 143}


# --- The commands of README and tutorial, run one after the other in a folder of their own


def console_commands(page: Path) -> list[list[str]]:
    """The words of every command in the console blocks of a page."""
    blocks = "".join(CONSOLE.findall(texts()[page]))
    lines = [line[2:].partition("  #")[0] for line in blocks.replace("\\\n", "").splitlines() if line.startswith("$ ")]
    return [words for words in map(shlex.split, lines) if words[0] == "cropstar"]


RUNNABLE = [REPOSITORY / "README.md", DOCS / "tutorial" / "demonstration.md"]
REAL = [DOCS / "tutorial" / "real-images.md", DOCS / "tutorial" / "real-map.md"]
SHORT = ["--epochs", "1", "--set", "cross_fit=0", "--set", "split.validation=0.45"]  # 22 fields, for --unknown 0.05


@pytest.mark.parametrize("page", RUNNABLE, ids=page_id)
def test_the_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As they stand, but on a smaller scene, and trained for an epoch."""
    from cropstar.sources.synthetic import landscape

    monkeypatch.setattr(landscape, "SceneOptions", partial(landscape.SceneOptions, size=160, dates=8))
    monkeypatch.chdir(tmp_path)
    commands = console_commands(page)
    assert len(commands) >= 3
    for _, *words in commands:
        short = SHORT if words[0] == "train" and "rf" not in words else []
        cropstar.main([*words, *short], prog_name="cropstar", standalone_mode=False, obj={})
    if page != REPOSITORY / "README.md":
        products_are_described(tmp_path)


def products_are_described(folder: Path) -> None:
    """The reference names the files that the tutorial makes, and the columns of its parcels and of its label check."""
    import geopandas

    listed = first_cells(DOCS / "reference" / "map-files.md")
    made = {path.name for path in folder.glob("map*")}
    assert len(made) >= 6
    assert made <= listed
    own = set(geopandas.read_file(folder / "data" / "demo" / "parcels.gpkg").columns)
    columns = set(geopandas.read_file(folder / "map-parcels.gpkg").columns) - own
    named = {"p_<class>" if name.startswith("p_") else name for name in columns}
    assert named == first_cells(DOCS / "reference" / "parcels.md")
    (checked,) = folder.glob("data/runs/*/*-check.gpkg")
    assert {*geopandas.read_file(checked).columns} - {"geometry"} == first_cells(DOCS / "reference" / "check.md")


def first_cells(page: Path) -> set[str]:
    """What stands as code in the first column of a page's tables."""
    rows = re.findall(r"^\| (`[^|]*) \|", texts()[page], re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("pages", [[REPOSITORY / "README.md"], RUNNABLE[1:], REAL], ids=["README", "scene", "real"])
def test_the_commands_run_as_they_stand(pages: list[Path], tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if pages == REAL:
        data = request.getfixturevalue("real_data") / "sentinel2-t31tej"
        (tmp_path / "safe").symlink_to(data / "safe")
        (tmp_path / "parcels").symlink_to(data / "parcels")
        (tmp_path / "classes.yaml").write_text(texts()[REAL[0]].split("```yaml\n")[1].split("```")[0])
    for page in pages:
        for _, *words in console_commands(page):
            done = subprocess.run(
                [sys.executable, "-m", "cropstar", *words], cwd=tmp_path, text=True, capture_output=True
            )
            assert done.returncode == 0, f"{words}: {done.stderr}"


NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.py"))


@pytest.mark.parametrize("source", NOTEBOOKS, ids=lambda source: source.stem)
def test_notebooks_run(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Their pages, with outputs, are left in build/notebooks for 'make docs'."""
    pytest.importorskip("nbclient", reason="the extra 'docs' is not installed")
    pytest.importorskip("jupytext", reason="the extra 'docs' is not installed")
    from tests.notebooks import PAGES as MADE
    from tests.notebooks import run

    seconds = run(source)
    assert (MADE / f"{source.stem}.md").stat().st_size > 500
    with capsys.disabled():
        print(f"\nnotebook {source.stem}: {seconds:.1f} s")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, strictly built; notebooks that did not run yet are empty pages."""
    pytest.importorskip("mkdocs", reason="the extra 'docs' is not installed")
    pytest.importorskip("mkdocstrings_handlers", reason="the extra 'docs' is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_is_built_strictly_and_loads_nothing_from_other_hosts(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 50
    loads = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//|<link\b[^>]*\bhref=\"(?:https?:)?//"
    )
    assert [page.name for page in pages if loads.search(page.read_text(encoding="utf-8"))] == []
    styles = "".join(path.read_text(encoding="utf-8") for path in site.rglob("*.css"))
    assert not re.search(r"@import|url\([\"']?https?:", styles)
    assert (site / "search" / "search_index.js").stat().st_size > 100_000, "the index that is read from file://"


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_search_works_from_a_folder(site: Path, tmp_path: Path) -> None:
    address = (site / "index.html").as_uri() + "?q=radar"
    command = [str(CHROMIUM), *QUIET, f"--user-data-dir={tmp_path}", "--dump-dom", address]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    assert re.search(r"\d+ matching documents", shown)
