# The service without torch and Ray, and of MLflow only its small client: the REST API, and the dispatcher that hands
# jobs to a Ray cluster.
#
#   docker build -f docker/api.Dockerfile -t nml-gcl-api .
#   docker run --rm -p 127.0.0.1:8000:8000 -v nml-data:/data -e NML_HOST=0.0.0.0 nml-gcl-api
#   docker run --rm -v nml-data:/data nml-gcl-api keys create laptop --scope submit

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/nml/bin:$PATH
RUN python -m venv /opt/nml
WORKDIR /src

# What it needs, without the project itself: a layer that changes only with the pins.
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *p['optional-dependencies']['serve'], *p['optional-dependencies']['track'], sep='\n')" > needed.txt && \
    pip install -c constraints.txt setuptools -r needed.txt

# Bytecode stays: on a read-only file system every process would compile everything anew.
COPY README.md LICENSE ./
COPY trainer trainer
COPY tuner tuner
COPY service service
RUN pip install -c constraints.txt --no-build-isolation --no-deps . && \
    rm -r /opt/nml/lib/python3.11/site-packages/pyarrow/tests /opt/nml/lib/python3.11/site-packages/pyarrow/include && \
    pip uninstall --yes setuptools pip


FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/nml /opt/nml
# A named volume takes its owner from the image, so the folder exists here and belongs to the user.
RUN useradd --uid 10001 --no-log-init --no-create-home --home-dir /tmp nml && install -d -m 0700 -o nml -g nml /data
ENV PATH=/opt/nml/bin:$PATH HOME=/tmp NML_HOME=/data PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /data
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/livez', timeout=3)"]
ENTRYPOINT ["nml"]
CMD ["serve", "--role=api"]
