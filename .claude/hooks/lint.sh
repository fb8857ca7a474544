#!/usr/bin/env bash
# Format, lint, types and import rules: what `make lint` checks, on the whole project (it takes seconds).
# Usage: .claude/hooks/lint.sh [--fix]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [[ "${1:-}" == --fix ]]; then
    make --no-print-directory format
fi
exec make --no-print-directory lint
