"""Small files as the package writes them: an index, an h5 file, the class mapping with CRLF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
from numpy.typing import NDArray

L1C = ["B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B9", "B10", "B11", "B12", "QA10", "QA20", "QA60", "doa"]
L2A = ["doa", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B8A", "B11", "B12", "CLD", "EDG", "SAT"]
L2A_OLD = [*L2A[1:], "doa"]
ALPHABETIC = [L1C[0], *L1C[10:13], *L1C[1:10], *L1C[13:]]  # B1 B10 B11 B12 B2 ... B9
TYPICAL = {"B10": 15.0, "B1": 1200.0, "B9": 800.0, "QA10": 0.0, "QA20": 0.0, "EDG": 0.0, "SAT": 0.0}
CODES = {"BTH": 1, "ORH": 0, "MIS": 3, "PPH": 7, "RGA": 8, "CZH": 2}
MAPPING = (
    ",id,classname,code\r\n1,0,barley,ORH\r\n2,0,barley,ORP\r\n3,1,wheat,BTH\r\n4,2,rapeseed,CZH\r\n5,3,corn,MIS\r\n"
    "6,4,sunflower,TRN\r\n7,5,orchards,VRG\r\n8,6,nuts,NOX\r\n9,7,permanent meadows,PPH\r\n10,8,temporary meadows,RGA"
)
NANOSECONDS = 86_400e9
FIRST = 17_170  # 2017-01-04


def a_series(columns: list[str], length: int, seed: int, whole: bool = False, unit: float = NANOSECONDS) -> Any:
    """(T, columns) as float64, with clouds on every third date."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {name: TYPICAL.get(name, 2500.0) * random.uniform(0.5, 1.5, length) for name in columns}, dtype=np.float64
    )
    frame["doa"] = (FIRST + 5.0 * np.arange(length)) * unit
    for clouds in {"QA60", "CLD"} & set(columns):
        frame[clouds] = np.where(np.arange(length) % 3 == 1, 1024.0, 0.0)
    return (frame.round() if whole else frame).to_numpy()


def write_mapping(root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    (root / "classmapping.csv").write_bytes(MAPPING.encode())
    (root / "codes.csv").write_text(
        "Code Culture;Libellé Culture;Code Groupe Culture;Libellé Groupe Culture\n"
        "JAC;Jachère;11;Gel\nBTH;Blé tendre d'hiver;1;Blé tendre\n",
        encoding="utf-8",
    )


def write_region(
    root: Path,
    region: str = "frh01",
    *,
    level: str = "L1C",
    year: int = 2017,
    series: dict[int, NDArray[Any]] | None = None,
    codes: dict[int, str] | None = None,
    folder: str | None = None,
    **index_columns: Any,
) -> dict[int, NDArray[Any]]:
    """Write a region and answer the arrays by the parcels' ids. Keys are csv/<folder or region>/<id>.csv."""
    write_mapping(root)
    place = root / str(year) / level
    place.mkdir(parents=True, exist_ok=True)
    if series is None:
        names = L1C if level == "L1C" else L2A
        series = {key: a_series(names, 4 + key % 5, key) for key in (1007, 203, 31, 1010)}
    codes = codes or {key: list(CODES)[place % len(CODES)] for place, key in enumerate(series)}
    with h5py.File(place / f"{region}.h5", "w") as handle:
        for key, rows in series.items():
            handle.create_dataset(f"csv/{folder or region}/{key}.csv", data=rows)
    index = pd.DataFrame(
        {
            "id": list(series),
            "CODE_CULTU": [codes[key] for key in series],
            "path": [f"csv/{folder or region}/{key}.csv" for key in series],
            "meanCLD": 0.5,
            "sequencelength": [len(rows) for rows in series.values()],
            **index_columns,
        }
    )
    index.index.name = "idx"
    index.to_csv(place / f"{region}.csv")
    return series
