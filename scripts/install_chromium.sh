#!/bin/sh
# Install headless Chromium for the tests of report pages, where it is missing and that is possible.
# Never fails: without it those tests are skipped, and this says so loudly.

for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null 2>&1; then
    exit 0
  fi
done

as_root=""
if [ "$(id -u)" -ne 0 ]; then
  if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    as_root="sudo -n"
  else
    as_root="false"
  fi
fi

if command -v apt-get >/dev/null 2>&1 && [ "$as_root" != "false" ]; then
  echo "installing chromium, to test report pages ..."
  if $as_root apt-get update -qq &&
    DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends \
      chromium fonts-dejavu-core >/dev/null; then
    exit 0
  fi
fi

echo "************************************************************************" >&2
echo "*  CHROMIUM IS MISSING and could not be installed here.                *" >&2
echo "*  The tests that open report pages in a browser WILL BE SKIPPED.      *" >&2
echo "*  Install it yourself (Debian: apt-get install chromium) to run them. *" >&2
echo "************************************************************************" >&2
exit 0
