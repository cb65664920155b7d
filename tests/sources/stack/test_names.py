"""Names of dated files: what is put into a name is found in it, and nothing else is."""

from __future__ import annotations

from datetime import date
from pathlib import PurePosixPath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cropstar.errors import UsageError
from cropstar.geo.sensors import SENTINEL2, band_name
from cropstar.sources.stack import StackOptions
from cropstar.sources.stack.names import Name, NamePattern, UnclearName, guess_name, tile_name

MARCH = date(2018, 3, 12)
PREFIXES = ("", "S2", "S2A", "S2B_MSI", "SENTINEL-2_MSI", "L2A", "N0208_R008", "A013590", "brittany", "R10m", "v1-7")
DATE_FORMS = ("%Y%m%d", "%Y-%m-%d", "%Y_%m_%d", "%Y.%m.%d", "%Y%m%dT104021", "%Y-%m-%dT104021Z", "%Y%m%dT1040")
LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ"
TILES = st.builds(
    "{}{:02d}{}{}{}".format,
    st.sampled_from(["", "T"]),
    st.integers(1, 60),
    st.sampled_from("CDEFGHJKLMNPQRSTUVWX"),
    st.sampled_from(LETTERS),
    st.sampled_from(LETTERS[:20]),
)
BANDS = st.sampled_from([*SENTINEL2, "SCL", "B1", "B2", "B8", "B9", "b04", "b8a", "scl", "B08A"])
DATES = st.dates(date(2000, 1, 1), date(2099, 12, 31))


@st.composite
def names(draw: st.DrawFn) -> tuple[str, Name]:
    """A path below a folder, and what it says; words in any order, some of them in the names of folders."""
    day, tile = draw(DATES), draw(st.none() | TILES)
    band = draw(st.none() | BANDS)
    words = [day.strftime(draw(st.sampled_from(DATE_FORMS))), *([tile] if tile else []), *([band] if band else [])]
    words = draw(st.permutations(words))
    separators = st.sampled_from(["_", "-", ".", " ", "/", "__"])
    text = words[0] + "".join(draw(separators) + word for word in words[1:])
    prefix, suffix = draw(st.sampled_from(PREFIXES)), draw(st.sampled_from(["", "_10m", "_FRE", "-clip"]))
    text = (
        f"{prefix}{draw(separators) if prefix else ''}{text}{suffix}{draw(st.sampled_from(['.tif', '.TIF', '.tiff']))}"
    )
    return text, Name(day, band and band_name(band), tile and tile_name(tile))


@given(names())
@settings(max_examples=300)
def test_what_is_put_into_a_name_is_found_in_it(case: tuple[str, Name]) -> None:
    text, expected = case
    assert guess_name(PurePosixPath(text)) == expected


@given(TILES, st.sampled_from("_-. "), st.sampled_from(PREFIXES))
@settings(max_examples=100)
def test_a_tile_is_neither_date_nor_band(tile: str, separator: str, prefix: str) -> None:
    assert guess_name(PurePosixPath(f"{prefix}{separator}{tile}.tif")) == Name(None, None, tile_name(tile))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("SENTINEL-2_MSI_31TEJ_B8A_2018-03-12.tif", Name(MARCH, "B8A", "T31TEJ")),
        ("T31TEJ_20180312T104021_B02_10m.tif", Name(MARCH, "B02", "T31TEJ")),
        (
            "S2A_MSIL2A_20180312T104021_N0500_R008_T31TEJ_20230714T141558_B02.tif",  # processed years later
            Name(MARCH, "B02", "T31TEJ"),
        ),
        ("SENTINEL2A_20180312-104021-461_L2A_T31TEJ_D_V1-7_FRE_B2.tif", Name(MARCH, "B02", "T31TEJ")),  # THEIA
        ("S2B_31TEJ_20180312_0_L2A/B02.tif", Name(MARCH, "B02", "T31TEJ")),  # a folder a scene
        ("HLS.S30.T31TEJ.2018071T104021.v2.0.B8A.tif", Name(MARCH, "B8A", "T31TEJ")),  # day of the year
        ("2018-03-12/B2.tif", Name(MARCH, "B02")),
        ("31TEJ/B11/20180312.tif", Name(MARCH, "B11", "T31TEJ")),
        ("download_2024-01-05/S2_2018_03_12.tif", Name(MARCH)),  # the file's own name comes first
        ("B04_B03_B02_2018-03-12.tif", Name(MARCH)),  # a file of several bands
        ("2018-03-12/RGB.tif", Name(MARCH)),
        ("S2_2018-02-30_B02.tif", Name(None, "B02")),  # no day of the calendar
        ("orbit120180312_B02.tif", Name(None, "B02")),
        ("S2_201803120_B02.tif", Name(None, "B02")),
        ("N0208_B13_B022_XB02_20180312.tif", Name(MARCH)),  # B13 and the like are not bands
        ("dem.tif", Name(None)),
    ],
)
def test_names_as_they_are(path: str, expected: Name) -> None:
    assert guess_name(PurePosixPath(path)) == expected


