#!/usr/bin/env bash
# Fetches a perf_analyzer that runs on glibc older than 2.38 (Debian 12, Ubuntu 22.04) into .cache/perf_analyzer.
#
#   tools/perf_analyzer.sh [DIR]                       then: .cache/perf_analyzer/perf_analyzer -m tts -i grpc --streaming …
#
# The binary is the one inside the tritonclient 2.50.0 wheel; libb64 and libcudart come from the nvidia-pytriton that is
# installed in .venv (or in $PYTHON). With glibc 2.38 or newer, `pip install perf-analyzer` does instead.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
folder=${1:-$root/.cache/perf_analyzer}
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$(command -v "$python")" ] || { echo "perf_analyzer.sh: no Python at $python; run 'make lint' first or set PYTHON" >&2; exit 2; }

download=$(mktemp -d)
trap 'rm -rf "$download"' EXIT
"$python" -m pip --disable-pip-version-check --quiet download --no-deps --only-binary=:all: \
  --platform manylinux1_x86_64 --dest "$download" tritonclient==2.50.0

"$python" - "$download" "$folder" <<'PY'
import importlib.util, pathlib, sys, zipfile

download, folder = map(pathlib.Path, sys.argv[1:])
package = importlib.util.find_spec("pytriton")
if package is None or package.origin is None:
    sys.exit("perf_analyzer.sh: nvidia-pytriton is not installed in this Python")
bundled = pathlib.Path(package.origin).parents[1] / "nvidia_pytriton.libs"

libraries = folder / "lib"
libraries.mkdir(parents=True, exist_ok=True)
for name, pattern in {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12.*"}.items():
    link = libraries / name
    link.unlink(missing_ok=True)
    link.symlink_to(next(bundled.glob(pattern)))

with zipfile.ZipFile(next(download.glob("tritonclient-*.whl"))) as wheel:
    name = next(entry for entry in wheel.namelist() if entry.endswith("/bin/perf_analyzer"))
    (folder / "perf_analyzer.bin").write_bytes(wheel.read(name))
(folder / "perf_analyzer").write_text(
    "#!/bin/sh\n"
    'here=$(cd "$(dirname "$0")" && pwd)\n'
    f'LD_LIBRARY_PATH="$here/lib:{bundled}${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}" exec "$here/perf_analyzer.bin" "$@"\n'
)
for name in ("perf_analyzer", "perf_analyzer.bin"):
    (folder / name).chmod(0o755)
PY
echo "$folder/perf_analyzer"
