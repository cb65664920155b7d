"""`python -m cropstar.native` compiles the kernels, or says why that does not work."""

from __future__ import annotations

import sys

from cropstar.native import build

reason = build.build_in_place()
if reason is not None:
    sys.exit(f"error: the kernels were not built: {reason}")
sys.stdout.write(f"built {build.LIBRARY}\n")