@pytest.mark.parametrize("name", ["mean_20180301_20180315_B02.tif", "T31TEJ_T31TDJ_20180312_B02.tif"])
def test_a_name_that_says_two_things_is_no_guess(name: str) -> None:
    with pytest.raises(UnclearName, match="and"):
        guess_name(PurePosixPath(name))


# --- patterns


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("S2_{band}_{date}.tif", "deep/S2_B2_2018_03_12.tif", Name(MARCH, "B02")),
        ("S2_{band}_{date}", "S2_red_20180312T104021.tiff", Name(MARCH, "RED")),
        ("{tile}_{date}{*}_{band}.tif", "h18v04_20180312_v2_B8A.tif", Name(MARCH, "B8A", "h18v04")),
        ("{*}_{date}_*.tif", "S2A_20180312_20190101_v2.tif", Name(MARCH)),  # the first date
        ("{date}/{band}.tif", "2018-03-12/B02.tif", Name(MARCH, "B02")),
        ("{date}/{band}.tif", "B02.tif", None),
        ("{date}/{band}.tif", "T31TEJ/2018-03-12/B02.tif", None),
        ("S2_{date}.tif", "S2_2018-03-12.tif.tif", None),
        ("S2.{date}.tif", "S2x2018-03-12.tif", None),  # a dot is a dot
        ("S2_{date}.tif", "S2_2018-13-12.tif", None),
        ("S2_{date}.tif", "S2_2018-0312.tif", None),
        ("T{tile}_{date}.tif", "T31TEJ_20180312.tif", Name(MARCH, None, "T31TEJ")),
    ],
)
def test_patterns(pattern: str, path: str, expected: Name | None) -> None:
    assert NamePattern.parse(pattern, "--pattern").match(PurePosixPath(path)) == expected


@given(DATES, BANDS, st.text("abcXYZ0123.+()[]^$-", max_size=8), st.sampled_from(DATE_FORMS))
def test_a_pattern_reads_what_it_writes(day: date, band: str, literal: str, form: str) -> None:
    pattern = NamePattern.parse(literal + "_{band}_{date}.tif", "--pattern")
    name = pattern.match(PurePosixPath(f"{literal}_{band}_{day.strftime(form)}.tif"))
    assert name == Name(day, band_name(band))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pattern": "S2_{band}.tif"}, "--pattern needs a {date}"),
        ({"pattern": "S2_{bnad}_{date}.tif"}, "unknown placeholder {bnad}"),
        ({"pattern": "{date}_{date}.tif"}, "{date} appears twice"),
        ({"pattern": "{tile}{band}_{date}.tif"}, "nothing stands between {tile} and {band}"),
        ({"pattern": "{band}_{date.tif"}, "needs a {date}"),
        ({"pattern": "{date}_}.tif"}, "a brace without its pair"),
        ({"pattern": "{*}a{*}a{*}a{*}a{*}a{*}{date}"}, "too long"),
        ({"masks": "mask_{band}_{date}.tif"}, "--masks has no {band}"),
        ({"masks": "mask.tif"}, "--masks needs a {date}"),
        ({"bands": ("B02", "B2")}, "each once"),
        ({"bands": ()}, "--bands needs names"),
        ({"clear": (0, 4)}, "scene classes are 1 to 11"),
        ({"resampling": "lanczos"}, "unknown resampling"),
    ],
)
def test_unusable_options_are_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        StackOptions(**options)
    assert words in str(caught.value)
    assert caught.value.remedy


def test_options_as_they_are_by_default_leave_no_trace() -> None:
    """So the recipes of stacks that were ingested before these options stay what they were."""
    assert StackOptions().to_json() == {}
    assert StackOptions(bands=("b2", "B8A"), clear=(5, 4)).to_json() == {
        "bands": ("B02", "B8A"),
        "scene_classes": [4, 5],
    }
