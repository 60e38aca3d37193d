# Sourced by the scripts beside it: makes .venv, with torch first (by plain pip, so that the CPU build is kept
# where there is one) and Shoal with the extras named in $1. Re-running costs little.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
VENV="${SHOAL_VENV:-.venv}"
PYTHON="${PYTHON:-python3}"

say() { printf '\033[1m▸ %s\033[0m\n' "$*" >&2; }

"$PYTHON" - <<'PY' || { echo "Shoal needs Python 3.11 or newer; set PYTHON=/path/to/python3.11" >&2; exit 2; }
import sys
sys.exit(sys.version_info < (3, 11))
PY

# pip, with a line for each package it downloads: torch alone takes minutes on a slow line.
install() {
  "$VENV/bin/pip" install --no-compile --disable-pip-version-check --no-color --progress-bar off "$@" \
    2> >(grep -v '^WARNING: Location' >&2) | sed -un 's/^ *Downloading \([^ ]*\) \((.*)\)$/  \1 \2/p' >&2
}

# What was installed is remembered by a hash and the extras, so that a second run starts at once.
hash="$(cat pyproject.toml compat/pyproject.toml constraints.txt scripts/_venv.sh hatch_build.py console/package-lock.json | cksum)"
has_all() {  # the marker file holds the hash and ",extra,extra,"
  local marker extra
  marker="$(cat "$VENV/.shoal-installed" 2>/dev/null)" || return 1
  [[ "$marker" == "$hash "* ]] || return 1
  [[ "$marker" == *",dev,"* ]] && return 0
  for extra in ${1//,/ }; do [[ "$marker" == *",$extra,"* ]] || return 1; done
}
if ! has_all "$1"; then
  say "Setting up $VENV (once; torch is the large part)"
  [ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
  # Before it was split in two, the distribution had the name of another project on PyPI.
  "$VENV/bin/pip" uninstall -q -y --disable-pip-version-check shoal 2>/dev/null || true
  install "torch==$(sed -n 's/^torch==//p' constraints.txt)"
  install -c constraints.txt -e ".[$1]" -e ./compat
  # JupyterLab brings it; jsonschema would then compile a grammar whenever it is imported, for seconds, in each process of Ray's.
  "$VENV/bin/pip" uninstall -q -y --disable-pip-version-check rfc3987-syntax 2>/dev/null || true
  "$VENV/bin/python" -m compileall -q -j 0 "$VENV/lib" >/dev/null 2>&1 || true  # on all cores, which pip does on one; some files are templates
  before="$(cat "$VENV/.shoal-installed" 2>/dev/null)" || before=""
  [[ "$before" == "$hash "* ]] || before="$hash "
  echo "$before,$1," > "$VENV/.shoal-installed"
fi
PATH="$PWD/$VENV/bin:$PATH"
