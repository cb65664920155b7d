"""What ingest says at its end: the class table with its counts, dates, bands and the share of clear observations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cropstar.logs import event, logger
from cropstar.reports.tallies import count_tiles
from cropstar.reports.wording import plural
from cropstar.store.store import Store


def summarise(folder: Path) -> None:
    """Say what a store holds: parcels, pixels and hectares of images, samples of tables."""
    store = Store.open(folder)
    try:
        dates, rows = count_tiles(store.tiles, store.fingerprint)
        images = sum(len(reader.images) for reader in store.tiles if reader.layout == "patches")
        tiles, bands = len(store.manifest.tiles), " ".join(store.fingerprint.bands)
        samples = sum(len(reader.table.numbers) for reader in store.tiles if reader.layout == "series")
    finally:
        store.close()
    series = any("samples" in row for row in rows)
    what = "samples" if series else "parcels"
    present = [row for row in rows if row[what] or row.get("pixels")]
    width = max((len(row["name"]) for row in present), default=0)
    for row in present:
        logger.info("  %-*s %s", width, row["name"], _counts(row))
    if len(present) < len(rows):
        logger.info("  and %s without any", plural(len(rows) - len(present), "class", "classes"))
    found = samples or sum(row[what] for row in rows)
    seen = sum(row["observations"] for row in dates)
    clear = sum(row["clear"] * row["observations"] for row in dates) / max(seen, 1)
    holds = [plural(tiles, "tile"), *([plural(images, "image")] if images else []), plural(found, what[:-1])]
    span = f"{plural(len(dates), 'date')} from {dates[0]['date']} to {dates[-1]['date']}"
    word = "valid" if series else "clear"
    event(
        f"{', '.join(holds)}, {span}, bands {bands}, {clear:.0%} of the observations {word}",
        tiles=tiles,
        dates=len(dates),
        **{what: found},
    )


def _counts(row: dict[str, Any]) -> str:
    if "samples" in row:
        return f"{row['samples']:7d} sample{'' if row['samples'] == 1 else 's'}"
    area = "" if row["hectares"] is None else f" {row['hectares']:8.1f} ha"
    return f"{row['parcels']:5d} parcel{' ' if row['parcels'] == 1 else 's'} {row['pixels']:8d} pixels{area}"
