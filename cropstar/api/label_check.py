"""`cropstar.check`, which the command of this name calls, and the files that it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cropstar.api.commands import train
from cropstar.api.entry import Entry
from cropstar.api.keywords import AnyPath, Device
from cropstar.errors import InputError, UsageError
from cropstar.inputs import require_free
from cropstar.registry import did_you_mean
from cropstar.runtime import RUNS, event
from cropstar.store.store import MANIFEST

if TYPE_CHECKING:
    from cropstar.training.check import CheckedField, CheckResult

SHOWN = 48  # fields of each section of the page


@dataclass(frozen=True)
class LabelCheck:
    """The fields of a store with what was found of their labels or declared crops."""

    fields: list[dict[str, Any]] = field(repr=False)  # one row each: key, declared, light, p_value, mapped, ...
    facts: dict[str, Any] = field(repr=False)  # counts, the promised rate, warnings
    run: Path  # whose probabilities were used
    files: tuple[Path, ...] = ()

    @property
    def suspects(self) -> list[dict[str, Any]]:
        """The most suspect first."""
        return sorted((row for row in self.fields if row["suspect"]), key=lambda row: row["suspect"])

    def __str__(self) -> str:
        from cropstar.training.check import summary_lines

        return "\n".join(summary_lines(self.facts))


@Entry("subject", "store", "parcels", "classes", written=("output", "runs"))
def check(
    subject: AnyPath,
    *,
    store: AnyPath | None = None,
    parcels: AnyPath | None = None,
    declared: str | None = None,
    classes: AnyPath | None = None,
    false_alarms: float = 0.05,
    survey: int = 20,
    folds: int = 5,
    model: str = "star",
    recipe: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | Sequence[str] = (),
    runs: AnyPath = RUNS,
    fresh: bool = False,
    output: AnyPath | None = None,
    overwrite: bool = False,
    device: Device = "auto",
    allow_remote: bool = False,
    scratch: AnyPath | None = None,
    progress: bool | None = False,
) -> LabelCheck:
    """Check the labels of a store, or the crops declared for its fields, by models that never saw the fields.

    `subject` is a store, or a run that was trained with folds. Of a store a run is trained first, as by
    `train(folds=...)`, unless `runs` has one. With `store`, the fields of another store are checked by the run.
    `declared` names a column of `parcels` with the declared crops; without it the labels of the store are checked.
    `false_alarms` is the share of right crops that may be red. The findings go to `output`, a .gpkg, .csv or .parquet
    file, by default in the run, with a QGIS style and an HTML page beside it.
    """
    from cropstar.runtime import choose_device
    from cropstar.training.check import CheckOptions, check_fields

    place = Path(subject)
    if not 0 < false_alarms < 1:
        raise UsageError(f"a rate of false alarms of {false_alarms:g}", remedy="give one between 0 and 1, such as 0.05")
    crops = None if declared is None else _declared(declared, parcels, classes)
    if declared is None and (parcels is not None or classes is not None):
        raise UsageError("--parcels without --declared", remedy="name the column with the declared crops")
    is_store = (place / MANIFEST).exists()
    target = None if output is None else Path(output)
    if target is not None:
        _require_free(target, overwrite)
    if is_store and store is not None:
        raise UsageError("two stores", path=place, remedy="give a run to check another --store by")
    run = place
    if is_store:
        training = {"folds": folds, "model": model, "recipe": recipe, "seed": seed, "settings": settings}
        run = _run_of(place, Path(runs), fresh=fresh, device=device, **training)
    if target is None:
        checked = Path(store) if store is not None else run
        target = (run if store is None else Path.cwd()) / f"{checked.name}-check{_default_suffix(run, store)}"
        _require_free(target, overwrite)
    options = CheckOptions(
        choose_device(device),
        false_alarms,
        survey,
        None if store is None else Path(store),
        crops,
        None if parcels is None else Path(parcels),
    )
    result = check_fields(run, options)
    rows = [_row(each) for each in result.fields]
    files = _write(target, result, None if parcels is None else Path(parcels))
    found = LabelCheck(rows, result.facts, result.run, files)
    for line in str(found).splitlines():
        event(line)
    for kind, file in zip(("fields", "page", "style"), files, strict=False):
        event(f"{kind:<7} {file}", **{kind: str(file)})
    return found


def _run_of(store: Path, runs: Path, *, fresh: bool, **training: Any) -> Path:
    """A finished run that judged every field of the store out of fold; where there is none, one is trained."""
    from cropstar.store.store import Store
    from cropstar.training.check import reusable_run

    known = reusable_run(runs, store)
    if known is not None and not fresh:
        event(f"run     {known.folder}: its folds judged every field already (--fresh trains again)")
        return known.folder
    with Store.open(store) as opened:
        series = "series" in opened.manifest.layouts
    trained = train(
        store=store,
        target=None if series else "parcel",  # a label is of a whole field
        runs=runs,
        fresh=fresh,
        progress=None,
        **training,
    )
    return trained.folder


def _default_suffix(run: Path, store: AnyPath | None) -> str:
    """A GeoPackage where fields have outlines, else a table."""
    from cropstar.config import resolve_config
    from cropstar.store.store import read_manifest
    from cropstar.training.runs import Run

    folder = Path(store) if store is not None else None
    if folder is None and Run(run).config.exists():
        folder = resolve_config(Run(run).config, {}).store
    manifest = read_manifest(folder) if folder is not None else None
    layouts = manifest.layouts if manifest else set()
    return ".gpkg" if layouts == {"raster"} else ".csv"


def _require_free(output: Path, overwrite: bool) -> None:
    require_free(output, (".gpkg", ".csv", ".parquet"), overwrite)
    for suffix in (".html", ".qml"):
        require_free(output.with_suffix(suffix), (suffix,), overwrite)


def _declared(column: str, parcels: AnyPath | None, classes: AnyPath | None) -> dict[str, str]:
    """The declared crop of each field, by its key; fields without one are left out."""
    from cropstar.sources.class_rules import EVERY_LABEL, read_rules
    from cropstar.sources.vectors import keys_of, label_text

    if parcels is None:
        raise UsageError("--declared without --parcels", remedy="give the file that has the column")
    path = Path(parcels)
    frame = _open_parcels(path)
    if column not in frame.columns:
        remedy = did_you_mean(column, [str(name) for name in frame.columns])
        raise InputError(f"no column '{column}'", path=path, remedy=remedy)
    rules = EVERY_LABEL if classes is None else read_rules(Path(classes))
    known = frame[column].notna().to_numpy()
    crops = rules.apply([label_text(value) for value in frame[column][known]])
    keys = [key for key, kept in zip(keys_of(frame), known, strict=True) if kept]
    declared: dict[str, str] = {}
    for key, crop in zip(keys, crops, strict=True):
        if crop is not None and declared.setdefault(key, crop) != crop:
            why = f"'{key}' has '{declared[key]}' and '{crop}'"
            raise InputError("a field that declares two crops", path=path, why=why, remedy="correct it")
    if not declared:
        raise InputError("no declared crop", path=path, why=f"the column '{column}' is empty", remedy="name another")
    return declared


def _open_parcels(path: Path) -> Any:
    """A vector file, or a table with the same columns."""
    from cropstar.sources.table_files import open_file
    from cropstar.sources.vectors import open_vector

    if path.suffix.lower() != ".csv":
        return open_vector(path)
    file = open_file(path)
    return file.read(file.columns, [])


def _row(checked: CheckedField) -> dict[str, Any]:
    row = asdict(checked)
    scene, number = row.pop("parcel")
    place = row.pop("place")
    x, y = place if place is not None else (None, None)
    return {"key": row.pop("key"), "scene": scene, "number": number, **row, "x": x, "y": y}


def _write(target: Path, result: CheckResult, parcels: Path | None) -> tuple[Path, ...]:
    """The fields, the page and, beside a GeoPackage, its style."""
    import pandas

    from cropstar.store.files import atomic_path, write_text

    target.parent.mkdir(parents=True, exist_ok=True)
    frame = pandas.DataFrame([_row(each) for each in result.fields])
    frame["promised"] = result.facts["promised"]  # with every field: tables are passed on without their page
    frame["suspect"], frame["survey"] = (frame[name].astype("Int32") for name in ("suspect", "survey"))
    page, style = target.with_suffix(".html"), target.with_suffix(".qml")
    suffix = target.suffix.lower()
    if suffix == ".gpkg":
        lights = lights_style(promised=result.facts["promised"])
        _write_outlines(target, frame, result, parcels, lights)
        write_text(style, lights)
    else:
        with atomic_path(target) as partial:
            if suffix == ".csv":
                frame.to_csv(partial, index=False)
            else:
                from cropstar.sources.table_files import require_pyarrow

                require_pyarrow(target)
                frame.to_parquet(partial, index=False)
    _write_page(page, result)
    return (target, page, style) if suffix == ".gpkg" else (target, page)


def _write_outlines(target: Path, frame: Any, result: CheckResult, parcels: Path | None, style: str) -> None:
    """The fields with the outlines of the given parcels, by key, else with those of the store's pixels."""
    import geopandas

    from cropstar.prediction.parcels import write_frame
    from cropstar.sources.vectors import keys_of

    facts = result.facts
    notes = {"CROPSTAR_FALSE_ALARMS": f"{facts['rate']:g}" + ("" if facts["promised"] else ", not promised here")}
    if facts["warnings"]:
        notes["CROPSTAR_CAVEATS"] = " | ".join(facts["warnings"])
    if parcels is not None and parcels.suffix.lower() != ".csv":
        own = _open_parcels(parcels)
        own = own[[name for name in own.columns if name == own.geometry.name or str(name).lower() not in frame.columns]]
        own = own.assign(key=keys_of(own)).drop_duplicates("key")
        merged = own.merge(frame.drop(columns=["x", "y"]), on="key", how="inner")
        write_frame(geopandas.GeoDataFrame(merged, geometry=own.geometry.name, crs=own.crs), target, notes, style)
        return
    shapes, crs = outlines(result.store, [each.parcel for each in result.fields])
    kept = [shape is not None for shape in shapes]
    geometry = [shape for shape in shapes if shape is not None]
    write_frame(geopandas.GeoDataFrame(frame[kept], geometry=geometry, crs=crs), target, notes, style)


