"""The pages that mkdocs generates: commands from click, keys from pydantic, exit codes from the errors, notebooks.

Contributing and changelog are the files of the repository. Links of theirs lead from the repository's top, so they
are turned to the pages here, or to plain text where the site has none.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

import click  # noqa: E402

from cropstar import errors  # noqa: E402
from cropstar.cli.main import COMMANDS, cropstar  # noqa: E402
from cropstar.config_keys import Key, config_keys, config_sections  # noqa: E402

NOTEBOOKS = REPOSITORY / "build" / "notebooks"
SHIM = "https://unpkg.com/iframe-worker/shim"  # as the theme writes it
SIGNALS = {130: "stopped by SIGINT (Ctrl-C), after saving", 143: "stopped by SIGTERM, after saving"}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and the executed notebooks with their pictures."""
    from mkdocs.structure.files import File

    for name, text in generated_pages().items():
        files.append(File.generated(config, name, content=text))
    for source in sorted((REPOSITORY / "docs" / "notebooks").glob("*.py")):
        made = NOTEBOOKS / f"{source.stem}.md"
        ran = made.exists()  # 'make docs' runs them first
        text = made.read_text(encoding="utf-8") if ran else f"# {source.stem}\n\nNot run yet: see `make docs`.\n"
        files.append(File.generated(config, f"notebooks/{made.name}", content=text))
        for picture in sorted(NOTEBOOKS.glob(f"{source.stem}-*.png")):
            files.append(File.generated(config, f"notebooks/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Mark options in text and commands: a browser would break a line between `--` and the name."""
    html = re.sub(r"(?<![\w-])(--[a-z][a-z-]*)(?=[^<\n]*</code>)", r'<span class="option">\1</span>', html)
    return re.sub(r'(?<=<span class="w"> </span>)(--[a-z][a-z-]*)(?=[<\n])', r'<span class="option">\1</span>', html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Search from file:// with the script that is here, not with that of another host."""
    return output.replace(SHIM, "../" * page.url.count("/") + "javascripts/iframe-worker.js")


def on_post_template(output_content: str, template_name: str, config: Any) -> str:
    return output_content.replace(SHIM, "javascripts/iframe-worker.js")


def generated_pages() -> dict[str, str]:
    """The pages by their names."""
    return {
        "reference/commands.md": commands_page(),
        "reference/configuration.md": configuration_page(),
        "reference/exit-codes.md": exit_codes_page(),
        "reference/contributing.md": repository_page("CONTRIBUTING.md"),
        "reference/changelog.md": repository_page("CHANGELOG.md"),
    }


# --- Commands


def commands_page() -> str:
    names = " · ".join(f"[{name}](#cropstar-{name})" for name in COMMANDS)
    intro = [
        "# Commands",
        "Every command and option, as `cropstar COMMAND --help` shows them. In Python the functions of the same names "
        "take the options as [keywords](python.md).",
        names,
        "These options are on every command: `-q, --quiet` prints only warnings and errors, `-v, --verbose` prints "
        "more, `--debug` shows the traceback of an error, `--log-json` logs one JSON object a line.",
    ]
    return "\n\n".join([*intro, *(command_section(name) for name in COMMANDS)]) + "\n"


COMMON = {"quiet", "verbose", "debug", "log_json"}


def command_section(name: str) -> str:
    command = cropstar.get_command(click.Context(cropstar, info_name="cropstar"), name)
    assert command is not None
    context = click.Context(command, info_name=f"cropstar {name}")
    usage = " ".join([f"cropstar {name}", *command.collect_usage_pieces(context)])
    parts = [f"## cropstar {name}", inspect.cleandoc(command.help or "").replace("\b\n", ""), f"```\n{usage}\n```"]
    sections: dict[str, list[click.Option]] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.name not in COMMON:
            sections.setdefault(getattr(parameter, "heading", "Options"), []).append(parameter)
    for heading, options in sorted(sections.items(), key=lambda item: item[0] != "Options"):
        rows = "\n".join(option_row(option, context) for option in options)
        title = "" if heading == "Options" else f"**{heading}**\n\n"
        parts.append(f"{title}| option | meaning |\n| --- | --- |\n{rows}")
    examples = (command.epilog or "").replace("\b\n", "").partition("Examples:")[2]
    if examples:
        lines = (re.sub(r" {4,}", "   # ", line) for line in inspect.cleandoc(examples).splitlines())
        parts.append("```text\n" + "\n".join(lines) + "\n```")
    return "\n\n".join(parts)


# How click writes the bounds of a number, and how the page does.
BOUNDS = {
    r"(\S+)<=x<=9223372036854775807": r"at least \1",
    r"([-\d.]+)<=x<=([-\d.]+)": r"\1 to \2",
    r"([-\d.]+)<=x<([-\d.]+)": r"\1 to below \2",
    r"([-\d.]+)<x<([-\d.]+)": r"between \1 and \2",
    r"\bx>=([-\d.]+)": r"at least \1",
    r"\bx>([-\d.]+)": r"above \1",
}


def option_row(option: click.Option, context: click.Context) -> str:
    record = option.get_help_record(context)
    assert record is not None, option.name
    names, meaning = record
    names = re.sub(r"(INTEGER|FLOAT) RANGE", r"\1", names)
    for bounds, words in BOUNDS.items():
        meaning = re.sub(bounds, words, meaning)
    names = names.replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")
    return f"| <code>{names}</code> | {escaped(meaning)} |"


def escaped(text: str) -> str:
    """Plain text in a cell of a table."""
    text = re.sub(r"\s+", " ", text).replace("<", "&lt;").replace(">", "&gt;").replace("|", "&#124;")
    return re.sub(r"([*_\[\]`])", r"\\\1", text)


# --- Configuration


def configuration_page() -> str:
    parts = [
        "# Configuration",
        "Every key of a training. Give them in a YAML file (`cropstar train --config FILE`) or by `--set KEY=VALUE`; "
        "the options of `cropstar train` set some of them. A key that is not given follows from the data where a "
        "recipe has a rule for it ([recipes](../recipes.md)), else it has the default below. "
        "`cropstar train --print-config` shows what a training would have, with reasons; `cropstar config KEY` "
        "explains one key.",
        "For an editor that completes and checks YAML, write the schema beside your file and name it at its top:",
        "```console\n$ cropstar config --schema > cropstar.schema.json\n```",
        "```yaml\n# yaml-language-server: $schema=cropstar.schema.json\nmodel:\n  name: star\n```",
    ]
    keys = config_keys().values()
    for section, meaning in config_sections().items():
        own = [key for key in keys if key.name.rpartition(".")[0] == section]
        parts.append(f"## {section or 'Top level'}\n\n{meaning}")
        rows = (
            f"| `{key.name}` | {key.meaning}<br><small>{limits(key)}; default `{key.default}`</small> |" for key in own
        )
        parts.append("| key | meaning |\n| --- | --- |\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


def limits(key: Key) -> str:
    return ", ".join(filter(None, [key.type.replace("|", "&#124;"), key.bounds]))


# --- Exit codes


def exit_codes() -> dict[int, tuple[str, str]]:
    """Code to class and meaning, from cropstar.errors."""
    found = {0: ("", "Success.")}
    for name, kind in vars(errors).items():
        if inspect.isclass(kind) and issubclass(kind, errors.CropstarError) and "exit_code" in vars(kind):
            found[kind.exit_code] = (name, inspect.getdoc(kind) or "")
    found[1] = ("CropstarError", "An internal error: `--debug` shows the traceback.")
    return dict(sorted(found.items())) | {code: ("Interrupted", f"{text}.") for code, text in SIGNALS.items()}


def exit_codes_page() -> str:
    rows = "\n".join(
        f"| {code} | {f'`{name}`' if name else ''} | {meaning[0].upper() + meaning[1:]} |"
        for code, (name, meaning) in exit_codes().items()
    )
    return f"""# Exit codes

Every command ends with one of these. An error is one line on stderr:

    error: <what> in <path>: <why>; <what to do>

With `--log-json` the line is a JSON object with the fields `level`, `message` and `exit_code`. In Python the classes
are raised as exceptions (`cropstar.InputError`, ...); all of them are `cropstar.CropstarError`.

| code | class | meaning |
| --: | --- | --- |
{rows}

What a batch system should do with each is in [Kubernetes, Batch, Slurm](../how-to/batch.md).
"""


# --- Pages from the repository's top


def repository_page(name: str) -> str:
    text = (REPOSITORY / name).read_text(encoding="utf-8")

    def turned(link: re.Match[str]) -> str:
        words, target = link[1], link[2]
        if target.startswith(("http", "#")):
            return link[0]
        page = target.removeprefix("docs/")
        return f"[{words}](../{page})" if target.startswith("docs/") else words

    return re.sub(r"\[([^\]]+)\]\(([^)\s]+)\)", turned, text)
