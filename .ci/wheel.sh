#!/usr/bin/env bash
# Builds the wheel and installs it alone: the SDK, then the server with the newest packages there are, with the oldest
# ones that pyproject.toml promises, and as the Dockerfile does. Each has to serve and evaluate. With the oldest ones
# the tests of what depends on their versions run as well, because a lower bound that nothing tests is a guess.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
oldest=$(.venv/bin/python -c 'import sys; print(sys.executable)')

# The newest Python of this machine, where there are several.
newest=$oldest
for candidate in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-9].*/bin/python3 python3.12 python3.13 python3.14; do
  if "$candidate" -c 'import venv' 2>/dev/null; then newest=$candidate; fi
done

.venv/bin/pip wheel --quiet --no-deps --wheel-dir "$work/dist" .
wheel=$(ls "$work"/dist/evald-*.whl)
.venv/bin/python - "$wheel" <<'PYTHON'
import sys, zipfile
top = {name.partition("/")[0] for name in zipfile.ZipFile(sys.argv[1]).namelist()}
packages = {name for name in top if not name.endswith(".dist-info")}
assert packages == {"evald", "evald_server"}, f"the wheel holds {sorted(packages)}"
PYTHON

environment() {
  "$1" -m venv "$2"
  "$2/bin/python" --version
}

# at_most NUMBER ENVIRONMENT: fails when it holds more packages beside evald.
at_most() {
  local count
  count=$("$2/bin/pip" list --format=freeze | grep -cvE '^(pip|setuptools|evald)==')
  echo "$count packages beside evald, at most $1"
  [ "$count" -le "$1" ]
}

echo "-- newest packages: the SDK alone, then the server"
environment "$newest" "$work/sdk"
"$work/sdk/bin/pip" install --quiet "$wheel"
at_most 10 "$work/sdk"
environment "$newest" "$work/newest"
"$work/newest/bin/pip" install --quiet "$wheel[server]"
at_most 34 "$work/newest"
"$work/newest/bin/pip" install --quiet "$wheel[web]"
at_most 39 "$work/newest"
.ci/smoke.sh "$work/newest/bin" "$work/sdk/bin"

echo "-- oldest packages"
environment "$oldest" "$work/oldest"
.venv/bin/python .ci/lowest.py >"$work/lowest.txt"
"$work/oldest/bin/pip" install --quiet "$wheel[server,fast,postgres,web]" pytest pytest-xdist hypothesis buf-bin jsonschema llmock --constraint "$work/lowest.txt"
"$work/oldest/bin/pip" list --format=freeze | grep -E '^(grpcio|protobuf|pydantic)=='
.ci/smoke.sh "$work/oldest/bin"
# What depends on their versions: protobuf, grpc and pydantic in the SDK, in calls and in remote evaluators; jsonschema-rs;
# SQLAlchemy, Alembic and psycopg in the store.
"$work/oldest/bin/python" -m pytest -q -n 2 --dist worksteal -p no:cacheprovider -m "not alone and not interop and not frameworks" \
  --ignore=tests/remote/test_processes.py --ignore=tests/worker/test_real_server.py \
  tests/sdk tests/worker tests/remote tests/store tests/jsonschema/test_{schema,second_opinion}.py tests/rpc/test_{evaluation,sessions,batches,catalog,registry,lifecycle,messages}.py

echo "-- locked packages, as in the Dockerfile"
environment "$newest" "$work/locked"
"$work/locked/bin/pip" install --quiet --require-hashes -r deploy/requirements.lock
"$work/locked/bin/pip" install --quiet ".[server,fast,postgres,web]"
.ci/smoke.sh "$work/locked/bin"
