# SPDX-License-Identifier: Apache-2.0
# Sourced by the checks: goes to the project's root, and lists its files.

cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# project_files PATTERN...: the project's files that match, one a line, new ones included. (The
# folder may belong to somebody else than who runs the check, as it does in containers.)
project_files() {
  git -c "safe.directory=$PWD" ls-files --cached --others --exclude-standard -- "$@" |
    while IFS= read -r file; do
      if [[ -f $file ]]; then printf '%s\n' "$file"; fi
    done
}

# newest_tool NAME: the command, or the highest of NAME-14, NAME-15, ... that there is.
newest_tool() {
  local version
  if command -v "$1"; then return; fi
  for version in {22..14}; do
    if command -v "$1-$version"; then return; fi
  done
  echo "error: $1 is not installed" >&2
  return 1
}