def outlines(folder: Path, parcels: Sequence[tuple[str, int]]) -> tuple[list[Any], str]:
    """Polygons of parcels around their pixels, over all tiles, in the coordinate system of most of them."""
    import shapely
    from rasterio.features import shapes as trace

    from cropstar.store.store import Store

    wanted, pieces = set(parcels), dict[tuple[str, int], list[Any]]()
    with Store.open(folder) as store:
        systems = [reader.grid.crs for reader in store.tiles if reader.layout == "raster"]
        crs = max(set(systems), key=systems.count) if systems else ""
        if not crs:
            why = "its fields have no outlines"
            raise UsageError("no GeoPackage of this store", path=folder, why=why, remedy="write a .csv with -o")
        for reader in store.tiles:
            if reader.layout != "raster" or reader.grid.crs != crs:
                continue
            numbers = reader.parcels()
            for shape, number in trace(numbers, mask=numbers > 0, transform=reader.grid.affine):
                if (reader.scene, int(number)) in wanted:
                    pieces.setdefault((reader.scene, int(number)), []).append(shapely.geometry.shape(shape))
    return [shapely.unary_union(pieces[parcel]) if parcel in pieces else None for parcel in parcels], crs


def lights_style(*, promised: bool = True) -> str:
    """A QGIS style: fields in the colour of their light."""
    from cropstar.prediction.styles import categorised_style
    from cropstar.reports.check_page import LIGHTS, MEANINGS
    from cropstar.store.classes import rgb

    rows = []
    for light, colour in LIGHTS.items():
        label = f"{light}: {MEANINGS[light]}"
        if light == "red" and not promised:
            label += " (rate of false alarms not promised)"
        rows.append((light, label, (*rgb(colour), 190)))
    return categorised_style("light", rows)


def _write_page(path: Path, result: CheckResult) -> None:
    from cropstar.reports.check_page import FieldCard, write_check_page
    from cropstar.store.store import Store

    def cards(rows: Sequence[CheckedField]) -> list[FieldCard]:
        made = []
        for row in rows[:SHOWN]:
            curve = result.curves.get(row.parcel)
            made.append(
                FieldCard(
                    *(row.key, row.parcel[0], row.declared, row.mapped, row.light, row.p_value),
                    *(row.declared_probability, row.probability, (curve.days, curve.values) if curve else None),
                )
            )
        return made

    with Store.open(result.store) as store:
        start = store.fingerprint.season.start
    suspects = sorted((row for row in result.fields if row.suspect), key=lambda row: row.suspect or 0)
    reds = sorted((row for row in result.fields if row.light == "red" and not row.suspect), key=lambda row: row.p_value)
    survey = sorted((row for row in result.fields if row.survey), key=lambda row: row.survey or 0)
    write_check_page(
        path,
        result.facts,
        band=result.band,
        start=start,
        suspects=cards(suspects),
        reds=cards(reds),
        survey=cards(survey),
        medians={name: (line.days, line.values) for name, line in result.medians.items()},
    )
