#!/bin/sh
# Makes coordinator_pb2*.py anew. The compiler is pinned and lives in its own environment: generated code refuses a
# protobuf or grpcio older than the compiler's, and the newest compiler would shut out runtimes we support.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
tools=$(mktemp -d)
trap 'rm -rf "$tools"' EXIT
python3 -m venv "$tools"
"$tools/bin/pip" install --quiet grpcio-tools==1.76.0
cd "$root"
"$tools/bin/python" -m grpc_tools.protoc -I src --python_out=src --grpc_python_out=src --pyi_out=src \
    psrl/schemas/proto/coordinator.proto
