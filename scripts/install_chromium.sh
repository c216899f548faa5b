#!/bin/sh
# Find headless Chromium for the tests of report pages; install it where it is missing and CI=true.
# Elsewhere this only says which command would. Never fails: without it those tests are skipped.

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null 2>&1; then
    exit 0
  fi
done

command="apt-get install --no-install-recommends chromium fonts-dejavu-core"
if [ "${CI:-}" = true ] && command -v apt-get >/dev/null 2>&1; then
  as_root=""
  if [ "$(id -u)" -ne 0 ]; then
    as_root="sudo -n"
  fi
  echo "CI=true: installing chromium, to test report pages ..."
  if $as_root apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive $as_root $command -y -qq >/dev/null; then
    exit 0
  fi
fi

cat >&2 <<END
************************************************************************
*  CHROMIUM IS MISSING: nothing was installed.                         *
*  The tests that open report pages in a browser WILL BE SKIPPED.      *
*  To run them, on Debian or Ubuntu:                                   *
*    sudo $command
*  elsewhere any chromium or google-chrome on the PATH will do.        *
************************************************************************
END
exit 0
