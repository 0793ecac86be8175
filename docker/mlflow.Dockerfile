# The MLflow server: asks for a password, keeps runs in PostgreSQL and artifacts in /mlflow.
#
#   docker build -f docker/mlflow.Dockerfile -t nml-gcl-mlflow .
#
# It wants PGHOST, PGUSER, PGDATABASE and PGPASSWORD (the database's URI below is bare, and libpq fills it in from
# these: no password stands in a file or on a command line), MLFLOW_AUTH_ADMIN_PASSWORD for the user `nml`, which is
# made at the first start, and MLFLOW_FLASK_SERVER_SECRET_KEY. A newer MLflow may want its tables changed first:
#
#   docker compose run --rm mlflow db upgrade postgresql+psycopg://

FROM python:3.11.14-slim-bookworm AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/nml/bin:$PATH
RUN python -m venv /opt/nml
WORKDIR /src
COPY constraints.txt ./
RUN pip install -c constraints.txt "mlflow[auth]" "psycopg[binary]" && pip uninstall --yes pip


FROM python:3.11.14-slim-bookworm
COPY --from=build /opt/nml /opt/nml
COPY --chmod=0644 docker/mlflow/basic_auth.ini /etc/mlflow/basic_auth.ini
# A named volume takes its owner from the image, so the folder exists here and belongs to the user.
RUN useradd --uid 10001 --no-log-init --no-create-home --home-dir /tmp nml && install -d -o nml -g nml /mlflow
ENV PATH=/opt/nml/bin:$PATH HOME=/tmp PYTHONUNBUFFERED=1 MLFLOW_AUTH_CONFIG_PATH=/etc/mlflow/basic_auth.ini \
    MLFLOW_DISABLE_TELEMETRY=true MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false
USER 10001:10001
WORKDIR /mlflow
EXPOSE 5000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=6 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:5000/health', timeout=3)"]
ENTRYPOINT ["mlflow"]
CMD ["server", "--host=0.0.0.0", "--port=5000", "--workers=2", "--app-name=basic-auth", \
     "--backend-store-uri=postgresql+psycopg://", "--artifacts-destination=/mlflow/artifacts", "--serve-artifacts", \
     "--allowed-hosts=mlflow:5000,localhost:5000,127.0.0.1:5000"]
