"""The `cropstar` command, also as `python -m cropstar`. Signals are watched before anything else is imported."""

from __future__ import annotations

from cropstar.signals import watch_signals


def main() -> None:
    watch_signals()
    from cropstar.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
