#!/bin/sh
# wheels.sh: download everything the image installs into deploy/wheels, on a machine whose containers cannot reach an index.
# Run it with the pip of a Python 3.11 on Linux of the machine type that the image is for.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
pip=${PIP:-python3 -m pip}
index=${TORCH_INDEX:-https://download.pytorch.org/whl/cpu}
locks=$(cat "$here"/*.lock | cksum)
if [ "$(cat "$here/wheels/.locks" 2>/dev/null)" = "$locks" ] && ls "$here"/wheels/*.whl >/dev/null 2>&1; then exit 0; fi
mkdir -p "$here/wheels"
$pip download --quiet --no-deps --require-hashes --only-binary :all: -d "$here/wheels" -r "$here/requirements.lock"
$pip download --quiet --no-deps --require-hashes -d "$here/wheels" -r "$here/build.lock"
$pip download --quiet --no-deps --require-hashes -d "$here/wheels" -r "$here/torch.lock" ||
  $pip download --quiet --no-deps --require-hashes --extra-index-url "$index" -d "$here/wheels" -r "$here/torch.lock"
echo "$locks" >"$here/wheels/.locks"
