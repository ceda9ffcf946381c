#!/usr/bin/env bash
# draw.sh PANELS.json PICTURE.png: draws the dashboard from the data that the test `alerts` left (E2E_PANELS). Its Python packages are
# kept in the cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${GOLDEN_CATALOG_CACHE:-$HOME/.cache/golden-catalog}/dashboard-draw
[ -x "$cache/bin/python" ] || python3 -m venv "$cache"
"$cache/bin/python" -c 'import matplotlib' 2>/dev/null || "$cache/bin/pip" install --quiet 'matplotlib>=3.9,<4'
"$cache/bin/python" "$here/draw.py" "$here/../../helm/kubernetes-worker-image/dashboards/golden-images.json" "$1" "$2"
