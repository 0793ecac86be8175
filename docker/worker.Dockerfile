# The training image: torch, PyTorch Geometric, MLflow and the `nml` command.
#
#   docker build -f docker/worker.Dockerfile -t nml-gcl-worker .
#   docker run --rm -v nml-data:/data nml-gcl-worker train --dataset digits --out /data/runs/digits
#
# Build argument TORCH_INDEX: the package index with the torch build you want (CPU only, or one CUDA version).
# Empty, the default: the build that pip's own index offers.

FROM python:3.11.14-slim-bookworm AS build
ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/nml/bin:$PATH
RUN python -m venv /opt/nml
WORKDIR /src

# torch alone first, and only torch from that index; the next command brings what it needs. A large layer that
# changes only with the pins.
COPY constraints.txt ./
RUN pip install -c constraints.txt --no-deps ${TORCH_INDEX:+-i "$TORCH_INDEX"} torch && \
    pip install -c constraints.txt setuptools

COPY pyproject.toml README.md LICENSE ./
COPY trainer trainer
COPY tuner tuner
COPY service service
RUN pip install -c constraints.txt --no-build-isolation ".[train]"


FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/nml /opt/nml
# Named volumes take their owner from the image, so both folders exist here and belong to the user.
RUN useradd --uid 10001 --create-home nml && install -d -o nml -g nml /data /mlflow
ENV PATH=/opt/nml/bin:$PATH NML_HOME=/data MPLBACKEND=Agg PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
ENTRYPOINT ["nml"]
CMD ["--help"]
