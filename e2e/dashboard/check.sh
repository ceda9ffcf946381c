#!/usr/bin/env bash
# check.sh DASHBOARD.json: type-checks it against @grafana/schema. The npm packages are kept in the cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dashboard=$(realpath "$1")
cache=${GOLDEN_CATALOG_CACHE:-$HOME/.cache/golden-catalog}/dashboard-check
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
if ! cmp -s "$here/package.json" "$cache/package.json" || [ ! -x "$cache/node_modules/.bin/tsc" ]; then
  rm -rf "$cache/node_modules" "$cache/package.json"
  cp "$here/package.json" "$cache/package.new"
  (cd "$cache" && cp package.new package.json && npm install --no-audit --no-fund --ignore-scripts >&2) || { rm -f "$cache/package.json"; exit 1; }
fi
node "$here/check.mjs" "$dashboard" >"$cache/check.ts"
cd "$cache"
# The package's own declarations are not ours to check.
node_modules/.bin/tsc --noEmit --strict --skipLibCheck --target es2022 --module esnext --moduleResolution bundler check.ts
echo "$(grep -c '^export const panel' check.ts) panels agree with @grafana/schema $(node -p "require('./node_modules/@grafana/schema/package.json').version")"
