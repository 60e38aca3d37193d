"""`python -m … .stopper PATH_WORK` stops a training."""

from shoal.compat.topspin.stopper import main

if __name__ == "__main__":
    raise SystemExit(main())
