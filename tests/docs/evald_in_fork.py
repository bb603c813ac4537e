"""Stands for `evald` in the blocks of a page: has the fork server run the command with this process's arguments,
environment, directory and standard streams, and ends with its exit code. EVALD_TEST_FORKS: where its pipes are.
"""

import json
import os
import sys

request = {
    "arguments": sys.argv[1:],
    "environment": dict(os.environ),
    "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to import than all the rest
    "streams": [f"/proc/{os.getpid()}/fd/{number}" for number in range(3)],
}
folder = os.environ["EVALD_TEST_FORKS"]
with open(f"{folder}/requests", "w") as requests:  # noqa: PTH123
    requests.write(json.dumps(request) + "\n")
with open(f"{folder}/codes") as codes:  # noqa: PTH123
    sys.exit(int(codes.readline()))
