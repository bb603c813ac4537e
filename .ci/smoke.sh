#!/usr/bin/env bash
# Serves and evaluates with an installed evald: smoke.sh BIN [SDK_BIN]
#
# BIN is the directory with the commands of an environment with evald[server]. SDK_BIN is that of an environment with
# the SDK alone, whose remote evaluators and client then use this server.
set -euo pipefail
bin=$1
sdk=${2:-}
cd "$(mktemp -d)" # away from the checkout, so that nothing but the installed packages is imported
unset "${!EVALD_@}" PYTHONPATH

fail() {
  echo "smoke: $*" >&2
  cat server.log >&2
  exit 1
}

# Every generated module imports under the protobuf and grpc that are installed.
"${sdk:-$bin}/python" -W error - <<'PYTHON'
import importlib, pathlib, evald
root = pathlib.Path(evald.__path__[0])
names = sorted(file.relative_to(root.parent).with_suffix("").as_posix() for file in root.rglob("*_pb2*.py"))
assert len(names) >= 9, names
for name in names:
    importlib.import_module(name.replace("/", "."))
PYTHON

EVALD_REMOTE_ALLOWED=127.0.0.1 "$bin/evald" serve --listen 127.0.0.1:0 --http 127.0.0.1:0 --web 127.0.0.1:0 >server.log 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
address=
for _ in $(seq 600); do # 60 s, beside other steps
  address=$(grep -m 1 -oE 'gRPC on [^, ]+' server.log | cut -d ' ' -f 3) && [ -n "$address" ] && break
  kill -0 "$server" 2>/dev/null || fail "the server ended"
  sleep 0.1
done
[ -n "$address" ] || fail "the server was not ready within 60 s"

echo '[{"role": "user", "content": "Where to?"}, {"role": "assistant", "content": "You fly to Lisbon, BK-12345."}]' >conversation.json
"$bin/evald" evaluate conversation.json --server "$address" \
  -e regex:pattern='BK-[0-9]+' -e contains:text=Lisbon -e response-length || fail "a turn that is good did not pass"
code=0
"$bin/evald" evaluate conversation.json --server "$address" -e contains:text=Porto >failed.log || code=$?
[ "$code" = 1 ] || fail "a turn that is bad ended with $code, wanted 1: $(cat failed.log)"

if [ -n "$sdk" ]; then
  code=0
  said=$("$sdk/evald" serve 2>&1) || code=$?
  [ "$code" = 2 ] && [ "$said" = "evald serve needs the server: pip install 'evald[server]'" ] ||
    fail "evald serve without the server ended with $code and said: $said"

  cat >remote.py <<'PYTHON'
import sys
import evald

@evald.assertion(f"acme.{sys.argv[1]}", config_schema={"type": "object", "properties": {"word": {"type": "string"}}})
def says(ctx):
    return ctx.config["word"] in (ctx.answer or "")

if sys.argv[1] == "listening":
    evald.serve(says, register=sys.argv[2])
else:
    evald.connect(says, server=sys.argv[2])
PYTHON
  "$sdk/python" -W error remote.py listening "$address" >>server.log 2>&1 &
  listening=$!
  "$sdk/python" -W error remote.py dialling "$address" >>server.log 2>&1 &
  dialling=$!
  trap 'kill "$server" "$listening" "$dialling" 2>/dev/null || true' EXIT
  "$sdk/python" -W error - "$address" <<'PYTHON' || fail "remote evaluators of the SDK alone did not work"
import json, pathlib, sys, time
import evald

conversation = json.loads(pathlib.Path("conversation.json").read_text(encoding="utf-8"))
remote = [{"type": f"acme.{way}", "config": {"word": "Lisbon"}} for way in ("listening", "dialling")]
with evald.Client(sys.argv[1]) as client:
    for _ in range(600):  # 60 s
        live = {found.type for found in client.evaluator_types() if found.instance_count}
        if {"acme.listening", "acme.dialling"} <= live:
            break
        time.sleep(0.1)
    evaluation = client.evaluate(conversation, [*remote, "response-length"])
    assert evaluation.passed and len(evaluation.results) == 3, evaluation
    assert not client.evaluate(conversation, [{**remote[0], "config": {"word": "Porto"}}]).passed
PYTHON
  kill -TERM "$listening" "$dialling"
  wait "$listening" || fail "the listening evaluator did not stop cleanly"
  wait "$dialling" || fail "the dialling evaluator did not stop cleanly"
fi

kill -TERM "$server"
wait "$server" || fail "the server did not stop cleanly"
echo "smoke: serves and evaluates with $("$bin/python" --version)"
