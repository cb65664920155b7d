"""The `cropstar` command, also as `python -m cropstar`. Signals are watched before anything else is imported."""

from __future__ import annotations

import os
import sys

from cropstar.signals import watch_signals

# rasterio imports boto3 where it is installed, for buckets alone: a tenth of a second, and a socket that nobody needs.
# Here, and not in `main`: worker processes import this module too, with the same arguments, before they do anything.
if os.path.basename(sys.argv[0]) in ("cropstar", "__main__.py") and "--allow-remote" not in sys.argv:
    sys.modules["boto3"] = None  # type: ignore[assignment]


def main() -> None:
    watch_signals()
    from cropstar.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
