#!/usr/bin/env bash
# Builds the wheel and installs it alone: the SDK, then the server with the newest packages there are, with the oldest
# ones that pyproject.toml promises, and as the Dockerfile does. Each has to serve and evaluate. With the oldest ones
# the tests of what depends on their versions run as well, because a lower bound that nothing tests is a guess.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# With the oldest packages the oldest Python of this machine, else the newest.
oldest=$(.ci/pythons.sh | head -n 1 | cut -d ' ' -f 2)
newest=$(.ci/pythons.sh | tail -n 1 | cut -d ' ' -f 2)

.venv/bin/pip wheel --quiet --no-deps --wheel-dir "$work/dist" .
wheel=$(ls "$work"/dist/evald-*.whl)
.venv/bin/python - "$wheel" <<'PYTHON'
import sys, zipfile
top = {name.partition("/")[0] for name in zipfile.ZipFile(sys.argv[1]).namelist()}
packages = {name for name in top if not name.endswith(".dist-info")}
assert packages == {"evald", "evald_server"}, f"the wheel holds {sorted(packages)}"
PYTHON

# pip_in ENVIRONMENT ARGUMENT...: with the pip of .venv, because to give each environment its own takes 6 s.
pip_in() {
  .venv/bin/pip --python "$work/$1/bin/python" "${@:2}"
}

# install PYTHON ENVIRONMENT WHAT...: what is imported is compiled then, and nothing else.
install() {
  "$1" -m venv --without-pip "$work/$2"
  pip_in "$2" install --quiet --no-compile "${@:3}"
}

install_locked() {
  install "$newest" locked --require-hashes -r deploy/requirements.lock
  pip_in locked install --quiet --no-compile "$wheel[server,fast,jwt,postgres,web]"
}

# at_most NUMBER ENVIRONMENT: fails when it holds more packages beside evald.
at_most() {
  local count
  count=$(pip_in "$2" list --format=freeze | grep -cvE '^(pip|setuptools|evald)==')
  echo "$count packages beside evald, at most $1"
  [ "$count" -le "$1" ]
}

# Side by side: they wait for the registry.
.venv/bin/python .ci/lowest.py >"$work/lowest.txt"
installs=()
install "$newest" sdk "$wheel" & installs+=($!)
install "$newest" newest "$wheel[server]" & installs+=($!)
install "$oldest" oldest "$wheel[server,fast,jwt,postgres,web]" pytest pytest-xdist hypothesis buf-bin jsonschema llmock \
  --constraint "$work/lowest.txt" & installs+=($!)
install_locked & installs+=($!)
for install in "${installs[@]}"; do wait "$install"; done

echo "-- newest packages: the SDK alone, then the server"
at_most 10 sdk
at_most 32 newest
pip_in newest install --quiet "$wheel[web]"
at_most 37 newest
.ci/smoke.sh "$work/newest/bin" "$work/sdk/bin"

echo "-- oldest packages"
pip_in oldest list --format=freeze | grep -E '^(grpcio|protobuf|pydantic)=='
.ci/smoke.sh "$work/oldest/bin"
# What depends on their versions depends on the interpreter, too: protobuf, grpc and pydantic in the SDK, in calls and in
# remote evaluators; jsonschema-rs; SQLAlchemy, Alembic and psycopg in the store; joserfc.
# Not tests/foreign: on a busy machine gRPC 1.71 refuses calls (RST_STREAM 7) after hundreds whose evaluators raised.
.ci/interpreter.sh "$work/oldest/bin" --ignore=tests/foreign

echo "-- locked packages, as in the Dockerfile"
.ci/smoke.sh "$work/locked/bin"
