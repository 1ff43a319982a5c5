#!/usr/bin/env bash
# Runs the tests where things are awkward: on one CPU, not as root, without HOME, with LANG=C, without data
# beside the project, from a copy of the checkout and with temporary files in paths with spaces.
#
#   tools/awkward.sh PYTHON [ARGUMENT OF PYTEST ...]
set -euo pipefail
python=$(realpath -s "$(command -v "$1")")
shift
cd "$(dirname "$0")/.."
place=$(mktemp -d -t "pointvar awkward.XXXXXX")
trap 'rm -rf "$place"' EXIT
copy="$place/a check out"
mkdir -p "$copy/src/pointvar" "$place/temporary files"

git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' file; do
  [ ! -e "$file" ] || printf '%s\0' "$file"  # one that was removed is listed until the next commit
done | xargs -0 cp --parents -t "$copy" --
# The kernels lie in the package or, of an editable install, beside the other packages.
"$python" -c 'import pointvar._native_baseline as kernels; print(kernels.__file__)' | while IFS= read -r file; do
  cp "$(dirname "$file")"/_native* "$copy/src/pointvar"
done
# An editable install finds the package before PYTHONPATH does, and so not the copy.
cat >"$copy/src/sitecustomize.py" <<'END'
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in repr(finder)]
END

as_nobody=()
if [ "$(id -u)" -eq 0 ]; then
  as_nobody=(setpriv --reuid=nobody --regid="$(id -g nobody)" --clear-groups)
  if "${as_nobody[@]}" env -u HOME sh -c "'$python' -c 'import torch'" 2>/dev/null; then
    chown -R nobody "$place"
  else
    echo "nobody may not run $python: the tests run as root, and what root may always do is not tested"
    as_nobody=()
  fi
fi
# The first of the CPUs that this process may use.
cpu=$(taskset -cp $$ | sed 's/.*: //; s/[,-].*//')
cd "$copy"
env -u HOME -u POINTVAR_DATA -u POINTVAR_CACHE -u XDG_CACHE_HOME LANG=C LC_ALL=C TMPDIR="$place/temporary files" \
  PYTHONPATH="$copy/src" taskset -c "$cpu" "${as_nobody[@]}" \
  "$python" -m pytest -q -p no:cacheprovider "$@"
