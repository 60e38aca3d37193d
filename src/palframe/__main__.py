"""`python -m palframe`."""

from shoal.compat.topspin.palframe_cli import main

if __name__ == "__main__":
    raise SystemExit(main())
