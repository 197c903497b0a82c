# Sourced by quickstart.sh and test.sh: brings the Debian packages they were told to bring.
#
#   install_packages PACKAGE…     installs what is missing, with sudo only when not root
#
# With --no-install among the script's own arguments (NO_INSTALL=1) nothing is installed.

install_packages() {
  local missing=() package
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
  done
  if [ "${#missing[@]}" -eq 0 ]; then
    echo "All packages are there."
    return 0
  fi
  if [ "${NO_INSTALL:-0}" = 1 ]; then
    echo "Not installed (--no-install): ${missing[*]}"
    return 0
  fi
  if ! command -v apt-get >/dev/null; then
    echo "This system has no apt-get. Please install what corresponds to: ${missing[*]}" >&2
    echo "and run this again with --no-install." >&2
    return 1
  fi
  local sudo=""
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  echo "Installing with apt: ${missing[*]}"
  # A list of packages that is a few hours old is good enough; a fresh system has none.
  if ! $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/tmp/refrain-apt.$$ 2>&1; then
    $sudo apt-get update -q >/dev/null
    $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/tmp/refrain-apt.$$ 2>&1 ||
      { cat /tmp/refrain-apt.$$ >&2; rm -f /tmp/refrain-apt.$$; return 1; }
  fi
  rm -f /tmp/refrain-apt.$$
}

# What building the library and the command needs; libdnnl-dev (oneDNN) and libgloo-dev (more than one
# rank) are optional for CMake and worth having.
REFRAIN_BUILD_PACKAGES=(g++ cmake ninja-build libeigen3-dev libhwy-dev libdnnl-dev libgloo-dev nlohmann-json3-dev libtomlplusplus-dev libssl-dev zlib1g-dev)
REFRAIN_DATA_PACKAGES=(dataset-fashion-mnist)
REFRAIN_TEST_PACKAGES=(catch2)
