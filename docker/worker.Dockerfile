# The training image: torch, PyTorch Geometric, Ray and the `nml` command. By itself it joins the Ray cluster of
# `ray-head`; compose also makes the head and the encoder of it.
#
#   docker build -f docker/worker.Dockerfile -t nml-gcl-worker .
#   docker run --rm --shm-size=2g -e RAY_AUTH_TOKEN -v nml-data:/data nml-gcl-worker
#   docker run --rm -v nml-data:/data nml-gcl-worker nml train --dataset digits --out /data/runs/digits
#
# Build arguments, both empty by default:
#   TORCH_INDEX   the package index with the torch build you want (CPU only, or one CUDA version). Empty: the build of
#                 pip's own index, which on x86-64 is one for CUDA and several gigabytes large.
#   PYG_WHEELS    the page or folder with PyG's wheels of torch-sparse, torch-scatter and pyg-lib for that very torch:
#                 faster sampling. Empty: none; everything works without. Wheels that do not fit fail the build.

FROM python:3.11.14-slim-bookworm AS build
ARG TORCH_INDEX=""
ARG PYG_WHEELS=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/nml/bin:$PATH
RUN python -m venv /opt/nml
WORKDIR /src

# torch alone first, and only torch from that index; the next command brings what it needs. Large layers that change
# only with the pins.
COPY pyproject.toml constraints.txt ./
RUN pip install -c constraints.txt --no-deps ${TORCH_INDEX:+-i "$TORCH_INDEX"} torch
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *p['optional-dependencies']['serve'], *p['optional-dependencies']['train'], sep='\n')" > needed.txt && \
    pip install -c constraints.txt setuptools -r needed.txt
RUN if [ -n "$PYG_WHEELS" ]; then \
        pip install -c constraints.txt --no-deps --no-index --find-links "$PYG_WHEELS" \
            torch-scatter torch-sparse pyg-lib && \
        python -c "import torch_scatter, torch_sparse, pyg_lib"; \
    fi

COPY README.md LICENSE ./
COPY trainer trainer
COPY tuner tuner
COPY service service
RUN pip install -c constraints.txt --no-build-isolation --no-deps . && pip uninstall --yes pip


FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/nml /opt/nml
# A named volume takes its owner from the image, so the folder exists here and belongs to the user.
RUN useradd --uid 10001 --no-log-init --no-create-home --home-dir /tmp nml && install -d -m 0700 -o nml -g nml /data
ENV PATH=/opt/nml/bin:$PATH HOME=/tmp NML_HOME=/data MPLBACKEND=Agg MPLCONFIGDIR=/tmp/matplotlib PYTHONUNBUFFERED=1 \
    RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 MLFLOW_DISABLE_TELEMETRY=true
USER 10001:10001
WORKDIR /data
STOPSIGNAL SIGTERM
CMD ["ray", "start", "--address=ray-head:6379", "--block", "--disable-usage-stats"]
