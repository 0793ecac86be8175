#!/bin/sh
# Makes the roles and databases of the service and of MLflow. The image of PostgreSQL runs it when its volume is empty;
# it may be run again at any time, and then only sets the passwords to those of the environment:
#
#   docker compose exec postgres /docker-entrypoint-initdb.d/init.sh
#
# Each role owns one database and can connect to that one only.
set -eu
: "${NML_DATABASE_PASSWORD:?is the password of the role nml}" "${MLFLOW_DATABASE_PASSWORD:?is that of the role mlflow}"

# psql reads the passwords from the environment and quotes them itself: neither a command line nor the shell sees them.
# log_statement is off because CREATE ROLE would be logged with its password.
psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --username="${POSTGRES_USER:-postgres}" --dbname=postgres <<'SQL'
\getenv nml_password NML_DATABASE_PASSWORD
\getenv mlflow_password MLFLOW_DATABASE_PASSWORD
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SET log_min_duration_statement = -1;
SET password_encryption = 'scram-sha-256';

SELECT format('CREATE ROLE %I LOGIN', name)
FROM (VALUES ('nml'), ('mlflow')) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name)
\gexec
ALTER ROLE nml PASSWORD :'nml_password';
ALTER ROLE mlflow PASSWORD :'mlflow_password';

SELECT format('CREATE DATABASE %I OWNER %I', name, name)
FROM (VALUES ('nml'), ('mlflow')) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = name)
\gexec
REVOKE ALL ON DATABASE nml, mlflow, postgres, template1 FROM PUBLIC;
SQL
