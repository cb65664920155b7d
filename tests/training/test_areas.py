"""Adjusted areas: the published example, standard errors by simulation, mapped areas from maps and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cropstar.errors import CropstarError, InputError, MismatchError
from cropstar.training.areas import NO_DESIGN, AreaEstimates, Design, Estimate, estimate_areas, read_mapped
from cropstar.training.metrics import count_parcels
from tests.examples import a_grid

# --- areas against the worked example of Olofsson et al. 2014, and against drawing samples again and again


# Deforestation, forest gain, stable forest, stable non-forest: rows are the map, as published.
PUBLISHED = np.array([[66, 0, 5, 4], [0, 55, 8, 12], [1, 0, 153, 11], [2, 1, 9, 313]])
MAPPED = np.array([200_000, 150_000, 3_200_000, 6_450_000])  # pixels of 30 m
HECTARES = 0.09


@pytest.fixture(scope="module")
def example() -> AreaEstimates:
    return estimate_areas(PUBLISHED.T, MAPPED * HECTARES, design="stratified")


def test_published_areas(example: AreaEstimates) -> None:
    values = [entry.value for entry in example.area]
    margins = [entry.margin for entry in example.area]
    assert values == pytest.approx([21_158, 11_686, 285_770, 581_386], abs=1)
    assert margins == pytest.approx([6_158, 3_756, 15_510, 16_282], abs=1)
    in_pixels = estimate_areas(PUBLISHED.T, MAPPED, design="random").area[0]
    assert in_pixels.value == pytest.approx(235_086, abs=1)
    assert in_pixels.error == pytest.approx(34_097, rel=0.03)  # printed from a rounded 0.0035
    assert sum(value for value in values if value is not None) == pytest.approx(MAPPED.sum() * HECTARES)
    assert example.mapped == tuple(MAPPED * HECTARES)


def test_published_accuracies(example: AreaEstimates) -> None:
    def rounded(*entries: Estimate) -> list[tuple[float, float]]:
        return [(round(entry.value or 0, 2), round(entry.margin or 0, 2)) for entry in entries]

    assert rounded(example.overall_accuracy) == [(0.95, 0.02)]
    assert rounded(*example.users_accuracy) == [(0.88, 0.07), (0.73, 0.10), (0.93, 0.04), (0.96, 0.02)]
    assert rounded(example.producers_accuracy[0]) == [(0.75, 0.21)]
    assert [value for value, _ in rounded(*example.producers_accuracy)] == [0.75, 0.85, 0.93, 0.96]
    assert example.warnings == ()


@pytest.mark.parametrize("column", range(4))
def test_errors_of_producers_to_the_letter(example: AreaEstimates, column: int) -> None:
    """Equation 7 in pixels, sum by sum."""
    rows = [0, 1, 2, 3]
    sizes = PUBLISHED.sum(axis=1)
    inside = PUBLISHED / sizes[:, None]
    truly = sum(MAPPED[row] * inside[row, column] for row in rows)
    users, producers = inside[column, column], MAPPED[column] * inside[column, column] / truly
    own = MAPPED[column] ** 2 * (1 - producers) ** 2 * users * (1 - users) / (sizes[column] - 1)
    others = [
        MAPPED[row] ** 2 * inside[row, column] * (1 - inside[row, column]) / (sizes[row] - 1)
        for row in rows
        if row != column
    ]
    variance = (own + producers**2 * sum(others)) / truly**2
    assert example.producers_accuracy[column].error == pytest.approx(np.sqrt(variance))


def test_samples_drawn_again_spread_as_the_errors_say() -> None:
    """A map whose truth is known: the estimates scatter around it by their standard errors."""
    generator = np.random.default_rng(1)
    mapped = np.array([0.1, 0.3, 0.6])
    mixture = np.array([[0.8, 0.1, 0.1], [0.05, 0.9, 0.05], [0.02, 0.03, 0.95]])  # truth within each mapped class
    drawn = [
        estimate_areas(np.stack([generator.multinomial(100, row) for row in mixture]).T, mapped, design="stratified")
        for _ in range(500)
    ]
    cases = {
        "area": ([each.area[0] for each in drawn], mapped @ mixture[:, 0]),
        "overall": ([each.overall_accuracy for each in drawn], mapped @ mixture.diagonal()),
        "producer": ([each.producers_accuracy[0] for each in drawn], 0.08 / (mapped @ mixture[:, 0])),
    }
    for name, (estimates, truth) in cases.items():
        values = np.array([entry.value for entry in estimates], dtype=float)
        errors = np.array([entry.error for entry in estimates], dtype=float)
        margins = np.array([entry.margin for entry in estimates], dtype=float)
        assert values.mean() == pytest.approx(truth, rel=0.02), name
        assert errors.mean() == pytest.approx(values.std(), rel=0.12), name
        assert 0.90 <= (np.abs(values - truth) <= margins).mean() <= 0.985, name


def test_an_unknown_design_is_warned_of_and_has_no_intervals(example: AreaEstimates) -> None:
    found = estimate_areas(PUBLISHED.T, MAPPED * HECTARES, design=None)
    assert found.warnings == (NO_DESIGN,)
    assert [entry.value for entry in found.area] == [entry.value for entry in example.area]
    figures = [found.overall_accuracy, *found.area, *found.users_accuracy, *found.producers_accuracy]
    assert all(entry.error is None and entry.margin is None for entry in figures)
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["warnings"] == [NO_DESIGN]


def test_classes_without_samples_are_left_out_and_named() -> None:
    sample = np.array([[8, 1, 0, 0], [2, 9, 0, 1], [0, 0, 0, 0], [0, 0, 0, 3]])  # rows are the truth
    found = estimate_areas(sample, [50, 30, 20, 0], names=["maize", "wheat", "hemp", "peas"], design="stratified")
    assert found.warnings == (
        "no sample in the mapped class hemp: 20.0 % of the map is left out",
        "samples mapped as peas are ignored: the map has no such class",
    )
    areas = [entry.value for entry in found.area]
    assert areas == pytest.approx([50 * 0.8 + 30 * 0.1, 50 * 0.2 + 30 * 0.9, 0, 0])
    assert found.users_accuracy[2].value is None
    assert found.producers_accuracy[2].value is None


def test_a_single_sample_gives_no_error() -> None:
    found = estimate_areas(np.array([[9, 0], [1, 1]]), [50, 50], design="stratified")
    assert found.area[0].value == pytest.approx(45)
    assert found.area[0].error is None
    assert found.users_accuracy[0].error is not None
    assert found.warnings == ("a single sample in the mapped class 1: no standard error",)


def test_a_tiny_class_of_a_single_sample_takes_the_widest_error() -> None:
    """It would be no help to lose all intervals for a class of half a per cent."""
    found = estimate_areas(np.array([[80, 10, 0], [20, 90, 1], [0, 0, 0]]), [50, 49.5, 0.5], design="random")
    variance = 0.5**2 * 0.8 * 0.2 / 99 + 0.495**2 * 0.1 * 0.9 / 99 + 0.005**2 * 0.25
    assert found.area[0].error == pytest.approx(100 * np.sqrt(variance))
    assert found.users_accuracy[2].error is None
    assert "small mapped class 2" in found.warnings[0]


def test_a_perfect_map_stays_as_it_is() -> None:
    found = estimate_areas(np.diag([40, 60]), [10.0, 90.0], design="random")
    assert [entry.value for entry in found.area] == pytest.approx([10, 90])
    assert [entry.error for entry in (found.overall_accuracy, *found.producers_accuracy)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("sample", "mapped", "why"),
    [
        (np.ones((2, 2)), [1.0, 2.0, 3.0], "does not fit 3"),
        (np.ones((2, 2)), [1.0, -2.0], "from 0"),
        (np.ones((2, 2)), [np.nan, 1.0], "from 0"),
        (np.zeros((2, 2)), [1.0, 1.0], "no mapped class has a sample"),
        (np.ones((2, 2)), [0.0, 0.0], "no mapped class has a sample"),
    ],
)
def test_nonsense_is_refused(sample: NDArray[np.float64], mapped: list[float], why: str) -> None:
    with pytest.raises(InputError, match=why):
        estimate_areas(sample.astype(np.int64), mapped, design=None)


# --- errors of areas between parcels: the paper's where a parcel is one pixel, and true to samples drawn again


Integers = NDArray[np.int64]


def errors(found: AreaEstimates) -> list[float | None]:
    figures = [*found.area, found.overall_accuracy, *found.users_accuracy, *found.producers_accuracy]
    return [entry.error for entry in figures]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60))
def test_parcels_of_one_pixel_have_the_errors_of_the_paper(units: list[tuple[int, int]]) -> None:
    truth, said = np.array(units, dtype=np.int64).T
    counts = count_parcels(np.arange(len(units)), truth, said, 3)
    mapped = [60.0, 39.5, 0.5]
    by_parcel = estimate_areas(counts, mapped, design="stratified")
    by_unit = estimate_areas(counts.matrix(), mapped, design="stratified")
    assert by_parcel.warnings == by_unit.warnings
    for one, other in zip(errors(by_parcel), errors(by_unit), strict=True):
        assert (one is None) == (other is None)
        # A single sample of a tiny class: both take a widest error, that of a producer's accuracy to first order alone.
        if one is not None and other is not None and not any("small mapped" in each for each in by_unit.warnings):
            assert one == pytest.approx(other, abs=1e-9)


@pytest.mark.parametrize("design", ["random", "stratified"])
def test_copies_of_a_pixel_add_no_certainty(design: Design) -> None:
    generator = np.random.default_rng(0)
    truth = generator.integers(0, 2, 80)
    said = np.where(generator.random(80) < 0.8, truth, 1 - truth)
    parcels = np.arange(80)
    once = estimate_areas(count_parcels(parcels, truth, said, 2), [30.0, 70.0], design=design)
    copies = count_parcels(np.repeat(parcels, 25), np.repeat(truth, 25), np.repeat(said, 25), 2)
    often = estimate_areas(copies, [30.0, 70.0], design=design)
    assert errors(often) == pytest.approx(errors(once))
    naive = estimate_areas(copies.matrix(), [30.0, 70.0], design=design)  # as if each pixel had been drawn by itself
    assert (naive.area[0].error or 0) < 0.25 * (often.area[0].error or 0)


def fields(generator: np.random.Generator, number: int) -> tuple[Integers, Integers, Integers]:
    """Parcels of 1 to 30 pixels: one class each in the field, on the map some pixels of the other."""
    sizes, truth = generator.integers(1, 31, number), generator.integers(0, 3, number)
    wrong = generator.random(number) < 0.2
    said = np.where(wrong, (truth + 1) % 3, truth)
    pixels = np.repeat(said, sizes)
    noise = generator.random(len(pixels)) < 0.1
    return np.repeat(np.arange(number), sizes), np.repeat(truth, sizes), np.where(noise, (pixels + 1) % 3, pixels)


def test_samples_of_parcels_drawn_again_spread_as_the_errors_say() -> None:
    generator = np.random.default_rng(5)
    parcels, truth, said = fields(generator, 4000)
    starts = np.searchsorted(parcels, np.arange(4001))
    mapped = np.bincount(said, minlength=3)
    found = []
    for _ in range(300):
        drawn = generator.choice(4000, 150, replace=False)
        chosen = np.concatenate([np.arange(starts[one], starts[one + 1]) for one in drawn])
        counts = count_parcels(parcels[chosen], truth[chosen], said[chosen], 3)
        found.append(estimate_areas(counts, mapped, design="random"))
    cases: dict[str, tuple[list[Any], float]] = {
        "area": ([each.area[0] for each in found], float((truth == 0).sum())),
        "overall": ([each.overall_accuracy for each in found], float((truth == said).mean())),
        "user": ([each.users_accuracy[1] for each in found], float((truth == 1)[said == 1].mean())),
        "producer": ([each.producers_accuracy[2] for each in found], float((said == 2)[truth == 2].mean())),
    }
    for name, (estimates, true) in cases.items():
        values = np.array([entry.value for entry in estimates])
        margins = np.array([entry.margin for entry in estimates])
        assert values.mean() == pytest.approx(true, rel=0.03), name
        assert np.mean([entry.error for entry in estimates]) == pytest.approx(values.std(), rel=0.15), name
        assert 0.89 <= (np.abs(values - true) <= margins).mean() <= 0.99, name


def test_strata_that_parcels_do_not_keep_to_are_told() -> None:
    parcels, truth, said = fields(np.random.default_rng(1), 60)
    counts = count_parcels(parcels, truth, said, 3)
    told = [
        any("differently from most" in each for each in estimate_areas(counts, [1, 1, 1], design=design).warnings)
        for design in ("random", "stratified")
    ]
    assert told == [False, True]


# --- areas from maps and tables, and what is refused with one line


NAMES = ["maize", "wheat", "rye"]


def a_map(path: Path, values: Any, names: dict[int, str] | None = None, **changes: Any) -> Path:
    grid = a_grid(*values.shape)
    profile = {"crs": grid.rasterio_crs, "transform": grid.affine, "nodata": 255, "dtype": values.dtype, **changes}
    with rasterio.open(path, "w", driver="GTiff", count=1, height=grid.height, width=grid.width, **profile) as dataset:
        dataset.write(values, 1)
        dataset.update_tags(1, **{f"CLASS_{value}": name for value, name in (names or {}).items()})
        dataset.update_tags(CROPSTAR_MODEL="digest")
    return path


def test_pixels_of_a_map_by_name(tmp_path: Path) -> None:
    values = np.full((1100, 30), 255, dtype=np.uint8)  # more rows than are read at once
    values[:7, 0], values[1090:, 1] = 1, 0
    found = read_mapped(a_map(tmp_path / "map.tif", values, {0: "wheat", 1: "maize", 2: "hemp"}), NAMES)
    assert found.hectares == pytest.approx((0.07, 0.10, 0.0))  # pixels of 10 m
    assert found.model == "digest"


def test_a_table(tmp_path: Path) -> None:
    table = tmp_path / "areas.csv"
    table.write_bytes(b"\xef\xbb\xbfclass,note,hectares\r\nwheat,a,12.5\r\n rye ,b,0\r\n")
    assert read_mapped(table, NAMES).hectares == (0.0, 12.5, 0.0)
    assert read_mapped(table, NAMES).model is None


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("class,hectares\nhemp,3\n", MismatchError, "does not know the classes [hemp]"),
        ("class,hectares\nrye,3\nrye,4\n", InputError, "'rye' is listed twice"),
        ("class,hectares,hectares\nrye,3,4\n", InputError, "'hectares' is there 2 times"),
        ("class,hectares\nrye,1e308\n", InputError, "'1e308' in line 2 is not an area"),
        ("class,hectares\nrye,many\n", InputError, "'many' in line 2 is not an area"),
        ("class,hectares\nrye,-1\n", InputError, "'-1' in line 2"),
        ("class,hectares\nrye,nan\n", InputError, "'nan' in line 2"),
        ("class,hectares\nrye\n", InputError, "'' in line 2"),
        ("crop,ha\nrye,1\n", InputError, "its columns are crop, ha"),
        ("class,hectares\n", InputError, "no rows"),
        ("", InputError, "no rows"),
        ("class,hectares\nr\udce4,1\n", InputError, "cannot be read"),
        ("x" * 1_100_000, InputError, "too large"),
    ],
)
def test_tables_that_are_refused(text: str, kind: type[CropstarError], words: str, tmp_path: Path) -> None:
    table = tmp_path / "areas.csv"
    table.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(kind) as caught:
        read_mapped(table, NAMES)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_maps_that_are_refused(tmp_path: Path) -> None:
    values = np.ones((4, 5), dtype=np.uint8)
    cases = {
        "no class names": a_map(tmp_path / "nameless.tif", values),
        "have no name": a_map(tmp_path / "unnamed.tif", values, {0: "rye"}),
        "not in metres": a_map(tmp_path / "degrees.tif", values, {1: "rye"}, crs="EPSG:4326"),
        "not know the classes [hemp]": a_map(tmp_path / "hemp.tif", values, {1: "hemp"}),
        "unlike maps made by cropstar": a_map(tmp_path / "wide.tif", values.astype(np.uint16), {1: "rye"}, nodata=None),
        "neither .tif nor .csv": Path(__file__),
        "no such file": tmp_path / "none.tif",
    }
    (tmp_path / "text.tif").write_text("no raster")
    cases["not a GeoTIFF"] = tmp_path / "text.tif"
    for words, path in cases.items():
        with pytest.raises((InputError, MismatchError)) as caught:
            read_mapped(path, NAMES)
        assert words in str(caught.value)


def test_a_map_cut_short(tmp_path: Path) -> None:
    whole = a_map(tmp_path / "map.tif", np.ones((900, 900), dtype=np.uint8), {1: "rye"}).read_bytes()
    (tmp_path / "cut.tif").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError):
        read_mapped(tmp_path / "cut.tif", NAMES)
