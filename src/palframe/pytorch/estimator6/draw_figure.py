"""Figures."""

from shoal.compat.topspin.draw_figure import draw_figure, main  # noqa: F401

if __name__ == "__main__":
    raise SystemExit(main())
