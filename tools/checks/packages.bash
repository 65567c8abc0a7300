# SPDX-License-Identifier: Apache-2.0
# For tools/run and .ci/run (sourced): installs the system packages that are missing.

# install_missing LINE...: each line is `package|command|why`. A package counts as there if its
# command is (whoever installed it), or, where the command is empty, if the package is installed.
install_missing() {
  local line package command why
  local missing=()
  for line in "$@"; do
    IFS='|' read -r package command why <<<"$line"
    if [[ -n $command ]]; then
      command -v "$command" >/dev/null && continue
    elif command -v dpkg-query >/dev/null &&
      [[ $(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) == installed ]]; then
      continue
    fi
    missing+=("$line")
  done
  ((${#missing[@]})) || return 0

  if ! is_supported_system; then
    echo "error: this set-up knows Debian 12 and Ubuntu 24.04 (or later) only, and this is neither."
    echo "Install what these Debian packages hold, then run again with --no-install:"
    printf '  %s\n' "${missing[@]//|*|/: }"
    return 1
  fi >&2

  local as_root=()
  if ((EUID != 0)); then
    if ! command -v sudo >/dev/null; then
      echo "error: packages are missing and there is no sudo. As root: apt-get install" \
        "${missing[@]%%|*}" >&2
      return 1
    fi
    as_root=(sudo)
  fi
  echo "Installing system packages that are missing, with ${as_root[*]:+sudo }apt-get:"
  for line in "${missing[@]}"; do
    IFS='|' read -r package command why <<<"$line"
    printf '  %-22s %s\n' "$package" "$why"
  done
  export DEBIAN_FRONTEND=noninteractive
  if ! "${as_root[@]}" apt-get update -qq ||
    ! "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]%%|*}" \
      >"$apt_log" 2>&1 </dev/null; then
    [[ -s $apt_log ]] && tail -n 20 "$apt_log" >&2
    echo "error: apt-get failed" >&2
    return 1
  fi
}

is_supported_system() {
  command -v apt-get >/dev/null && [[ -r /etc/os-release ]] || return 1
  local id version
  # shellcheck disable=SC1091  # the system's own file
  id=$(. /etc/os-release && echo "${ID:-}")
  # shellcheck disable=SC1091
  version=$(. /etc/os-release && echo "${VERSION_ID:-0}")
  case $id in
    debian) ((${version%%.*} >= 12)) ;;
    ubuntu) ((${version%%.*} >= 24)) ;;
    *) return 1 ;;
  esac
}

apt_log=$(mktemp)
trap 'rm -f "$apt_log"' EXIT
