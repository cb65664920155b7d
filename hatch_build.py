"""The build hook: compiles the kernels where a C++ compiler is there, and says so where not.

An install without a compiler works: cropstar then computes with PyTorch alone, as `CROPSTAR_NATIVE=0` would have it.
"""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import sys_tags


class NativeBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """`version` is "standard" for wheels and "editable" for `pip install -e`, which keeps the library in place.

        A wheel's is built elsewhere: the sources may be read-only, or serve the editable install of another system.
        """
        build = _load_build(Path(self.root))
        self._folder = tempfile.mkdtemp()
        if version == "editable" and build.is_current():  # `make` installs once for each group of extras
            return
        folder = build.HERE if version == "editable" else Path(self._folder)
        reason: str | None = build.build_in(folder)
        if reason is not None:
            self.app.display_warning(f"cropstar's kernels were not built: {reason}; it will compute with PyTorch alone")
        else:
            self.app.display_success("cropstar's kernels were built")
        if version == "editable":
            return
        made = build.LIBRARY if reason is None else build.NOTE
        build_data["force_include"][str(folder / made.name)] = str(made.relative_to(self.root))
        if reason is None:
            # Any Python, but this platform: the library does not know of Python's ABI.
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{_platform()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def clean(self, versions: list[str]) -> None:
        build = _load_build(Path(self.root))
        build.LIBRARY.unlink(missing_ok=True)
        build.NOTE.unlink(missing_ok=True)


def _load_build(root: Path) -> ModuleType:
    """The compiling part by its file: importing cropstar could find another one that is installed."""
    specification = importlib.util.spec_from_file_location("cropstar_native_build", root / "cropstar/native/build.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _platform() -> str:
    """Of a wheel for machines like this one; many- and musllinux promise more than a local compiler keeps."""
    return next(tag.platform for tag in sys_tags() if not tag.platform.startswith(("manylinux", "musllinux")))
