#!/bin/sh
# The one command of a bundle on a node: `node.sh job|start|attach|probe|distui …`. Finds a Python for distui's own
# processes (3.11 or newer, with msgspec and psutil from the bundle); the training's Python is another matter.
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd -P) || exit 2
IFS='
'
known="$here/../python-$(uname -n)"

candidates() {
    [ -n "$DISTUI_PYTHON" ] && echo "$DISTUI_PYTHON"
    [ -r "$known" ] && [ -O "$known" ] && cat "$known" # not what another account has put there
    for name in python3.13 python3.12 python3.11 python3.14 python3 python; do
        command -v "$name"
    done
    [ -n "$CONDA_PREFIX" ] && echo "$CONDA_PREFIX/bin/python"
    [ -n "$CONDA_EXE" ] && echo "$(dirname -- "$CONDA_EXE")/python"
    for root in "$HOME/miniconda3" "$HOME/miniforge3" "$HOME/anaconda3" /opt/conda /usr/local /usr; do
        echo "$root/bin/python3"
    done
}

from_uv() {
    uv=$(command -v uv || echo "$HOME/.local/bin/uv")
    [ -x "$uv" ] || return 1
    "$uv" python find '>=3.11,<3.15' 2>/dev/null && return 0
    "$uv" python install 3.12 >/dev/null 2>&1 && "$uv" python find 3.12 2>/dev/null
}

if [ "$1" = attach ]; then # any Python 3 will do, and every millisecond counts
    shift
    for python in $(candidates 2>/dev/null); do
        [ -x "$python" ] && exec "$python" -B -E -s -S "$here/bridge.py" "$@"
    done
fi

for python in $(candidates 2>/dev/null | awk '!seen[$0]++'); do
    found=$("$python" -B -E -s -S "$here/boot.py" fits 2>/dev/null) && exec "$found" -B -E -s "$here/boot.py" "$@"
done
for python in $(from_uv); do
    found=$("$python" -B -E -s -S "$here/boot.py" fits 2>/dev/null) && exec "$found" -B -E -s "$here/boot.py" "$@"
done
for python in $(candidates 2>/dev/null); do
    missing=$("$python" -B -E -s -S "$here/boot.py" lacks 2>/dev/null) && { echo "$missing" >&2; exit 2; }
done
echo "distui: $(uname -n) has no Python 3.11 to 3.14 for distui's agent: install one or uv there, or set DISTUI_PYTHON to its path" >&2
exit 2
