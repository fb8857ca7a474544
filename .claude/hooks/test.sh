#!/usr/bin/env bash
# The tests that belong to a change: those of the changed modules and of the layer they are in.
# Shared ground (build files, test support, the error tree, wire and session rules) means more, up to everything.
# Usage: .claude/hooks/test.sh [BASE]     BASE: a git revision; default HEAD, so: what is not committed yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
make --silent venv

declare -A wanted=()
want() { for path in "$@"; do [[ -e "$path" ]] && wanted["$path"]=1; done; return 0; }

of_module() {  # src/openenv/core/link.py -> tests/core/test_link.py, or else the folder of its tests
    local inner="${1#src/openenv/}"
    local folder="tests/$(dirname "$inner")"
    local name; name="$(basename "$inner" .py)"
    if [[ -e "$folder/test_$name.py" ]]; then want "$folder/test_$name.py"; else want "$folder"; fi
}

changed=$(git diff --name-only "${1:-HEAD}" --; git ls-files --others --exclude-standard)
while IFS= read -r file; do
    case "$file" in
        "") ;;
        pyproject.toml | Makefile | tests/conftest.py | tests/support/*) want tests envs/sudoku_env/tests ;;
        src/openenv/core/exceptions.py | src/openenv/core/wire/* | src/openenv/core/session/*) want tests/core tests/envs ;;
        src/openenv_core/* | src/openenv/_*.py | src/openenv/*__init__.py)
            want tests/test_imports.py tests/test_typing.py ;;
        src/openenv/core/env_server/*) of_module "$file"; want tests/core/env_server tests/envs ;;
        src/openenv/*) of_module "$file"; want tests/envs ;;
        envs/gymnasium_env/*) want envs/gymnasium_env/tests tests/integrations/gymnasium ;;
        envs/sudoku_env/*) want envs/sudoku_env/tests tests/envs ;;
        tests/*test_*.py) want "$file" ;;
        *.md | .ci/* | .claude/*) want tests/test_project.py tests/test_docs.py ;;
    esac
done <<<"$changed"

if [[ ${#wanted[@]} -eq 0 ]]; then
    echo "No test belongs to this change."
    exit 0
fi
mapfile -t paths < <(printf '%s\n' "${!wanted[@]}" | sort)
printf 'Tests of this change: %s\n' "${paths[*]}"
exec .venv/bin/python -m pytest -q "${paths[@]}"
