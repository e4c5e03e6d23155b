#!/usr/bin/env bash
# Runs jinja_compare.py with $MONOLAYER_PYTHON, else .venv/bin/python; 77 (skipped) without either.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${MONOLAYER_PYTHON:-$here/../.venv/bin/python}
if ! command -v "$python" >/dev/null; then
  echo "jinja_compare: no Python with jinja2 (set MONOLAYER_PYTHON, or make .venv)" >&2
  exit 77
fi
exec "$python" "$here/jinja_compare.py" "$@"
