"""`cropstar inspect`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from cropstar.cli.options import PATH, examples, logging_options
from cropstar.errors import ArtifactError, UsageError
from cropstar.inputs import require_free
from cropstar.runtime import event, progress_bar

EXAMPLES = examples("""
cropstar inspect data/stores/demo                     dates, bands and classes of a store
cropstar inspect data/stores/demo -o sheet.png        the same, and a sheet of pictures
cropstar inspect data/stores/demo/tiles/NAME.h5       one tile
cropstar inspect data/stores/demo --verify            check every byte of it
cropstar inspect data/runs/convstar-4x32-001          a model and its accuracy on the test parcels
cropstar inspect season.h5                            the state of a season: its model, dates and grid
cropstar inspect SAFE_FOLDER                          dates and bands of images, before you ingest them
cropstar inspect map.tif                              a map: its classes, dates, test figures and caveats
cropstar inspect model.safetensors --json             for another program
""")


@click.command(epilog=EXAMPLES)
@click.argument("path", type=PATH, metavar="STORE|TILE|MODEL|STATE|RASTER")
@click.option("-o", "--output", type=PATH, help="Draw a sheet (.png) of a store or a tile.")
@click.option("--scene", help="The scene to draw, if a store has several.  [default: the largest; of tables: all]")
@click.option("--overwrite", is_flag=True, help="Replace a picture that exists.")
@click.option("--verify", is_flag=True, help="Check every byte of a store; exit code 4 if any is damaged.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@logging_options
def inspect(path: Path, output: Path | None, scene: str | None, overwrite: bool, verify: bool, as_json: bool) -> None:
    """Show what is in a store, a tile, a model file, a run, the state of a season, a map or images.

    With -o, draw a sheet of a store or a tile: an RGB picture of each date with clouds hatched, the labelled parcels,
    and the mean NDVI of each class through the season.
    """
    from cropstar.reports.contents import kind_of, model_facts, open_tile_set, tile_set_facts
    from cropstar.reports.text import format_contents

    kind = kind_of(path)
    _require_drawable(kind, output, scene, overwrite)
    if verify:
        _verify(path, kind)
    if kind in ("store", "tile"):
        with open_tile_set(path, kind) as tile_set:
            facts = tile_set_facts(tile_set)
            if output is not None:
                from cropstar.reports.sheet import draw_sheet

                draw_sheet(output, tile_set, scene=scene)
    elif kind == "season":
        from cropstar.prediction.season import season_facts

        facts = season_facts(path)
    elif kind == "raster":
        from cropstar.reports.contents import raster_facts

        facts = raster_facts(path)
    else:
        facts = model_facts(path, kind)
    click.echo(json.dumps(facts, indent=1, ensure_ascii=False) if as_json else format_contents(facts))
    if output is not None:
        event(f"sheet {output}", sheet=str(output))


def _verify(path: Path, kind: str) -> None:
    """Read all tiles of a store; models and states are checked whenever they are read."""
    if kind in ("model", "run", "season"):
        return
    if kind != "store":
        raise UsageError("--verify is for stores", path=path, remedy="give the store's folder")
    from cropstar.store.store import Store
    from cropstar.store.tile import REMEDY

    with Store.open(path) as store:
        total = len(store.manifest.tiles)
        with progress_bar(total, "verify", "tile") as bar:
            damaged = store.verify(bar.update)
    if damaged:
        names = ", ".join(each.name for each in damaged[:3]) + (" and others" if len(damaged) > 3 else "")
        why = f"{len(damaged)} of {total} tiles are damaged: {names}"
        raise ArtifactError("the store is damaged", path=path, why=why, remedy=REMEDY)
    event(f"all {total} tiles are intact", tiles=total)


def _require_drawable(kind: str, output: Path | None, scene: str | None, overwrite: bool) -> None:
    """Refuse a picture that cannot be drawn, before anything is read."""
    if output is None:
        if scene is not None:
            raise UsageError("--scene without -o", why="it chooses what to draw", remedy="give -o sheet.png too")
        return
    if kind in ("model", "run", "season", "raster"):
        what = {"season": "a state", "raster": "a raster"}.get(kind, "a model")
        raise UsageError(f"{what} has no picture sheet", remedy="leave out -o, or give a store or a tile")
    require_free(output, (".png",), overwrite)
