#!/usr/bin/env bash
# Runs the tests with the pytest of an environment: .ci/test.sh BIN [thorough] [PYTEST OPTION...]
#
# thorough: the tests with that marker, which are otherwise left out.
# Most tests wait for processes and networks, so four run side by side; those that assert times run alone after them.
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$1
shift
which="not interop and not frameworks and not browser and not thorough"
if [ "${1:-}" = thorough ]; then
  which=thorough
  shift
fi
# Each HTTP client reads the CAs that it trusts; the 150 of a machine take it 50 ms. Tests call nobody outside.
export SSL_CERT_FILE=$PWD/.ci/nobody.pem
# In a fresh clone each of the four would compile all the tests and what they import: two compile a half each before.
if [ ! -e tests/__pycache__ ]; then
  folders=(tests/*/)
  half=$((${#folders[@]} / 2))
  for first in 0 "$half"; do
    env -u PYTHONDONTWRITEBYTECODE "$bin/python" -m pytest -q --collect-only -p no:cacheprovider \
      "${folders[@]:first:half+1}" >/dev/null 2>&1 &
  done
  wait # what does not compile is told below
fi
.ci/pytest.sh "$bin" -n 4 --dist worksteal --durations 15 -m "$which and not alone" "$@"
# Only their files: to collect all the tests takes 6 s more.
mapfile -t alone < <(grep -rl --include='*.py' 'mark\.alone' tests)
.ci/pytest.sh "$bin" --durations 10 -m "$which and alone" "$@" "${alone[@]}"
[ "$which" = thorough ] || echo "Left out: tests that repeat these with more inputs, processes or kills; make thorough runs them, as CI does"
