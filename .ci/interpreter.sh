#!/usr/bin/env bash
# Runs the tests of what depends on the interpreter with the pytest of an environment: .ci/interpreter.sh BIN [OPTION...]
#
# The newest Python of a machine runs all tests. Scripts, JSON, deep data, calls that end, threads and loops of plugins,
# workers, runs, and packages in C run on the others too.
set -euo pipefail
cd "$(dirname "$0")/.."
export SSL_CERT_FILE=$PWD/.ci/nobody.pem
.ci/pytest.sh "$1" -n 4 --dist worksteal \
  -m "not alone and not interop and not frameworks and not browser and not thorough" \
  --ignore=tests/remote/test_processes.py --ignore=tests/worker/test_real_server.py \
  --ignore=tests/sdk/test_pytest_plugin.py --ignore=tests/store/test_kill.py \
  tests/auth/test_tokens.py tests/connectors/test_targets.py tests/evaluators/test_beyond_limits.py tests/foreign \
  tests/http/test_{api,streams}.py tests/jsonschema/test_{schema,second_opinion}.py tests/remote \
  tests/rpc/test_{batches,catalog,ended_calls,evaluation,lifecycle,messages,registry,sessions,suites}.py \
  tests/runs/test_stop_rules.py tests/scripts tests/sdk tests/store tests/worker "${@:2}"
